package paxos_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

var rewrite = flag.Bool("rewrite", false, "write what the transcripts in testdata say now into them")

// TestTranscripts plays testdata/*.txt. A file is a header that draws the
// scenario, a script, a line "----" and what is said and believed when the
// script is played. The commands are in the table below.
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

// commands of the scripts.
var commands = map[string]func(p *player, args []string) error{
	"cluster":  (*player).cluster,  // cluster N [empty]: N replicas, the configuration chosen in slot 1 (or nothing)
	"disk":     (*player).diskMode, // disk N slow|fast: slow flushes only at persist
	"persist":  (*player).persist,  // persist N: all that N owes is flushed
	"deliver":  (*player).deliver,  // deliver [A>B]: what is under way now arrives, in order, as one batch a receiver
	"reverse":  (*player).reverse,  // reverse A>B: what is under way arrives last first, a batch each
	"dup":      (*player).dup,      // dup [A>B]: what is under way arrives, and stays under way
	"drop":     (*player).drop,     // drop [A>B]: what is under way is lost
	"hold":     (*player).hold,     // hold A>B: what is under way is late, until release
	"release":  (*player).release,  // release: what was held is under way again
	"settle":   (*player).settle,   // settle: deliver until nothing is under way
	"cut":      (*player).cutLink,  // cut A>B...: what A sends to B is lost from now on
	"heal":     (*player).heal,     // heal: no link is cut any more
	"tick":     (*player).tick,     // tick D: time passes in steps of 20 ms, nothing arrives
	"wait":     (*player).wait,     // wait D: time passes, nothing arrives and nobody is told
	"run":      (*player).run,      // run D: time passes and everything arrives at once; messages are not shown
	"crash":    (*player).crash,    // crash N: what it owes is lost
	"restart":  (*player).restart,  // restart N: from its disk
	"campaign": (*player).campaign, // campaign N
	"elect":    (*player).elect,    // elect N: N campaigns, wins and all know it; nothing is shown of it
	"found":    (*player).found,    // found N: N proposes the configuration
	"propose":  (*player).propose,  // propose N CMD...
	"read":     (*player).read,     // read N ID: N is to confirm that it leads
	"handover": (*player).handover, // handover N [TO]
	"log":      (*player).log,      // log N: the reads of its log that N wants are answered
	"snapshot": (*player).snapshot, // snapshot N [KEEP]: N writes one and trims its log, but for KEEP slots
	"install":  (*player).install,  // install N: the snapshot that N needs arrives
	"status":   (*player).status,   // status: what everybody believes
}

var errUsage = errors.New("wrong arguments")

// nodeArg returns the running or stopped replica that args[0] names.
func (p *player) nodeArg(args []string, up bool) (*node, error) {
	if len(args) == 0 || p.c == nil {
		return nil, errUsage
	}
	id, err := strconv.Atoi(args[0])
	if err != nil || id < 1 || id > len(p.c.nodes) {
		return nil, errUsage
	}
	n := p.c.node(paxos.ReplicaID(id))
	if (n.r != nil) != up {
		return nil, fmt.Errorf("replica %d: wrong state for this", id)
	}
	return n, nil
}

// give gives a replica one event as a batch of its own.
func (p *player) give(args []string, ev paxos.Event) error {
	n, err := p.nodeArg(args, true)
	if err != nil {
		return err
	}
	p.c.step(n, ev)
	p.c.take(n)
	return nil
}

// links parses A>B arguments; none stands for all links.
func links(args []string) (func(a, b paxos.ReplicaID) bool, error) {
	set := make(map[[2]paxos.ReplicaID]bool)
	for _, s := range args {
		var l [2]paxos.ReplicaID
		if _, err := fmt.Sscanf(s, "%d>%d", &l[0], &l[1]); err != nil {
			return nil, errUsage
		}
		set[l] = true
	}
	return func(a, b paxos.ReplicaID) bool { return len(set) == 0 || set[[2]paxos.ReplicaID{a, b}] }, nil
}

// underWay returns the messages on the links, in order.
func (p *player) underWay(args []string) ([]*packet, error) {
	on, err := links(args)
	if err != nil {
		return nil, err
	}
	var out []*packet
	for _, k := range p.c.net {
		if on(k.m.From, k.m.To) {
			out = append(out, k)
		}
	}
	return out, nil
}

func (p *player) cluster(args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	n, err := strconv.Atoi(args[0])
	if err != nil || n < 1 || n > 9 {
		return errUsage
	}
	// The memory holds four small slots, so that catch-up goes to the disk soon.
	p.c = newCell(n, len(args) == 1, paxos.Options{MemoryBytes: 300}, nil)
	p.c.show = p
	return nil
}

func (p *player) diskMode(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil || len(args) != 2 {
		return errUsage
	}
	n.slow = args[1] == "slow"
	return nil
}

func (p *player) persist(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil {
		return err
	}
	p.c.persist(n, len(n.owed))
	p.c.take(n)
	return nil
}

func (p *player) deliver(args []string) error { return p.arrive(args, false) }

func (p *player) dup(args []string) error { return p.arrive(args, true) }

func (p *player) arrive(args []string, keep bool) error {
	list, err := p.underWay(args)
	if err != nil {
		return err
	}
	for _, k := range list {
		p.c.deliver(slices.Index(p.c.net, k), keep)
	}
	p.c.takeAll()
	return nil
}

func (p *player) reverse(args []string) error {
	list, err := p.underWay(args)
	if err != nil {
		return err
	}
	for _, k := range slices.Backward(list) {
		p.c.deliver(slices.Index(p.c.net, k), false)
		p.c.takeAll()
	}
	return nil
}

func (p *player) drop(args []string) error {
	list, err := p.underWay(args)
	if err != nil {
		return err
	}
	for _, k := range list {
		p.lost(&k.m, "drop")
	}
	p.c.net = slices.DeleteFunc(p.c.net, func(k *packet) bool { return slices.Contains(list, k) })
	return nil
}

func (p *player) hold(args []string) error {
	list, err := p.underWay(args)
	p.late = append(p.late, list...)
	p.c.net = slices.DeleteFunc(p.c.net, func(k *packet) bool { return slices.Contains(list, k) })
	return err
}

func (p *player) release([]string) error {
	p.c.net = append(p.c.net, p.late...)
	p.late = nil
	return nil
}

func (p *player) settle([]string) error {
	for round := 0; len(p.c.net) > 0; round++ {
		if round == 100 {
			return errors.New("they never stop talking")
		}
		if err := p.arrive(nil, false); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) cutLink(args []string) error {
	for _, s := range args {
		var l [2]paxos.ReplicaID
		if _, err := fmt.Sscanf(s, "%d>%d", &l[0], &l[1]); err != nil {
			return errUsage
		}
		p.c.cut[l] = true
	}
	return nil
}

func (p *player) heal([]string) error {
	clear(p.c.cut)
	return nil
}

func (p *player) tick(args []string) error { return p.pass(args, false) }

func (p *player) wait(args []string) error {
	if len(args) != 1 {
		return errUsage
	}
	d, err := time.ParseDuration(args[0])
	p.c.now += d
	return err
}

func (p *player) run(args []string) error {
	p.quiet = true
	defer func() { p.quiet = false }()
	return p.pass(args, true)
}

func (p *player) pass(args []string, deliver bool) error {
	if len(args) != 1 {
		return errUsage
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	for end := p.c.now + d; p.c.now < end; {
		p.c.tick(min(20*time.Millisecond, end-p.c.now))
		p.c.takeAll()
		if deliver {
			if err := p.settle(nil); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *player) crash(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil {
		return err
	}
	for _, o := range n.owed {
		p.say("%d loses flush %d", n.id, o.sequence)
	}
	p.c.crash(n, 0)
	return nil
}

func (p *player) restart(args []string) error {
	n, err := p.nodeArg(args, false)
	if err != nil {
		return err
	}
	p.c.start(n)
	return nil
}

func (p *player) campaign(args []string) error { return p.give(args, paxos.Campaign{}) }

func (p *player) elect(args []string) error {
	p.quiet = true
	defer func() { p.quiet = false }()
	if err := p.campaign(args); err != nil {
		return err
	}
	if err := p.settle(nil); err != nil {
		return err
	}
	return p.pass([]string{"100ms"}, true)
}

func (p *player) found(args []string) error {
	return p.give(args, paxos.ProposeConfig{Configuration: members(len(p.c.nodes))})
}

func (p *player) propose(args []string) error {
	if len(args) < 2 {
		return errUsage
	}
	var cmds [][]byte
	for _, a := range args[1:] {
		cmds = append(cmds, []byte(a))
	}
	return p.give(args, paxos.Propose{Commands: cmds})
}

func (p *player) read(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil || len(args) != 2 {
		return errUsage
	}
	id, err := strconv.ParseUint(args[1], 10, 64)
	if err != nil {
		return err
	}
	p.c.hist.asked(p.c, n, id)
	return p.give(args, paxos.ConfirmRead{ID: id})
}

func (p *player) handover(args []string) error {
	var to paxos.ReplicaID
	if len(args) == 2 {
		n, err := p.nodeArg(args[1:], true)
		if err != nil {
			return err
		}
		to = n.id
	}
	return p.give(args, paxos.Handover{To: to})
}

func (p *player) log(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil {
		return err
	}
	if len(n.reads) == 0 {
		return errors.New("it reads nothing")
	}
	for len(n.reads) > 0 {
		p.c.answerRead(n)
	}
	p.c.take(n)
	return nil
}

func (p *player) snapshot(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil {
		return err
	}
	keep := 0
	if len(args) == 2 {
		if keep, err = strconv.Atoi(args[1]); err != nil {
			return err
		}
	}
	p.c.snapshot(n, paxos.Slot(keep))
	p.c.take(n)
	p.say("%d has a snapshot at slot %d and its log from slot %d", n.id, n.disk.snapshot, n.disk.first)
	return nil
}

func (p *player) install(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil {
		return err
	}
	if n.needs == 0 || !p.c.install(n) {
		return errors.New("it needs none, or its peer has none")
	}
	p.c.take(n)
	return nil
}

func (p *player) status([]string) error {
	p.beliefs(true)
	return nil
}
