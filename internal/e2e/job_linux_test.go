package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// console is an interactive shell on a terminal of its own.
type console struct {
	t    *testing.T
	pty  *os.File
	mu   sync.Mutex
	seen bytes.Buffer
	from int // what is before it has been looked at
}

func newConsole(t *testing.T, c *cell) *console {
	t.Helper()
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	unlock, number := 0, 0
	raw, err := pty.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, unlock); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	sh := exec.Command("sh", "-i")
	sh.Env = append(c.ctlCommand().Env, "PS1=$ ", "ENV=", "LOCKCTL="+program("lockctl"))
	sh.Stdin, sh.Stdout, sh.Stderr = tty, tty, tty
	sh.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	k := &console{t: t, pty: pty}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, err := pty.Read(buf)
			k.mu.Lock()
			k.seen.Write(buf[:n])
			k.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = sh.Process.Kill()
		_ = sh.Wait()
		_ = pty.Close()
		<-done
		if t.Failed() {
			t.Logf("on the terminal:\n%s", &k.seen)
		}
	})
	return k
}

func (k *console) types(text string) {
	k.t.Helper()
	if _, err := k.pty.WriteString(text); err != nil {
		k.t.Fatal(err)
	}
}

// shows waits until text appears behind what was waited for before.
func (k *console) shows(text string) {
	k.t.Helper()
	eventually(k.t, fmt.Sprintf("the terminal shows %q", text), func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		i := bytes.Index(k.seen.Bytes()[k.from:], []byte(text))
		if i >= 0 {
			k.from += i + len(text)
		}
		return i >= 0
	})
}

// TestJobControl: Ctrl-Z stops command and lockctl as one job, fg goes on with
// both, and a job that stays stopped loses its lock.
func TestJobControl(t *testing.T) {
	c := startCell(t, 1)
	viewer := c.dial()
	t.Run("stopped and continued", func(t *testing.T) {
		k := newConsole(t, c)
		k.types("$LOCKCTL lock --lease 60s /job -- sh -c 'echo up; read x; echo got $x; exit 3'\n")
		k.shows("up\r\n")
		k.types("\x1a")
		k.shows("Stopped")
		k.types("fg\n")
		k.types("word\n")
		k.shows("got word")
		k.types("echo code $?\n")
		k.shows("code 3\r\n")
	})
	t.Run("continued in the background", func(t *testing.T) {
		k := newConsole(t, c)
		// A shell that forks just now may hold up its own stop (vfork): this one reads.
		fifo := t.TempDir() + "/fifo"
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		k.types("$LOCKCTL lock --lease 60s /job -- sh -c 'echo up; read x <" + fifo + "; echo through'\n")
		k.shows("up\r\n")
		k.types("\x1a")
		k.shows("Stopped")
		k.types("bg\n")
		k.types("echo >" + fifo + "\n")
		k.shows("through\r\n")
		k.types("wait; echo the terminal is ours $((1 + 1))\n")
		k.shows("the terminal is ours 2")
	})
	t.Run("stopped for too long", func(t *testing.T) {
		k := newConsole(t, c)
		k.types("$LOCKCTL lock --lease 1s --lock-delay 1s /job -- sh -c 'echo up; exec sleep 600'\n")
		k.shows("up\r\n")
		k.types("\x1a")
		k.shows("Stopped")
		eventually(t, "the lock goes on", func() bool {
			l, err := viewer.Why(t.Context(), "/job")
			return err == nil && len(l.Holders) == 0
		})
		k.types("fg\n")
		k.shows("was lost while the command ran")
		k.types("echo code $?\n")
		k.shows("code 111\r\n")
	})
	t.Run("interrupted", func(t *testing.T) {
		k := newConsole(t, c)
		k.types("$LOCKCTL lock --lease 60s /job -- sh -c 'echo up; exec sleep 600'\n")
		k.shows("up\r\n")
		k.types("\x03")
		k.types("echo code $?\n")
		k.shows("code 130\r\n")
	})
}
