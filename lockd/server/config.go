package server

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/seed70370324/lockd/lockd/master"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/vfs"
)

// Config says what a replica is, where it listens and what it keeps. The zero
// value of a tunable means its default.
type Config struct {
	Name    string // of this replica, unique in its cell
	Cell    string
	DataDir string
	Version string // shown to people

	// Addresses to listen on, host:port. An empty ListenHTTP means no HTTP.
	ListenClient string
	ListenPeer   string
	ListenHTTP   string
	// What others are told to connect to; by default the listening address
	// (AdvertisePeer: the replica's own entry in InitialCluster).
	AdvertiseClient string
	AdvertisePeer   string
	// InitialCluster lists the members, with their advertised peer addresses,
	// as ParseCluster gives them; empty: this replica alone.
	InitialCluster []paxos.Member
	// Insecure allows listeners that are not on loopback. There is no
	// encryption and no authentication yet.
	Insecure bool

	// Listeners, where set, are used instead of binding the addresses above.
	// The server closes them.
	ClientListener, PeerListener, HTTPListener net.Listener

	Limits Limits
	Tuning Tuning
	Logger *slog.Logger // default: discard
	FS     vfs.FS       // default: vfs.OSFS in DataDir
}

// Limits bound what clients can make the replica hold.
type Limits struct {
	MaxConnections int           // client connections, default 50,000
	MaxFrame       int           // bytes in a client's frame, default 2 MiB
	MaxPending     int           // bytes of one connection that wait for the loop, default 1 MiB
	HelloTimeout   time.Duration // from connecting to the first message, default 10 s
	FrameTimeout   time.Duration // from the first byte of a frame to its last, default 30 s
	WriteTimeout   time.Duration // for a client to take anything at all, default 20 s
	MaxQueued      int           // bytes that wait for all clients to read them, default 1 GiB
	MaxStateNodes  int           // nodes of the cell's state, default 2,097,152, or what the memory holds
	MaxStateBytes  int64         // bytes of the cell's state, default 1 GiB, or a quarter of the memory
	MaxWaiting     int           // bytes of all connections that wait for the loop, default 256 MiB

	// Connections that are none of a client; fit lowers them. 0: the default.
	maxHTTP      int
	maxRefusals  int // told that they are over MaxConnections, at the same time
	maxGreetings int // at the peer port, that have not said hello
}

// reservedFiles is how many open files are not for clients: the log needs some
// (a replica that cannot open its next segment must stop), the other replicas,
// HTTP and refusals the rest.
const reservedFiles = 512

// fewConnections are so few that the operator is warned.
const fewConnections = 1000

// fit lowers the number of connections to what the limit of open files leaves,
// so that clients alone cannot make the replica stop; it reports whether it had
// to. 0 files: not known.
func (l *Limits) fit(files uint64) bool {
	l.fitOthers(files)
	most := max(files/2, files-min(files, reservedFiles))
	if files == 0 || uint64(l.MaxConnections) <= most {
		return false
	}
	l.MaxConnections = int(most)
	return true
}

// fitOthers lowers what else strangers can hold open where clients get half of the
// files: the defaults are meant for the whole reserve. An eighth of the files is
// left for the log, however many connections come to the three ports.
func (l *Limits) fitOthers(files uint64) {
	if files == 0 || files >= 2*reservedFiles {
		return
	}
	l.maxHTTP = int(max(1, files/4))
	l.maxRefusals = int(max(1, files/16))
	l.maxGreetings = int(max(1, files/16))
}

// nodeBytesLeast is what the state counts for a node at least, rounded down.
const nodeBytesLeast = 256

// fitMemory sets the limits of the state that were not given by the machine's
// memory: a quarter, since the collector of garbage and a snapshot being taken may
// need as much again each. 0: not known.
func (l *Limits) fitMemory(memory uint64) {
	if memory == 0 {
		return
	}
	if l.MaxStateBytes == 0 {
		l.MaxStateBytes = int64(min(memory/4, 1<<62))
	}
	if l.MaxStateNodes == 0 {
		l.MaxStateNodes = int(l.MaxStateBytes / nodeBytesLeast)
	}
}

// Tuning is for tests and for unusual machines.
type Tuning struct {
	Heartbeat     time.Duration // default 100 ms
	ElectionMin   time.Duration // default 500 ms
	ElectionMax   time.Duration // default 900 ms
	DiskTimeout   time.Duration // default 2 s
	SegmentBytes  int64         // default 64 MiB
	SnapshotSlots int           // default 50,000
	SnapshotBytes int64         // default 64 MiB
	TrailSlots    int           // default 10,000
}

// ConfigError says that flags or environment are wrong. Nothing was opened,
// bound or written.
type ConfigError struct{ Text string }

func (e *ConfigError) Error() string { return e.Text }

func configErrorf(format string, args ...any) error {
	return &ConfigError{Text: fmt.Sprintf(format, args...)}
}

// ParseCluster reads name=host:port,name=host:port,... The members come sorted
// by name; IDs are given when the cell is founded.
func ParseCluster(text string) ([]paxos.Member, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	var members []paxos.Member
	names := map[string]bool{}
	addresses := map[string]string{}
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		name, address, ok := strings.Cut(part, "=")
		if !ok {
			return nil, configErrorf("--initial-cluster: %q is not name=host:port", part)
		}
		if err := checkName(name); err != nil {
			return nil, configErrorf("--initial-cluster: replica name %q: %v", name, err)
		}
		if err := checkAdvertised(address); err != nil {
			return nil, configErrorf("--initial-cluster: address of %s: %v", name, err)
		}
		if names[name] {
			return nil, configErrorf("--initial-cluster names %s twice", name)
		}
		if other := addresses[address]; other != "" {
			return nil, configErrorf("--initial-cluster gives %s and %s the same address %s", other, name, address)
		}
		names[name], addresses[address] = true, name
		members = append(members, paxos.Member{Name: name, PeerAddress: address, Voter: true})
	}
	sort.Slice(members, func(i, j int) bool { return members[i].Name < members[j].Name })
	return members, nil
}

// checkName accepts what is safe in a path, a log line and a metric's label.
func checkName(name string) error {
	if name == "" {
		return errors.New("is empty")
	}
	if len(name) > 64 {
		return errors.New("is longer than 64 bytes")
	}
	for _, c := range []byte(name) {
		ok := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.'
		if !ok {
			return errors.New("may have letters, digits, '-', '_' and '.' only")
		}
	}
	return nil
}

func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("%q is not host:port", address)
	}
	port, err = strconv.Atoi(text)
	// One way to write a number, so that the same address is the same text.
	if err != nil || port < 0 || port > 65535 || strconv.Itoa(port) != text {
		return "", 0, fmt.Errorf("%q has no port number between 0 and 65535", address)
	}
	return host, port, nil
}

// checkAdvertised accepts what another machine can connect to.
func checkAdvertised(address string) error {
	host, port, err := splitAddress(address)
	switch {
	case err != nil:
		return err
	case unspecified(host):
		return fmt.Errorf("%q names no host that others can connect to", address)
	case port == 0:
		return fmt.Errorf("%q has port 0, which nobody can connect to", address)
	}
	return nil
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

func onLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// withDefaults fills in what was left out.
func (c Config) withDefaults() Config {
	orInt := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	orInt(&c.Limits.MaxConnections, 50_000)
	orInt(&c.Limits.MaxFrame, 2<<20)
	orInt(&c.Limits.MaxPending, 1<<20)
	orInt(&c.Limits.MaxQueued, 1<<30)
	orInt(&c.Limits.MaxWaiting, 256<<20)
	orInt(&c.Limits.MaxStateNodes, master.DefaultStateNodes)
	if c.Limits.MaxStateBytes == 0 {
		c.Limits.MaxStateBytes = master.DefaultStateBytes
	}
	orTime := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	orTime(&c.Limits.HelloTimeout, 10*time.Second)
	orTime(&c.Limits.FrameTimeout, 30*time.Second)
	orTime(&c.Limits.WriteTimeout, 20*time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return c
}

// check finds everything that is wrong with a configuration without touching
// anything outside of it.
func (c *Config) check() error {
	if err := checkName(c.Name); err != nil {
		return configErrorf("--name %q %v", c.Name, err)
	}
	if err := checkName(c.Cell); err != nil {
		return configErrorf("--cell %q %v", c.Cell, err)
	}
	if c.DataDir == "" {
		return configErrorf("--data-dir is empty")
	}
	for _, l := range []struct {
		flag, address, advertise, value string
		given, optional                 bool
	}{
		{"--listen-client", c.ListenClient, "--advertise-client", c.AdvertiseClient, c.ClientListener != nil, false},
		{"--listen-peer", c.ListenPeer, "--advertise-peer", c.AdvertisePeer, c.PeerListener != nil, false},
		{"--listen-http", c.ListenHTTP, "", "", c.HTTPListener != nil, true},
	} {
		if l.given || l.address == "" && l.optional {
			continue
		}
		if err := c.checkListen(l.flag, l.address, l.advertise, l.value); err != nil {
			return err
		}
	}
	if err := c.checkPorts(); err != nil {
		return err
	}
	return c.checkCluster()
}

// checkPorts refuses one address for two purposes: the second listener would
// say that somebody else has it.
func (c *Config) checkPorts() error {
	flags := map[string]string{}
	for _, l := range [][2]string{{"--listen-client", c.ListenClient}, {"--listen-peer", c.ListenPeer}, {"--listen-http", c.ListenHTTP}} {
		if _, port, err := splitAddress(l[1]); err != nil || port == 0 {
			continue
		}
		if other := flags[l[1]]; other != "" {
			return configErrorf("%s and %s are both %s: give each a port of its own", other, l[0], l[1])
		}
		flags[l[1]] = l[0]
	}
	return nil
}

func (c *Config) checkListen(flag, address, advertise, value string) error {
	host, _, err := splitAddress(address)
	if err != nil {
		return configErrorf("%s: %v", flag, err)
	}
	if !onLoopback(host) && !c.Insecure {
		return configErrorf("%s %s is not on loopback, and there is no encryption or authentication yet: "+
			"anyone who reaches it can do anything. Use 127.0.0.1, or say --insecure to accept that", flag, address)
	}
	if advertise == "" {
		return nil
	}
	if value == "" {
		if unspecified(host) {
			return configErrorf("%s %s listens on every address, so others cannot be told where to connect: give %s", flag, address, advertise)
		}
		return nil
	}
	if err := checkAdvertised(value); err != nil {
		return configErrorf("%s: %v", advertise, err)
	}
	return nil
}

// checkCluster compares the members with what this replica says of itself.
func (c *Config) checkCluster() error {
	if len(c.InitialCluster) == 0 {
		return nil
	}
	names := make([]string, len(c.InitialCluster))
	for i, m := range c.InitialCluster {
		names[i] = m.Name
		if m.Name != c.Name {
			continue
		}
		if c.AdvertisePeer != "" && c.AdvertisePeer != m.PeerAddress {
			return configErrorf("--advertise-peer says %s, but --initial-cluster says %s for %s: they must agree",
				c.AdvertisePeer, m.PeerAddress, c.Name)
		}
		return nil
	}
	return configErrorf("--name %s is not in --initial-cluster (which has %s)", c.Name, strings.Join(names, ", "))
}

// resolve fills in the advertised addresses and the cluster of one, once the
// ports are known.
func (c *Config) resolve(client, peer net.Addr) {
	c.AdvertiseClient = advertised(c.AdvertiseClient, c.ListenClient, client)
	for _, m := range c.InitialCluster {
		if m.Name == c.Name && c.AdvertisePeer == "" {
			c.AdvertisePeer = m.PeerAddress
		}
	}
	c.AdvertisePeer = advertised(c.AdvertisePeer, c.ListenPeer, peer)
	if len(c.InitialCluster) == 0 {
		c.InitialCluster = []paxos.Member{{Name: c.Name, PeerAddress: c.AdvertisePeer, Voter: true}}
	}
}

// advertised returns what was given, or the address listened on: as it was
// written if it names a port, else with the port that was chosen.
func advertised(given, listen string, bound net.Addr) string {
	if given != "" {
		return given
	}
	if _, port, err := splitAddress(listen); err == nil && port != 0 {
		return listen
	}
	return bound.String()
}

// replicaOptions translates the configuration for the replica.
func (c *Config) replicaOptions() replica.Options {
	return replica.Options{
		Node: replog.NodeOptions{
			Paxos: paxos.Options{
				Heartbeat:   c.Tuning.Heartbeat,
				ElectionMin: c.Tuning.ElectionMin,
				ElectionMax: c.Tuning.ElectionMax,
				DiskTimeout: c.Tuning.DiskTimeout,
			},
			Cell:           c.Cell,
			Name:           c.Name,
			InitialCluster: c.InitialCluster,
			PeerAddress:    c.AdvertisePeer,
			ClientAddress:  c.AdvertiseClient,
			SnapshotSlots:  c.Tuning.SnapshotSlots,
			SnapshotBytes:  c.Tuning.SnapshotBytes,
			TrailSlots:     c.Tuning.TrailSlots,
			State:          replog.StateLimits{Nodes: uint64(c.Limits.MaxStateNodes), Bytes: uint64(c.Limits.MaxStateBytes)},
		},
		Version:        c.Version,
		MaxFrame:       c.Limits.MaxFrame,
		MaxConnections: c.Limits.MaxConnections,
	}
}
