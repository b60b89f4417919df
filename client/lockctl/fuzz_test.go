package main

import (
	"encoding/json"
	"net"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/internal/fuzzing"
)

// FuzzEndpoints: a list of endpoints that is taken is one of hosts and ports,
// and the same when it is written out again.
func FuzzEndpoints(f *testing.F) {
	for name, text := range map[string]string{"default": defaultEndpoints, "blanks": " a:1 , b:2,", "ipv6": "[::1]:7101", "no-port": "127.0.0.1",
		"bad-port": "127.0.0.1:99999", "names": "n1:http", "empty": ",,"} {
		fuzzing.Seed(f, name, text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		out, err := (&app{endpoints: text}).addresses()
		if err != nil {
			if code := exitCode(err); code != codeUsage || len(out) > 0 {
				t.Fatalf("%q: %v, exit code %d, %q", text, err, code, out)
			}
			return
		}
		for _, a := range out {
			host, port, err := net.SplitHostPort(a)
			if n, perr := strconv.Atoi(port); err != nil || host == "" || perr != nil || n < 1 || n > 65535 {
				t.Fatalf("%q gives the endpoint %q", text, a)
			}
		}
		again, err := (&app{endpoints: strings.Join(out, ",")}).addresses()
		if err != nil || !reflect.DeepEqual(out, again) {
			t.Fatalf("%q gives %q, which gives %q, %v", text, out, again, err)
		}
	})
}

// FuzzFence: the store of the demonstration takes whatever a client sends, and
// the largest fence never falls.
func FuzzFence(f *testing.F) {
	for name, lines := range map[string]string{"writes": "1 a\n3 b\n2 c\n3 d", "no-number": "x\n-1 a\n+1 b\n0x10 c\n1e3 d", "trailing": "12abc text",
		"huge": "99999999999999999999 a", "empty": "\n\n"} {
		fuzzing.Seed(f, name, lines)
	}
	f.Fuzz(func(t *testing.T, lines string) {
		s := &fenceStore{}
		for line := range strings.SplitSeq(lines, "\n") {
			before, last := s.largest, s.last
			answer := s.write(line)
			number, text, _ := strings.Cut(line, " ")
			n, err := strconv.ParseUint(number, 10, 64)
			switch {
			case answer == "ok":
				if err != nil || n < before || s.largest != n || s.last != text {
					t.Fatalf("%q behind fence %d is written as %d %q", line, before, s.largest, s.last)
				}
			case s.largest != before || s.last != last:
				t.Fatalf("%q is answered %q, and changes the store", line, answer)
			case err == nil && (n >= before || answer != "refused "+strconv.FormatUint(before, 10)):
				t.Fatalf("%q behind fence %d is answered %q", line, before, answer)
			}
		}
	})
}

// FuzzLockTimes: times that are taken leave the work time to stop.
func FuzzLockTimes(f *testing.F) {
	fuzzing.Seed(f, "default", int64(12*time.Second), int64(15*time.Second), int64(0), int64(-1))
	fuzzing.Seed(f, "no-delay", int64(2*time.Second), int64(0), int64(time.Second), int64(0))
	fuzzing.Seed(f, "too-long", int64(2*time.Second), int64(0), int64(5*time.Second), int64(0))
	fuzzing.Seed(f, "extreme", int64(1<<63-1), int64(-1<<63), int64(1<<63-1), int64(-1<<63))
	fuzzing.Seed(f, "stop-for-ever", int64(12*time.Second), int64(15*time.Second), int64(1<<63-1), int64(-1))
	f.Fuzz(func(t *testing.T, lease, delay, stop, wait int64) {
		fl := lockFlags{lease: time.Duration(lease), delay: time.Duration(delay), stop: time.Duration(stop), wait: time.Duration(wait)}
		if err := fl.check(); err != nil {
			if lockExitCode(err) != codeLockUsage {
				t.Fatalf("%v gives exit code %d", err, lockExitCode(err))
			}
			return
		}
		if fl.lease <= 0 || fl.delay < 0 || fl.stop <= 0 || fl.stop >= fl.stopMax() {
			t.Fatalf("%+v is taken", fl)
		}
	})
}

// FuzzCommandLine: any arguments are a command that could run, or a mistake
// that is told in a few lines.
func FuzzCommandLine(f *testing.F) {
	for name, args := range map[string]string{"get": "get\x00/a", "lock": "lock\x00--try\x00/a\x00--\x00true", "flags": "-o\x00json\x00--timeout\x001s\x00ls",
		"typo": "gte\x00/a", "unknown-flag": "put\x00--colour\x00/a", "bad-value": "bench\x00--clients\x00x\x00write", "nothing": "", "help": "help\x00lock"} {
		fuzzing.Seed(f, name, args)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		root := (&app{}).root()
		cmd, rest, err := root.Find(args)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err == nil {
			return
		}
		if text := err.Error(); strings.TrimSpace(text) == "" || len(text) > 1000+8*len(line) {
			t.Fatalf("%q: the error is %q", args, text)
		}
	})
}

// FuzzStatusJSON: what status prints is what can be read back.
func FuzzStatusJSON(f *testing.F) {
	fuzzing.Seed(f, "master", "n1", "master", uint64(1<<63), int64(5*time.Second), true)
	fuzzing.Seed(f, "strange", "<n\u2028>\"\\", "", uint64(0), int64(-1), false)
	fuzzing.Seed(f, "bytes", "\xff", "\x00", uint64(1), int64(-1<<63), false)
	f.Fuzz(func(t *testing.T, name, role string, n uint64, d int64, yes bool) {
		name, role = strings.ToValidUTF8(name, "?"), strings.ToValidUTF8(role, "?") // as the protocol has them
		row := statusJSON(name, client.ReplicaStatus{Cell: name, Replica: name, Role: role, MasterName: role, Ballot: name, Epoch: n, Revision: ^n,
			Chosen: n, Applied: n / 2, StateHash: n, Sessions: int(n >> 1), Uptime: time.Duration(d), Version: name,
			Peers: []client.PeerStatus{{Name: name, Address: role, Connected: yes, Behind: n, Heard: time.Duration(d)}}})
		b, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		var back statusRow
		if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(row, back) {
			t.Fatalf("%+v comes back as %+v, %v", row, back, err)
		}
	})
}
