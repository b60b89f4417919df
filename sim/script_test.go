package sim

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScripts plays every script in testdata.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil || len(files) < 15 {
		t.Fatalf("there are %d scripts in testdata (%v)", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".script"), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			script, err := ParseScript(string(text))
			if err != nil {
				t.Fatal(err)
			}
			if r := RunScript(script, Options{}); r.Failure != nil {
				t.Errorf("%v\n  see what happened with: go run ./sim/cmd/sim -script sim/%s -v", r.Failure, file)
			}
		})
	}
}

// TestScriptsRunTheSameEachTime: the same script gives the same story.
func TestScriptsRunTheSameEachTime(t *testing.T) {
	script := mustParse(t, "start 3\nc1 acquire l\nwrite x 1\nkill master\nexpect progress\nc1 release l\nexpect x 1")
	var a, b bytes.Buffer
	first, second := RunScript(script, Options{Story: &a}), RunScript(script, Options{Story: &b})
	if first.Failure != nil {
		t.Fatal(first.Failure)
	}
	if first.Trace != second.Trace || !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Errorf("two runs of a script differ: traces %016x and %016x", first.Trace, second.Trace)
	}
}

// TestScriptsCanFail: what a script expects and does not get fails, and says
// where and what there is instead.
func TestScriptsCanFail(t *testing.T) {
	for _, c := range []struct{ script, wants string }{
		{"start 3\nwrite x 1\nexpect x 2", "line 3 (expect x 2): it is 1"},
		{"start 3\nwrite x 1\nexpect x missing", "line 3 (expect x missing): it is 1"},
		{"start 3; expect y 1", "line 1 (expect y 1): it is missing"},
		{"start 3\nkill all\nexpect master within 1s", "there is no master"},
		{"start 3\nexpect no master within 1s", "is master"},
		{"start 3\nlet m = master\nexpect master not m within 1s", "is master"},
		{"start 3\nkill 0,1\nexpect progress within 3s", "has no answer"},
		{"start 3\nwrite x 1 &\nexpect no progress for 1s", "slots were chosen"},
		{"start 3\nkill 0\nexpect 0 up within 1s", "n0 is down"},
		{"start 3\nexpect 0 down within 1s", "n0 runs"},
		{"start 3\nexpect 0 refuses damaged within 1s", "n0 does not refuse"},
		{"start 3\nkill 0; damage 0 first-record; start 0\nexpect 0 refuses doubtful within 1s", "n0 refuses as damaged"},
		{"start 3\nexpect 0 installs snapshot within 1s", "n0 has installed no snapshot"},
		{"start 3\nexpect 0 notes torn within 1s", "n0 started with the notes"},
		{"start 3\nlet f = follower\npartition f from rest\nwrite x 1\nexpect equal within 1s", "has applied slot"},
		{"start 3\nc1 acquire l\nexpect c2 holds l within 1s", "c2 does not hold l"},
		{"start 3\nc1 acquire l\nexpect c1 lost l within 1s", "c1 has not lost l"},
		{"start 3\nc1 acquire l\nexpect c2 waits l within 1s", "c2 does not wait for l"},
		{"start 3\nc1 acquire l\nexpect l held by c2 within 1s", "c2 is none"},
		{"start 3\nc1 acquire l\nexpect l free within 1s", "it has 1 holders"},
		{"start 3\nc1 acquire l\nc2 acquire l &\nwait 1s\nexpect c2 answered within 1s", "1 calls of c2 have no answer"},
		{"start 3\nexpect c1 unanswered within 1s", "all calls of c1 are answered"},
		{"start 3\nexpect c1 jeopardy within 1s", "the session of c1 is live"},
		{"start 3\nexpect c1 expired within 1s", "no session of c1 has expired"},
		{"start 3\nc1 acquire l try\nexpect c1 answer HELD within 1s", `the last answer of c1 was "GRANTED"`},
		{"start 3\nkill 0\nkill 0", "line 3 (kill 0): n0 does not run"},
		{"start 3\nstart 0", "line 2 (start 0): n0 runs already"},
		{"start 3\ndamage 0 mark", "n0 runs; stop it first"},
		{"start 3\nwipe 0", "n0 runs; stop it first"},
		{"start 3\nkill 0; damage 0 snapshot", "n0 has no snapshot to damage"},
		{"start 3\nkill all\nfreeze master", "there is no master now"},
		{"start 3\nrelease l", "c1 does not hold l"},
		{"start 3\npartition 0 from 0,1", "n0 cannot be cut off from itself"},
		{"start 3\nlet m = followers", "m would name 2 replicas"},
	} {
		r := RunScript(mustParse(t, c.script), Options{})
		if r.Failure == nil || r.Failure.Check != "script" || !strings.Contains(r.Failure.Text, c.wants) {
			t.Errorf("%q ended with %v, not with %q", c.script, r.Failure, c.wants)
		}
	}
}

func mustParse(t *testing.T, text string) *Script {
	t.Helper()
	s, err := ParseScript(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return s
}

// TestParseScriptNamesTheMistake: line, word, and what would be right.
func TestParseScriptNamesTheMistake(t *testing.T) {
	for _, c := range []struct {
		script     string
		line, word int
		wants      string
	}{
		{"", 1, 0, "founds no cell"},
		{"# nothing\n", 2, 0, "founds no cell"},
		{"write x 1", 1, 1, "first a cell has to be founded"},
		{"start", 1, 2, "the number of replicas is missing"},
		{"start 0", 1, 2, "1 to 9"},
		{"start ten", 1, 2, "1 to 9"},
		{"start 3 4", 1, 3, "nothing more"},
		{"start 3\n\n demage 0 mark", 3, 1, "no such command: it is one of advance,"},
		{"start 3; kill 0; demage 0 mark", 1, 5, "no such command"},
		{"start 3\nkill", 2, 2, "is missing"},
		{"start 3\nkill 3", 2, 2, "0 to 2"},
		{"start 3\nkill 0,x", 2, 2, "is expected here"},
		{"start 3\ndamage 0", 2, 3, "part of a disk is missing: one of last-record,"},
		{"start 3\ndamage 0 records", 2, 3, "no such part of a disk"},
		{"start 3\ndamage c1 mark", 2, 2, "a replica"},
		{"start 3\nwait", 2, 2, "a time like 300ms or 5s is missing"},
		{"start 3\nwait 5", 2, 2, "a time like 300ms or 5s"},
		{"start 3\nwait -5s", 2, 2, "a time like"},
		{"start 3\nwait 5000h", 2, 2, "an hour at most"},
		{"start 3\nwrite x", 2, 3, "the value is missing"},
		{"start 3\nwrite master 1", 2, 2, "no word of the language"},
		{"start 3\nwrite 1x 1", 2, 2, "letters and digits"},
		{"kill 0\nstart 3", 1, 1, "first a cell has to be founded"},
		{"start 3\nc2 kill 0", 2, 2, "no such command of a client"},
		{"start 3\nc2", 2, 2, "no such command of a client"},
		{"start 3\nc12 write x 1", 2, 1, "no such command"},
		{"start 3\nacquire l softly", 2, 3, "no such way to acquire"},
		{"start 3\nfail 0 read", 2, 3, "no such operation of the disk"},
		{"start 3\npower-cut 0 keeping half", 2, 4, "no such part of what is not flushed"},
		{"start 3\npartition 0 to 1", 2, 3, `"from" is expected`},
		{"start 3\none-way 0 from 1", 2, 3, `"to" is expected`},
		{"start 3\nlet m master", 2, 3, `"=" is expected`},
		{"start 3\nset lease 3s", 2, 1, "settings come before"},
		{"set least 3s\nstart 3", 1, 2, "no such setting"},
		{"start 3\nexpect", 2, 2, "is missing"},
		{"start 3\nexpect x", 2, 3, "the value, or missing is missing"},
		{"start 3\nexpect x 1 soon", 2, 4, "nothing more"},
		{"start 3\nexpect x 1 within", 2, 5, "a time like"},
		{"start 3\nexpect 0 refuses politely", 2, 4, "no such reason"},
		{"start 3\nexpect l held by 0", 2, 5, "a client"},
		{"start 3\nexpect no quarter", 2, 3, "no such thing"},
		{"start 3\nexpect no progress 3s", 2, 4, `"for" is expected`},
		{"start 3\nexpect master not", 2, 4, "is missing"},
		{"start 3\nexpect c1 happy", 2, 3, "no such state of a client"},
	} {
		s, err := ParseScript(c.script)
		var e *ScriptError
		if s != nil || !errors.As(err, &e) {
			t.Errorf("%q is taken for a script: %v", c.script, err)
			continue
		}
		if e.Line != c.line || e.Word != c.word || !strings.Contains(e.Text, c.wants) {
			t.Errorf("%q: %v; line %d, word %d and %q are wanted", c.script, err, c.line, c.word, c.wants)
		}
		if !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: the message names no line: %v", c.script, err)
		}
	}
}

// FuzzParseScript: whatever stands in a script, reading it gives a script or a
// mistake with its place.
func FuzzParseScript(f *testing.F) {
	files, err := filepath.Glob("testdata/*.script")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseScript(text)
		var e *ScriptError
		if (s == nil) == (err == nil) || (err != nil && (!errors.As(err, &e) || e.Line < 1)) {
			t.Fatalf("script %v, error %v", s, err)
		}
	})
}
