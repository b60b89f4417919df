package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/lockd/server"
)

// FuzzFlags: arguments are taken, or refused as a mistake of usage; a flag that
// is taken means the same when its value is given again.
func FuzzFlags(f *testing.F) {
	for name, args := range map[string]string{
		"usual":    "--name\x00n1\x00--cell=demo\x00--listen-client\x00127.0.0.1:7101\x00--insecure",
		"tuning":   "--snapshot-slots\x0010\x00--segment-bytes\x001048576\x00--election-min=1m30s\x00--heartbeat\x001e3ms",
		"bad":      "--snapshot-slots\x00-1",
		"unknown":  "--colour\x00red",
		"cluster":  "--initial-cluster\x00n1=a:1,n2=b:2\x00--log-format\x00json\x00--log-level=debug",
		"numbers":  "--snapshot-bytes\x000x10\x00--trail-slots\x000b11\x00--insecure=T",
		"no-value": "--name",
		"stray":    "serve\x00--\x00--name",
	} {
		fuzzing.Seed(f, name, args)
	}
	f.Fuzz(func(t *testing.T, line string) {
		var df daemonFlags
		cmd := daemonCommand()
		cmd.ResetFlags()
		df.define(cmd)
		if cmd.ParseFlags(strings.Split(line, "\x00")) != nil {
			return
		}
		for _, name := range df.names {
			flag := cmd.Flags().Lookup(name)
			was := flag.Value.String()
			if err := flag.Value.Set(was); err != nil || flag.Value.String() != was {
				t.Fatalf("--%s is %q, which read again gives %q, %v", name, was, flag.Value, err)
			}
		}
		if _, err := df.finish(); err != nil {
			var usage usageError
			var config *server.ConfigError
			if !errors.As(err, &usage) && !errors.As(err, &config) {
				t.Fatalf("an error of no known kind: %v", err)
			}
		}
	})
}

// FuzzChildLog: what the terminal gets of a replica's output does not hang on
// how the output is cut, and the file has all of it.
func FuzzChildLog(f *testing.F) {
	fuzzing.Seed(f, "lines", []byte("time=2025-01-01T00:00:00Z level=WARN msg=\"a b\" replica=n1 peer=n2\ntime=x level=ERROR msg=y\npanic: one\n"), uint8(3))
	fuzzing.Seed(f, "no-end", []byte("time=2025-01-01T00:00:00.000+01:00 level=ERROR"), uint8(1))
	fuzzing.Seed(f, "crash", bytes.Repeat([]byte("goroutine\n\n"), 12), uint8(7))
	f.Fuzz(func(t *testing.T, output []byte, piece uint8) {
		if len(output) > lineMax {
			return // a line that long is cut where the writes are
		}
		whole := childSays(t, output, len(output)+1)
		if cut := childSays(t, output, int(piece)+1); cut != whole {
			t.Fatalf("at once the terminal gets %q, in pieces of %d %q", whole, int(piece)+1, cut)
		}
	})
}

// childSays is what the terminal gets of output that is written in pieces.
func childSays(t *testing.T, output []byte, piece int) string {
	file, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var term bytes.Buffer
	l := &childLog{file: file, name: "n1", term: &lines{w: &term}}
	for len(output) > 0 {
		n, err := l.Write(output[:min(piece, len(output))])
		if err != nil || n == 0 {
			t.Fatal(n, err)
		}
		output = output[n:]
	}
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	return term.String()
}
