package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
)

func TestEnvironmentSaysTheSameAsFlags(t *testing.T) {
	var f daemonFlags
	cmd := daemonCommand()
	cmd.ResetFlags()
	f.define(cmd)
	if err := cmd.ParseFlags([]string{"--name", "flag"}); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{
		"LOCKD_NAME": "env", "LOCKD_LISTEN_CLIENT": "127.0.0.1:1", "LOCKD_INSECURE": "true", "LOCKD_SNAPSHOT_SLOTS": "7",
		"LOCKD_ELECTION_MIN": "3s", "LOCKD_ELECTION_MAX": "4s", "LOCKD_INITIAL_CLUSTER": "flag=a:1,other=b:2", "LOCKD_LISTEN_HTTP": "",
	}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	if err := f.fromEnvironment(cmd, lookup); err != nil {
		t.Fatal(err)
	}
	c, err := f.finish()
	if err != nil {
		t.Fatal(err)
	}
	if c.Name != "flag" {
		t.Errorf("name is %q: the flag must win", c.Name)
	}
	if c.ListenClient != "127.0.0.1:1" || !c.Insecure || c.Tuning.SnapshotSlots != 7 || c.Tuning.ElectionMin != 3*time.Second ||
		len(c.InitialCluster) != 2 || c.ListenHTTP != "" || c.Cell != "local" {
		t.Errorf("got %+v", c)
	}
}

// Every flag can be given in the environment.
func TestEveryFlagHasAVariable(t *testing.T) {
	var f daemonFlags
	cmd := daemonCommand()
	cmd.ResetFlags()
	f.define(cmd)
	known := map[string]bool{}
	for _, n := range f.names {
		known[n] = true
	}
	for _, line := range strings.Split(cmd.Flags().FlagUsages(), "\n") {
		if _, after, ok := strings.Cut(line, "--"); ok {
			if name, _, _ := strings.Cut(after, " "); !known[name] {
				t.Errorf("--%s cannot be given in the environment", name)
			}
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "LOCKD_") {
			name, _, _ := strings.Cut(v, "=")
			t.Setenv(name, "")
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Chdir(t.TempDir())
	for _, tc := range []struct {
		args string
		want string
	}{
		{"--nonsense", "unknown flag: --nonsense"},
		{"nonsense", `"nonsense" is not a flag or a command`},
		{"--log-level loud", "--log-level"},
		{"--log-format xml", "--log-format"},
		{"--profile all", "neither cpu nor mem"},
		{"--snapshot-slots -1", "cannot be negative"},
		{"--snapshot-slots x", "must be a whole number"},
		{"--segment-bytes 1073741825", "--segment-bytes 1073741825: at most 1073741824"},
		{"--initial-cluster n1", "not name=host:port"},
		{"--listen-client 10.0.0.1:1", "--insecure"},
		{"--name n9 --initial-cluster n1=127.0.0.1:7201", "--name n9 is not in --initial-cluster"},
		{"local --replicas 0", "--replicas 0"},
		{"local --replicas 10", "--replicas 10"},
		{"local --base-port 65400", "--base-port 65400"},
		{"local --log-level loud", "--log-level"},
		{"local x", `"x" is not a flag or a command of lockd local`},
	} {
		var stderr bytes.Buffer
		if code := run(strings.Fields(tc.args), &stderr); code != exitUsage {
			t.Errorf("lockd %s: exit code %d", tc.args, code)
		}
		out := stderr.String()
		if !strings.Contains(out, tc.want) || strings.Count(out, "\n") > 2 {
			t.Errorf("lockd %s says %q, want %q in at most two lines", tc.args, out, tc.want)
		}
	}
	if left, err := os.ReadDir("."); err != nil || len(left) > 0 {
		t.Errorf("files were made: %v, %v", left, err)
	}
}

func TestChildLog(t *testing.T) {
	var term bytes.Buffer
	path := t.TempDir() + "/n1.log"
	l, err := newChildLog(path, "n1", &lines{w: &term})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Truncate(time.Millisecond)
	stamp, at := "time="+now.Format(time.RFC3339Nano), now.Format(clockLayout)
	var all bytes.Buffer
	for _, part := range []string{
		"time=1 level=INFO msg=quiet\n" + stamp + " level=WA", "RN msg=\"loud one\" replica=n1 peer=n2\n", "panic: one\n",
		strings.Repeat("goroutine\n", 20), stamp + " level=ERROR msg=error\n", "no end of line",
	} {
		all.WriteString(part)
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.quiet()
	for _, part := range []string{"\ntime=4 level=WARN msg=calm\n", stamp + " level=ERROR msg=end\n", "last words"} {
		all.WriteString(part)
		if _, err := l.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	want := at + "  n1 WARN: \"loud one\" peer=n2\nn1: panic: one\n" + strings.Repeat("n1: goroutine\n", plainMax-1) +
		"n1: ... more in " + path + "\n" + at + "  n1 ERROR: error\nn1: no end of line\n" + at + "  n1 ERROR: end\nn1: last words\n"
	if term.String() != want {
		t.Errorf("terminal got:\n%s\nwant:\n%s", term.String(), want)
	}
	if file, err := os.ReadFile(path); err != nil || !bytes.Equal(file, all.Bytes()) {
		t.Errorf("file has %q, %v", file, err)
	}
}
