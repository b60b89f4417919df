package child

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// The gate is what becomes the command. It is started in a process group of
// its own, waits for one byte, and then executes the command in its place. So
// the watchdog knows the group before the command's first instruction, and a
// lockctl that dies before it has given the byte leaves a gate that ends
// without having run anything.

const gateCommand = "lock-gate"

// codeNotStarted is the exit code of a gate that was not opened; nobody sees it.
const codeNotStarted = 125

// gate is the process. args: the descriptors of its two pipes, then the command.
func gate(args []string) int {
	if len(args) < 3 {
		fmt.Fprintln(os.Stderr, "lockctl: the gate is started by 'lockctl lock'")
		return 2
	}
	in, err1 := strconv.Atoi(args[0])
	out, err2 := strconv.Atoi(args[1])
	if err := errors.Join(err1, err2); err != nil || in < 3 || out < 3 {
		fmt.Fprintf(os.Stderr, "lockctl: gate: bad descriptors %q, %q\n", args[0], args[1])
		return 2
	}
	unix.CloseOnExec(in)
	unix.CloseOnExec(out)
	command := args[2:]
	path, err := exec.LookPath(command[0])
	if !opened(in) {
		return codeNotStarted
	}
	if err == nil {
		err = fmt.Errorf("exec %s: %w", path, syscall.Exec(path, command, os.Environ()))
	}
	code := CodeNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = CodeNotFound
	}
	_, _ = unix.Write(out, fmt.Appendf(nil, "%d %v", code, err))
	return code
}

// opened waits for the byte.
func opened(fd int) bool {
	var b [1]byte
	for {
		n, err := unix.Read(fd, b[:])
		if !errors.Is(err, unix.EINTR) {
			return n == 1
		}
	}
}

// gateway is lockctl's side of a gate.
type gateway struct {
	pid  int
	open *os.File // write end: a byte opens the gate
	said *os.File // read end: ends when the command runs, else has the reason
}

// startGate starts a gate for the command. The command keeps every descriptor
// that lockctl was started with, whatever its number: so the gate's pipes take
// free numbers and are told to it, instead of the lowest ones.
func startGate(args, env []string, attr *syscall.SysProcAttr) (*gateway, error) {
	r, open, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	said, w, err := os.Pipe()
	if err != nil {
		_ = open.Close()
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer w.Close()
	g := &gateway{open: open, said: said}
	if g.pid, err = g.start(r, w, args, env, attr); err != nil {
		g.close()
		return nil, err
	}
	return g, nil
}

func (g *gateway) start(r, w *os.File, args, env []string, attr *syscall.SysProcAttr) (pid int, err error) {
	// Duplicates that stay open over exec. Nothing else is started meanwhile, so
	// nobody else inherits them.
	in, err := unix.FcntlInt(r.Fd(), unix.F_DUPFD, 3)
	if err != nil {
		return 0, fmt.Errorf("duplicate a pipe: %w", err)
	}
	defer unix.Close(in)
	out, err := unix.FcntlInt(w.Fd(), unix.F_DUPFD, 3)
	if err != nil {
		return 0, fmt.Errorf("duplicate a pipe: %w", err)
	}
	defer unix.Close(out)
	cmd := exec.Command(self())
	cmd.Args = append([]string{"lockctl", gateCommand, strconv.Itoa(in), strconv.Itoa(out)}, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attr
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start lockctl once more: %w", err)
	}
	pid = cmd.Process.Pid
	// Its end is waited for by awaitChild, which sees it stop, too.
	return pid, cmd.Process.Release()
}

// run opens the gate and returns when the command runs, or why it does not.
func (g *gateway) run(command string) error {
	if _, err := g.open.Write([]byte{1}); err != nil {
		// It was killed meanwhile: its end tells how.
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(g.said, 4096))
	if err != nil || len(b) == 0 {
		return nil
	}
	word, text, _ := strings.Cut(string(b), " ")
	code, err := strconv.Atoi(word)
	if err != nil {
		code = CodeNotExecutable
	}
	return &StartError{Command: command, Code: code, Err: errors.New(text)}
}

func (g *gateway) close() {
	_ = g.open.Close()
	_ = g.said.Close()
}
