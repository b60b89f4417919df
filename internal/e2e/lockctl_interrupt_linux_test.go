package e2e

import (
	"bytes"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// interruptedCtl starts lockctl, sends it a signal once it has come to its work,
// and tells how it ends: when it has read what stdin has, which stays open as a
// terminal would, or when it has connected to away.
func (c *cell) interruptedCtl(sig syscall.Signal, away net.Listener, args ...string) (code int, stdout, stderr string) {
	c.t.Helper()
	cmd := c.ctlCommand(args...)
	in, stdin, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	defer in.Close()
	defer stdin.Close()
	if _, err := stdin.WriteString("half of the content"); err != nil {
		c.t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	if away != nil {
		cmd.Env = append(cmd.Env, "LOCKCTL_ENDPOINTS="+away.Addr().String())
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if away != nil {
		nc, err := away.Accept()
		if err != nil {
			c.t.Fatal(err)
		}
		defer nc.Close() // it says nothing
	} else {
		eventually(c.t, "lockctl has read its stdin", func() bool {
			n, err := unix.IoctlGetInt(int(in.Fd()), unix.TIOCINQ)
			return err == nil && n == 0
		})
	}
	if err := cmd.Process.Signal(sig); err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		c.t.Errorf("lockctl %v does not end with %v", args, sig)
		if err := cmd.Process.Kill(); err != nil {
			c.t.Fatal(err)
		}
		<-ended
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// A signal ends every command: with its number as the exit code if nothing was
// done, and without a word of a service that nobody has missed.
func TestInterrupts(t *testing.T) {
	c := startCell(t, 1)
	if code, _, errs := c.ctl("old", "put", "/p"); code != 0 {
		t.Fatal(errs)
	}
	away, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	for _, x := range []struct {
		away net.Listener // in place of the cell
		args string
		sig  syscall.Signal
		code int
		says string // the whole of stderr
	}{
		{args: "put /p", sig: syscall.SIGINT, code: 130, says: "lockctl: interrupted (SIGINT)\n"},
		{args: "put /p --file -", sig: syscall.SIGTERM, code: 143, says: "lockctl: interrupted (SIGTERM)\n"},
		{args: "create /new --file -", sig: syscall.SIGINT, code: 130, says: "lockctl: interrupted (SIGINT)\n"},
		{away: away, args: "get /p", sig: syscall.SIGINT, code: 130, says: "lockctl: interrupted (SIGINT)\n"},
		{away: away, args: "put /p x", sig: syscall.SIGTERM, code: 143, says: "lockctl: interrupted (SIGTERM)\n"},
		{away: away, args: "rm -r /p", sig: syscall.SIGINT, code: 130, says: "lockctl: interrupted (SIGINT)\n"},
		{away: away, args: "tree", sig: syscall.SIGINT, code: 130, says: "lockctl: interrupted (SIGINT)\n"},
		{away: away, args: "watch /p", sig: syscall.SIGINT, code: 130, says: "lockctl: interrupted (SIGINT)\n"},
		{away: away, args: "lock /p -- true", sig: syscall.SIGINT, code: 130, says: "lockctl: interrupted while waiting for the lock (SIGINT)\n"},
	} {
		code, out, errs := c.interruptedCtl(x.sig, x.away, strings.Fields(x.args)...)
		if code != x.code || errs != x.says || out != "" {
			t.Errorf("lockctl %s: exit code %d, want %d; %q, %q", x.args, code, x.code, out, errs)
		}
	}
	if code, out, _ := c.ctl("", "get", "/p"); code != 0 || out != "old" {
		t.Errorf("get: exit code %d, %q", code, out)
	}
	if code, _, _ := c.ctl("", "get", "/new"); code != 3 {
		t.Errorf("get /new: exit code %d", code)
	}
}

// What was done and could not be printed was done all the same, and lockctl says
// so.
func TestDoneButNotPrinted(t *testing.T) {
	c := startCell(t, 1)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip(err) // only some systems have it
	}
	defer full.Close()
	for _, x := range []struct{ args, says string }{
		{"put /a x", "lockctl: put /a: done, but its result could not be printed: "},
		{"-o json put /a x", "lockctl: put /a: done, but its result could not be printed: "},
		{"create /b", "lockctl: create /b: done, but its result could not be printed: "},
	} {
		cmd := c.ctlCommand(strings.Fields(x.args)...)
		var errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = full, &errs
		if code := exitCode(t, cmd.Run()); code != 1 || !strings.HasPrefix(errs.String(), x.says) {
			t.Errorf("lockctl %s: exit code %d, %s", x.args, code, errs.String())
		}
	}
}
