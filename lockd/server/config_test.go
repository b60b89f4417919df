package server

import (
	"cmp"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// good is a configuration with nothing wrong; each case changes one thing.
func good(t *testing.T) Config {
	t.Helper()
	return Config{
		Name: "n1", Cell: "test", DataDir: filepath.Join(t.TempDir(), "data"),
		ListenClient: "127.0.0.1:0", ListenPeer: "127.0.0.1:0", ListenHTTP: "127.0.0.1:0",
	}
}

func TestConfigErrorsTouchNothing(t *testing.T) {
	three, err := ParseCluster("n1=127.0.0.1:7201,n2=127.0.0.1:7202,n3=127.0.0.1:7203")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no name", func(c *Config) { c.Name = "" }, `--name "" is empty`},
		{"slash in name", func(c *Config) { c.Name = "a/b" }, "letters, digits"},
		{"long cell", func(c *Config) { c.Cell = strings.Repeat("x", 65) }, "longer than 64"},
		{"no directory", func(c *Config) { c.DataDir = "" }, "--data-dir is empty"},
		{"no port", func(c *Config) { c.ListenClient = "127.0.0.1" }, `--listen-client: "127.0.0.1" is not host:port`},
		{"port too high", func(c *Config) { c.ListenPeer = "127.0.0.1:70000" }, "between 0 and 65535"},
		{"client not on loopback", func(c *Config) { c.ListenClient = "10.1.2.3:7101" }, "--listen-client 10.1.2.3:7101 is not on loopback"},
		{"peer not on loopback", func(c *Config) { c.ListenPeer = "[::]:7201" }, "--listen-peer [::]:7201 is not on loopback"},
		{"http not on loopback", func(c *Config) { c.ListenHTTP = "0.0.0.0:7301" }, "--insecure"},
		{"host name not on loopback", func(c *Config) { c.ListenClient = "example.org:7101" }, "is not on loopback"},
		{"everywhere, client not advertised", func(c *Config) { c.Insecure = true; c.ListenClient = "0.0.0.0:0" }, "give --advertise-client"},
		{"everywhere, peer not advertised", func(c *Config) { c.Insecure = true; c.ListenPeer = ":0" }, "give --advertise-peer"},
		{"advertised everywhere", func(c *Config) { c.AdvertiseClient = "0.0.0.0:7101" }, "names no host"},
		{"advertised port 0", func(c *Config) { c.AdvertiseClient = "127.0.0.1:0" }, "port 0"},
		{"not a member", func(c *Config) { c.Name = "n4"; c.InitialCluster = three }, "--name n4 is not in --initial-cluster (which has n1, n2, n3)"},
		{"two peer addresses", func(c *Config) { c.InitialCluster = three; c.AdvertisePeer = "127.0.0.1:9" }, "they must agree"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := good(t)
			tc.change(&c)
			s, err := New(c)
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			var config *ConfigError
			if !errors.As(err, &config) {
				t.Errorf("%T is not a ConfigError: %v", err, err)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %q does not say %q", err, tc.want)
			}
			if c.DataDir != "" {
				if _, err := os.Stat(c.DataDir); !os.IsNotExist(err) {
					t.Errorf("the data directory was touched: %v", err)
				}
			}
		})
	}
}

func TestTakenPort(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	address := taken.Addr().String()
	for flag, change := range map[string]func(*Config){
		"--listen-client": func(c *Config) { c.ListenClient = address },
		"--listen-peer":   func(c *Config) { c.ListenPeer = address },
		"--listen-http":   func(c *Config) { c.ListenHTTP = address },
	} {
		c := good(t)
		change(&c)
		s, err := New(c)
		if err == nil {
			s.Close()
			t.Fatalf("%s: no error", flag)
		}
		if want := flag + " " + address + ": the port is taken"; !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
		var config *ConfigError
		if errors.As(err, &config) {
			t.Errorf("%s: a taken port is not a wrong flag: %v", flag, err)
		}
		if _, err := os.Stat(c.DataDir); !os.IsNotExist(err) {
			t.Errorf("%s: the data directory was touched: %v", flag, err)
		}
	}
}

func TestAddressesAreResolved(t *testing.T) {
	c := good(t)
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for what, address := range map[string]string{"client": s.ClientAddress(), "peer": s.PeerAddress(), "http": s.HTTPAddress()} {
		if host, port, err := splitAddress(address); err != nil || host != "127.0.0.1" || port == 0 {
			t.Errorf("%s address is %q", what, address)
		}
	}
	if m := s.cfg.InitialCluster; len(m) != 1 || m[0].Name != "n1" || m[0].PeerAddress != s.PeerAddress() {
		t.Errorf("a replica alone has the cluster %v", m)
	}
}

func TestParseCluster(t *testing.T) {
	ms, err := ParseCluster(" n2=b:2, n1=a:1")
	if err != nil || len(ms) != 2 || ms[0].Name != "n1" || ms[0].PeerAddress != "a:1" || ms[1].Name != "n2" {
		t.Errorf("got %v, %v", ms, err)
	}
	if ms, err := ParseCluster("  "); err != nil || ms != nil {
		t.Errorf("nothing gave %v, %v", ms, err)
	}
	for text, want := range map[string]string{
		"n1":                "not name=host:port",
		"n1=a:1,":           "not name=host:port",
		"n1=a":              "not host:port",
		"n1=a:x":            "no port number",
		"n1=a:0":            "port 0",
		"n1=:1":             "names no host",
		"=a:1":              "is empty",
		"n1=a:1,n1=b:1":     "names n1 twice",
		"n1=a:1,n2=a:1":     "the same address",
		"n 1=a:1":           "letters, digits",
		"n1=0.0.0.0:1":      "names no host",
		"n1=a:1,n2=b:99999": "between 0 and 65535",
	} {
		_, err := ParseCluster(text)
		var config *ConfigError
		if !errors.As(err, &config) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not say %q", text, err, want)
		}
	}
}

func TestConnectionsFitTheOpenFiles(t *testing.T) {
	for _, c := range []struct {
		files uint64
		want  int
	}{
		{0, 50_000}, {1_048_576, 50_000}, {50_512, 50_000}, {50_511, 49_999}, {20_000, 19_488}, {1024, 512}, {200, 100},
	} {
		l := Limits{MaxConnections: 50_000}
		if told := l.fit(c.files); l.MaxConnections != c.want || told != (c.want != 50_000) {
			t.Errorf("%d open files: %d connections, told %v", c.files, l.MaxConnections, told)
		}
	}
}

// However many connections strangers open at the three ports, files are left for
// the log: a replica that cannot open its next segment must stop.
func TestFilesAreLeftForTheLog(t *testing.T) {
	for files := uint64(64); files <= 4096; files++ {
		l := Limits{MaxConnections: 50_000}
		l.fit(files)
		// 256 and 64 are the defaults of the HTTP and the peer port.
		held := l.MaxConnections + cmp.Or(l.maxHTTP, 256) + cmp.Or(l.maxRefusals, politeRefusals) + cmp.Or(l.maxGreetings, 64)
		if left := int(files) - held; left < int(min(files/8, 128)) {
			t.Fatalf("of %d open files strangers can hold %d", files, held)
		}
	}
}
