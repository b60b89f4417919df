package paxos_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/paxos"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcripts in testdata say now into them")

// TestTranscripts plays testdata/*.txt. A file is a header that draws the
// scenario, a script, a line "----" and what is said and believed when the
// script is played. The commands are in the table in script_test.go.
//
// In a transcript
//
//	1>2 accept b2.1 chosen 1 3=[a]   is a message that leaves; 3=[a] is slot 3 with command a,
//	                                 3=[a]@b1.1 as accepted at another ballot, 3=[a]! known chosen;
//	2 owes 1>...                     a message that waits for the flush of 2;
//	2: follower of 1 at b2.1 ...     is what 2 believes, when it has changed;
//	2 learns 3=[a]                   a slot that 2 reports chosen.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { playFile(t, f) })
	}
}

func playFile(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	script, want, ok := strings.Cut(string(text), "----\n")
	if !ok && !*rewrite {
		t.Fatalf("%s has no line ----; -rewrite adds it", file)
	}
	got, err := play(script)
	if err != nil {
		t.Fatalf("%v\n%s", err, got)
	}
	if got == want {
		return
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(script+"----\n"+got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	i := 0
	for i < len(g) && i < len(w) && g[i] == w[i] {
		i++
	}
	t.Errorf("line %d below ---- differs (go test ./paxos -run Transcripts -rewrite records the new text)\nwant: %s\n got: %s\n\nall of it:\n%s",
		i+1, slices.Concat(w, []string{"(end)"})[i], slices.Concat(g, []string{"(end)"})[i], got)
}

// play runs a script and returns its transcript.
func play(script string) (out string, err error) {
	p := &player{believes: make(map[paxos.ReplicaID]string)}
	line := ""
	defer func() {
		if v := recover(); v != nil {
			out, err = p.out.String(), fmt.Errorf("%q: %v", line, v)
		}
	}()
	for line = range strings.Lines(script) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			if line != "" && p.c != nil {
				fmt.Fprintf(&p.out, "%s\n", line)
			}
			continue
		}
		fmt.Fprintf(&p.out, "> %s\n", line)
		words := strings.Fields(line)
		do, ok := commands[words[0]]
		if !ok {
			return p.out.String(), fmt.Errorf("%q: no such command", line)
		}
		if err := do(p, words[1:]); err != nil {
			return p.out.String(), fmt.Errorf("%q: %w", line, err)
		}
		p.beliefs(false)
	}
	return p.out.String(), nil
}

// player plays a script; it is the watcher of its cell.
type player struct {
	c        *cell
	out      strings.Builder
	quiet    bool // messages are not shown
	late     []*packet
	wrote    int // commands of writes
	believes map[paxos.ReplicaID]string
}

func (p *player) say(format string, args ...any) { fmt.Fprintf(&p.out, "  "+format+"\n", args...) }

func (p *player) sent(m *paxos.Message) {
	if !p.quiet {
		p.say("%s", messageText(m))
	}
}

func (p *player) lost(m *paxos.Message, why string) {
	if !p.quiet {
		p.say("%s  LOST (%s)", messageText(m), why)
	}
}

func (p *player) took(n *node, e *paxos.Effects) {
	if n.slow && !p.quiet {
		if e.Record != nil {
			p.say("%d owes flush %d: %s", n.id, e.Sequence, recordText(e.Record))
		}
		for i := range e.After {
			p.say("%d owes %s", n.id, messageText(&e.After[i]))
		}
	}
	if len(e.Chosen) > 0 {
		p.say("%d learns%s", n.id, strings.ReplaceAll(entriesText(e.Chosen, paxos.Ballot{}), "!", ""))
	}
	for _, r := range e.Confirmed {
		p.say("%d confirms read %d as of %v at slot %d", n.id, r.ID, r.Since, r.Slot)
	}
	for _, d := range e.Dropped {
		p.say("%d drops %s", n.id, d)
	}
	for _, r := range e.ReadLog {
		p.say("%d reads its log from slot %d for %d", n.id, r.From, r.To)
	}
	if e.NeedSnapshot != 0 {
		p.say("%d needs a snapshot from %d", n.id, e.NeedSnapshot)
	}
}

// beliefs shows what each replica believes, if it has changed or all is set.
func (p *player) beliefs(all bool) {
	if p.c == nil {
		return
	}
	var who []string // replicas that believe the same, in the order of their IDs
	var texts []string
	for _, n := range p.c.nodes {
		text := belief(n)
		if !all && text == p.believes[n.id] {
			continue
		}
		p.believes[n.id] = text
		if i := slices.Index(texts, text); i >= 0 {
			who[i] += fmt.Sprintf(", %d", n.id)
			continue
		}
		who, texts = append(who, fmt.Sprint(n.id)), append(texts, text)
	}
	for i, text := range texts {
		p.say("%s: %s", who[i], text)
	}
}

func belief(n *node) string {
	if n.r == nil {
		return "down"
	}
	s := n.r.Status()
	var text string
	switch {
	case s.Role == paxos.Follower && s.Leader != 0:
		text = fmt.Sprintf("follower of %d at %v", s.Leader, s.Ballot)
	case s.Role == paxos.Follower:
		text = "follower of nobody"
	default:
		text = fmt.Sprintf("%v at %v", s.Role, s.Ballot)
	}
	return fmt.Sprintf("%s, promised %v, chosen %d, accepted %d", text, s.Promised, s.Chosen, s.Last)
}
