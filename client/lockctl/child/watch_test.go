package child

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/internal/fuzzing"
)

const second = time.Second

// TestWatchDecides: what the watchdog does for each kind of input, at what
// time. Deadline 100 s, 4 s from TERM to KILL.
func TestWatchDecides(t *testing.T) {
	const told = "until 100000000000\nguard 4711\n"
	for _, row := range []struct {
		name string
		in   string
		eof  bool
		gone bool // no process of the group is left
		at   time.Duration
		want act
		kill time.Duration // when KILL is due
	}{
		{name: "nothing said", at: 1, want: actWait},
		{name: "the end before the start", eof: true, at: 1, want: actEnd},
		{name: "the end behind a deadline alone", in: "until 100000000000\n", eof: true, at: 1, want: actEnd},
		{name: "the end in the middle of the group's line", in: "until 100000000000\nguard 47", eof: true, at: 1, want: actEnd},
		{name: "held", in: told, at: 99 * second, want: actWait},
		{name: "lockctl gets a moment to do it itself", in: told, at: 100 * second, want: actWait},
		{name: "the deadline has passed", in: told, at: 100*second + 100*time.Millisecond, want: actTerm, kill: 104 * second},
		{name: "the deadline and more has passed", in: told, at: 102 * second, want: actTerm, kill: 104 * second},
		{name: "long after the deadline", in: told, at: 104 * second, want: actKill},
		{name: "the deadline was moved", in: told + "until 200000000000\n", at: 110 * second, want: actWait},
		{name: "a torn line moves nothing", in: told + "until 20000000000", at: 110 * second, want: actKill},
		{name: "lockctl dies", in: told, eof: true, at: 50 * second, want: actTerm, kill: 54 * second},
		{name: "lockctl dies in the middle of done", in: told + "don", eof: true, at: 50 * second, want: actTerm, kill: 54 * second},
		{name: "lockctl dies after the command", in: told, eof: true, gone: true, at: 50 * second, want: actEnd},
		{name: "lockctl dies after the deadline", in: told, eof: true, at: 101 * second, want: actTerm, kill: 104 * second},
		{name: "done", in: told + "done\n", at: 50 * second, want: actEnd},
		{name: "done, then the end, late", in: told + "done\n", eof: true, at: 500 * second, want: actEnd},
		{name: "lockctl is stopping the command", in: told + "stopping 60000000000\n", at: 59 * second, want: actWait, kill: 60 * second},
		{name: "but does not kill it", in: told + "stopping 60000000000\n", at: 60 * second, want: actKill},
		{name: "it dies while it stops the command", in: told + "stopping 60000000000\n", eof: true, at: 59 * second, want: actWait, kill: 60 * second},
		{name: "it has stopped the command", in: told + "stopping 60000000000\n", gone: true, at: 59 * second, want: actEnd},
		{name: "garbage", in: told + "hello\n", at: 50 * second, want: actTerm, kill: 54 * second},
		{name: "garbage before the start", in: "\x00\xff\n", at: 50 * second, want: actEnd},
		{name: "no line at all", in: told + strings.Repeat("x", 65), at: 50 * second, want: actTerm, kill: 54 * second},
		{name: "nobody's group", in: "until 100000000000\nguard 0\n", at: 1, want: actEnd},
		{name: "everybody's group", in: "until 100000000000\nguard -1\n", at: 1, want: actEnd},
		{name: "init's group", in: "until 100000000000\nguard 1\n", at: 1, want: actEnd},
		{name: "another group", in: told + "guard 4712\n", at: 50 * second, want: actTerm, kill: 54 * second},
		{name: "a group without a deadline", in: "guard 4711\n", at: 50 * second, want: actKill},
		{name: "a deadline that is none", in: told + "until soon\n", at: 50 * second, want: actTerm, kill: 54 * second},
		{name: "a deadline too large", in: told + "until 99999999999999999999\n", at: 50 * second, want: actTerm, kill: 54 * second},
		{name: "done with more", in: told + "done it\n", at: 50 * second, want: actTerm, kill: 54 * second},
	} {
		// However the bytes arrive.
		for _, cut := range []int{1, 7, len(row.in) + 1} {
			w := newWatch(4 * second)
			for piece := range slices.Chunk([]byte(row.in), cut) {
				w.feed(piece)
			}
			if row.eof {
				w.end()
			}
			if got := w.decide(row.at, !row.gone); got != row.want {
				t.Errorf("%s (%d at a time): act %d, want %d", row.name, cut, got, row.want)
				continue
			}
			if row.kill == 0 {
				continue
			}
			if got := w.decide(row.kill-1, true); got != actWait {
				t.Errorf("%s: act %d before KILL is due", row.name, got)
			}
			if got := w.sleep(row.kill - 1); got > 1 {
				t.Errorf("%s: sleeps for %v before KILL is due", row.name, got)
			}
			if got := w.decide(row.kill, true); got != actKill {
				t.Errorf("%s: act %d when KILL is due", row.name, got)
			}
		}
	}
}

// What lockctl waits for is answered; nothing is after garbage.
func TestWatchAnswers(t *testing.T) {
	w := newWatch(second)
	var got []string
	for _, piece := range []string{"unt", "il 5\nguard 77\nuntil", " 6\nstopping 9\ndo", "ne\nhello\nuntil 7\n"} {
		got = append(got, w.feed([]byte(piece))...)
	}
	if want := []string{"until 5", "guard 77", "until 6"}; !slices.Equal(got, want) {
		t.Errorf("answers %q, want %q", got, want)
	}
	if w.broken == nil {
		t.Error("garbage passes")
	}
}

// Once the watchdog has begun to stop the group, nothing but its end calls it
// off: a lockctl that thaws knows less than it thinks.
func TestWatchIsNotCalledOff(t *testing.T) {
	w := newWatch(4 * second)
	w.feed([]byte("until 100000000000\nguard 4711\n"))
	if got := w.decide(101*second, true); got != actTerm {
		t.Fatalf("act %d", got)
	}
	if got := w.feed([]byte("until 200000000000\nstopping 190000000000\ndone\n")); len(got) > 0 {
		t.Errorf("it answers %q, as if it still guarded", got)
	}
	if got := w.decide(102*second, true); got != actWait {
		t.Errorf("act %d", got)
	}
	if got := w.decide(104*second, true); got != actKill {
		t.Errorf("act %d when KILL is due", got)
	}
}

// FuzzWatch: whatever is said, a group that was named gets KILL at the latest
// stop after the last deadline, or was said to be done.
func FuzzWatch(f *testing.F) {
	fuzzing.Seed(f, "life", []byte("until 100\nguard 4711\nuntil 200\nstopping 300\ndone\n"), false)
	fuzzing.Seed(f, "torn", []byte("guard 4711\nuntil"), true)
	fuzzing.Seed(f, "everybody", []byte("guard -1\n"), true)
	f.Fuzz(func(t *testing.T, in []byte, eof bool) {
		w := newWatch(second)
		for _, a := range w.feed(in) {
			if len(a) > lineMax {
				t.Fatalf("answer %q", a)
			}
		}
		if eof {
			w.end()
		}
		if w.group < 0 || w.group == 1 {
			t.Fatalf("it guards %d", w.group)
		}
		last := max(w.deadline, w.killAt)
		var got act
		for _, at := range []time.Duration{0, last, last + second, last + 2*second} {
			if got = w.decide(max(at, 0), true); got == actEnd || got == actKill {
				break
			}
		}
		if w.group > 0 && got != actKill && !w.done {
			t.Fatalf("act %d long after the deadline of %d", got, w.group)
		}
	})
}

// dogRig is a watchdog process alone, and a group for it to guard: a shell with
// a child that ignores TERM.
type dogRig struct {
	t     *testing.T
	to    *os.File
	from  io.Reader
	dog   *exec.Cmd
	group int
}

func newDog(t *testing.T, stop time.Duration) *dogRig {
	t.Helper()
	r, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	dog := exec.Command(self(), watchdogCommand, strconv.FormatInt(int64(stop), 10), "/l")
	dog.Stdin, dog.Stderr = r, os.Stderr
	from, err := dog.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := dog.Start(); err != nil {
		t.Fatal(err)
	}
	up := filepath.Join(t.TempDir(), "up")
	sh := exec.Command("sh", "-c", "(trap '' TERM; : > "+up+"; while :; do sleep 0.1; done) & wait")
	sh.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	group := sh.Process.Pid
	t.Cleanup(func() {
		_ = to.Close()
		_ = syscall.Kill(-group, syscall.SIGKILL)
		_ = dog.Process.Kill()
		_ = sh.Wait()
	})
	eventually(t, "the group is up", func() bool { _, err := os.Stat(up); return err == nil })
	return &dogRig{t: t, to: to, from: from, dog: dog, group: group}
}

func (d *dogRig) tell(line string) {
	d.t.Helper()
	if _, err := d.to.WriteString(line); err != nil {
		d.t.Fatal(err)
	}
}

// hear reads one answer.
func (d *dogRig) hear() string {
	d.t.Helper()
	var line []byte
	for {
		var b [1]byte
		if _, err := d.from.Read(b[:]); err != nil {
			d.t.Fatalf("the watchdog does not answer: %v", err)
		}
		if b[0] == '\n' {
			return string(line)
		}
		line = append(line, b[0])
	}
}

func (d *dogRig) ends() {
	d.t.Helper()
	within(d.t, "the watchdog does not end", func() { _ = d.dog.Wait() })
}

func (d *dogRig) guard(deadline time.Duration) {
	d.t.Helper()
	if got := d.hear(); got != lineReady {
		d.t.Fatalf("it says %q", got)
	}
	until, group := "until "+strconv.FormatInt(int64(deadline), 10), "guard "+strconv.Itoa(d.group)
	d.tell(until + "\n" + group + "\n")
	if a, b := d.hear(), d.hear(); a != until || b != group {
		d.t.Fatalf("it answers %q, %q", a, b)
	}
}

// The process itself: by deadline, by the end of the pipe, by garbage.
func TestWatchdogKills(t *testing.T) {
	for name, f := range map[string]func(d *dogRig){
		"deadline": func(d *dogRig) { d.guard(clock.Now() + 300*time.Millisecond) },
		"end of the pipe": func(d *dogRig) {
			d.guard(clock.Now() + time.Hour)
			_ = d.to.Close()
		},
		"end of the pipe in a line": func(d *dogRig) {
			d.guard(clock.Now() + time.Hour)
			d.tell("until 999999")
			_ = d.to.Close()
		},
		"garbage": func(d *dogRig) {
			d.guard(clock.Now() + time.Hour)
			d.tell("\x00\x01\x02\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDog(t, 200*time.Millisecond)
			began := clock.Now()
			f(d)
			d.ends()
			if groupLives(d.group) {
				t.Error("the group lives on")
			}
			if took := clock.Now() - began; took < 200*time.Millisecond {
				t.Errorf("KILL %v after the cause, TERM needs time to work", took)
			}
		})
	}
}

// What must not kill: done, the end before a group was named, a deadline that is
// moved in time, and a watchdog that was frozen over a deadline that had been
// moved meanwhile.
func TestWatchdogSpares(t *testing.T) {
	for name, f := range map[string]func(d *dogRig){
		"done": func(d *dogRig) {
			d.guard(clock.Now() + time.Hour)
			d.tell("done\n")
		},
		"end before the start": func(d *dogRig) {
			if got := d.hear(); got != lineReady {
				d.t.Fatalf("it says %q", got)
			}
			d.tell("until 99\nguard " + strconv.Itoa(d.group))
			_ = d.to.Close()
		},
		"frozen over a deadline": func(d *dogRig) {
			d.guard(clock.Now() + time.Hour)
			d.signal(syscall.SIGSTOP)
			d.tell("until 1\nuntil " + strconv.FormatInt(int64(clock.Now()+time.Hour), 10) + "\n")
			d.signal(syscall.SIGCONT)
			d.hear()
			d.hear()
			d.tell("done\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDog(t, 0)
			f(d)
			d.ends()
			if !groupLives(d.group) {
				t.Error("the group was killed")
			}
		})
	}
}

func (d *dogRig) signal(sig syscall.Signal) {
	d.t.Helper()
	if err := d.dog.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
}
