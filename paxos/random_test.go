package paxos_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
	"pgregory.net/rapid"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "the one seed that TestSeeds is to run, with its transcript")
	seedsFlag = flag.Uint64("seeds", 500, "how many seeds TestSeeds runs")
)

// TestRapid looks for a schedule that breaks a promise, and makes it shorter.
func TestRapid(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("%d replicas", n), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				below := make(map[int]*rapid.Generator[int])
				choose := func(n int) int {
					g := below[n]
					if g == nil {
						g = rapid.IntRange(0, n-1)
						below[n] = g
					}
					return g.Draw(t, "choice")
				}
				if _, err := runSchedule(n, choose, 250, nil); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// TestSeeds runs many more schedules than TestRapid can, each from a seed.
func TestSeeds(t *testing.T) {
	if *seedFlag != 0 {
		p := &player{believes: make(map[paxos.ReplicaID]string)}
		_, err := runSeed(*seedFlag, p)
		t.Log(p.out.String())
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	var thrift paxos.ThriftCounts
	for seed := uint64(1); seed <= *seedsFlag; seed++ {
		c, err := runSeed(seed, nil)
		if err != nil {
			t.Fatalf("seed %d (go test ./paxos -run TestSeeds -seed %d -v shows it): %v", seed, seed, err)
		}
		thrift.HeldBack += c.thrift.HeldBack
		thrift.Hedged += c.thrift.Hedged
		thrift.Misses += c.thrift.Misses
	}
	t.Logf("thrift: %+v", thrift)
	if thrift.HeldBack == 0 || thrift.Hedged == 0 || thrift.Misses == 0 {
		t.Errorf("leaders were never thrifty: %+v", thrift)
	}
}

// TestSameSeedSameRun: the same events give the same effects, to the byte.
func TestSameSeedSameRun(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		var out [2]string
		for i := range out {
			p := &player{believes: make(map[paxos.ReplicaID]string)}
			if _, err := runSeed(seed, p); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			out[i] = p.out.String()
		}
		if out[0] != out[1] {
			t.Fatalf("seed %d runs in two ways:\n%s", seed, firstDifference(out[0], out[1]))
		}
		if !strings.Contains(out[0], "learns") {
			t.Fatalf("seed %d: the transcript shows nothing chosen", seed)
		}
	}
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := 0; i < len(x) && i < len(y); i++ {
		if x[i] != y[i] {
			return fmt.Sprintf("line %d: %s\nline %d: %s", i+1, x[i], i+1, y[i])
		}
	}
	return "one goes on where the other ends"
}

func runSeed(seed uint64, p *player) (*cell, error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	return runSchedule([]int{3, 3, 5, 1}[seed%4], rng.IntN, 400, p)
}

// runSchedule plays a schedule of the given length in a cell of n replicas,
// then lets the faults stop and wants progress. It returns what went wrong.
func runSchedule(n int, choose func(n int) int, steps int, p *player) (c *cell, err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case violation:
			err = fmt.Errorf("%s", string(v))
		case string, runtime.Error: // an invariant, or a plain bug
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
		default:
			panic(v) // of whoever chooses: rapid ends a run in this way
		}
	}()
	s := &schedule{choose: choose}
	// Small limits, so that one proposal fills several slots, windows close
	// and catch-up goes to the disk.
	small := paxos.Options{
		WindowSlots: []int{16, 4, 2}[choose(3)],
		BatchBytes:  []int{200, 8}[choose(2)],
		MemoryBytes: []int{300, 64, 1 << 20}[choose(3)],
		// Short, so that there is thrift in a run.
		EagerTime: []time.Duration{5, 100, 1000}[choose(3)] * time.Millisecond,
	}
	founded := choose(8) != 7
	conf := members(n)
	if n > 3 && founded && choose(4) == 3 { // the last two have no vote
		conf.Members[n-1].Voter, conf.Members[n-2].Voter = false, false
	}
	if p != nil {
		s.c = newCellOf(conf, founded, small, p)
		p.c = s.c
		s.p = p
	} else {
		s.c = newCellOf(conf, founded, small, nil)
	}
	for _, nd := range s.c.nodes {
		nd.slow = true
	}
	// Each run leaves some kinds of action out and has more of others: that
	// leads to states which a run with a bit of everything hardly ever reaches.
	var bag []func(*schedule)
	for _, a := range actions {
		times := 1
		if a.varies {
			times = []int{1, 0, 1, 4}[choose(4)]
		}
		for range a.weight * times {
			bag = append(bag, a.do)
		}
	}
	for i := range steps {
		if i%50 == 0 {
			s.found()
		}
		bag[choose(len(bag))](s)
		if p != nil {
			p.beliefs(false)
		}
	}
	s.calm()
	for _, n := range s.c.nodes {
		s.c.tally(n)
	}
	return s.c, nil
}

// schedule is a run whose every step is chosen.
type schedule struct {
	c        *cell
	p        *player
	choose   func(n int) int
	commands int
	reads    uint64
}

// actions and how often they come; the first is the most harmless one.
var actions = []struct {
	do     func(*schedule)
	weight int
	varies bool
}{
	{(*schedule).smooth, 8, true},
	{(*schedule).deliverOne, 12, false},
	{(*schedule).deliverSome, 8, true},
	{(*schedule).persistOne, 10, false},
	{(*schedule).pass, 10, false},
	{(*schedule).propose, 10, false},
	{(*schedule).due, 6, true},
	{(*schedule).busy, 2, true},
	{(*schedule).read, 4, false},
	{(*schedule).readLog, 4, true},
	{(*schedule).install, 3, true},
	{(*schedule).restart, 4, false},
	{(*schedule).healAll, 3, false},
	{(*schedule).crash, 3, true},
	{(*schedule).dropOne, 5, true},
	{(*schedule).dropAll, 1, true},
	{(*schedule).duplicate, 4, true},
	{(*schedule).cutOne, 3, true},
	{(*schedule).isolate, 1, true},
	{(*schedule).campaign, 3, true},
	{(*schedule).handover, 1, true},
	{(*schedule).snapshot, 2, true},
	{(*schedule).link, 4, true},
}

// pick returns a replica that satisfies ok, or nil.
func (s *schedule) pick(ok func(*node) bool) *node {
	var list []*node
	for _, n := range s.c.nodes {
		if ok(n) {
			list = append(list, n)
		}
	}
	if len(list) == 0 {
		return nil
	}
	return list[s.choose(len(list))]
}

func up(n *node) bool { return n.r != nil }

// maybeTake closes a batch, or leaves it open for what comes next.
func (s *schedule) maybeTake(n *node) {
	if n.r != nil && n.dirty && s.choose(4) != 3 {
		s.c.take(n)
	}
}

// found makes replica 1 found the cell as long as it knows of no founding.
// Whatever happens meanwhile, it may repeat that.
func (s *schedule) found() {
	n := s.c.node(1)
	if n.r == nil || n.r.Status().Chosen > 0 {
		return
	}
	s.c.step(n, paxos.ProposeConfig{Configuration: members(len(s.c.nodes))})
	s.c.step(n, paxos.Campaign{})
	s.maybeTake(n)
}

// smooth: for a moment everything works.
func (s *schedule) smooth() {
	s.c.takeAll()
	for range 3 {
		for _, n := range s.c.nodes {
			if n.r != nil {
				s.c.persist(n, len(n.owed))
			}
		}
		s.c.takeAll()
		for range len(s.c.net) {
			s.c.deliver(0, false)
		}
		s.c.takeAll()
	}
}

func (s *schedule) deliverOne() {
	if len(s.c.net) == 0 {
		s.smooth()
		return
	}
	i := s.choose(len(s.c.net))
	n := s.c.node(s.c.net[i].m.To)
	s.c.deliver(i, false)
	s.maybeTake(n)
}

func (s *schedule) deliverSome() {
	for range min(len(s.c.net), 1+s.choose(8)) {
		s.c.deliver(0, false)
	}
	s.c.takeAll()
}

func (s *schedule) persistOne() {
	if n := s.pick(func(n *node) bool { return n.r != nil && len(n.owed) > 0 }); n != nil {
		s.c.persist(n, len(n.owed)-s.choose(len(n.owed)))
		s.maybeTake(n)
	}
}

func (s *schedule) pass() {
	s.c.tick([]time.Duration{20, 5, 100, 20, 50, 300, 700}[s.choose(7)] * time.Millisecond)
	s.c.takeAll()
}

// due: it is the instant at which a replica has something to do although
// nothing comes.
func (s *schedule) due() {
	n := s.pick(func(n *node) bool { return n.r != nil && n.r.Due(s.c.now) != paxos.Never })
	if n == nil {
		s.smooth()
		return
	}
	s.c.now = max(s.c.now, n.r.Due(s.c.now))
	s.c.take(n)
}

// busy: a leader gets one command after the other, and all goes well, so that it
// learns whom to ask first.
func (s *schedule) busy() {
	n := s.pick(func(n *node) bool { return n.r != nil && n.role.Role == paxos.Leader })
	for range 10 {
		if n == nil || n.r == nil {
			return
		}
		commands := s.fresh(1)
		s.c.hist.given(n, commands)
		s.c.step(n, paxos.Propose{Commands: commands})
		s.smooth()
		s.c.now += time.Millisecond
	}
	s.c.tick(20 * time.Millisecond)
	s.c.takeAll()
}

func (s *schedule) propose() {
	n := s.pick(func(n *node) bool { return n.r != nil && n.role.Role == paxos.Leader })
	if n == nil || s.choose(8) == 7 {
		n = s.pick(up)
	}
	if n == nil {
		return
	}
	commands := s.fresh(1 + s.choose(5))
	s.c.hist.given(n, commands)
	s.c.step(n, paxos.Propose{Commands: commands})
	s.maybeTake(n)
}

// fresh makes commands that were never proposed before.
func (s *schedule) fresh(count int) [][]byte {
	var out [][]byte
	for range count {
		s.commands++
		out = append(out, fmt.Appendf(nil, "c%d", s.commands))
	}
	return out
}

func (s *schedule) read() {
	n := s.pick(func(n *node) bool { return n.r != nil && n.role.Role == paxos.Leader })
	if n == nil {
		if n = s.pick(up); n == nil {
			return
		}
	}
	s.reads++
	s.c.hist.asked(s.c, n, s.reads)
	s.c.step(n, paxos.ConfirmRead{ID: s.reads})
	s.maybeTake(n)
}

func (s *schedule) readLog() {
	if n := s.pick(func(n *node) bool { return n.r != nil && len(n.reads) > 0 }); n != nil {
		s.c.answerRead(n)
		s.maybeTake(n)
	}
}

func (s *schedule) install() {
	if n := s.pick(func(n *node) bool { return n.r != nil && n.needs != 0 }); n != nil && s.c.install(n) {
		s.maybeTake(n)
	}
}

func (s *schedule) crash() {
	if n := s.pick(up); n != nil {
		s.c.crash(n, s.choose(len(n.owed)+1))
	}
}

func (s *schedule) restart() {
	if n := s.pick(func(n *node) bool { return n.r == nil }); n != nil {
		s.c.start(n)
	}
}

func (s *schedule) dropOne() {
	if len(s.c.net) > 0 {
		i := s.choose(len(s.c.net))
		s.c.net = append(s.c.net[:i], s.c.net[i+1:]...)
	}
}

func (s *schedule) dropAll() { s.c.net = nil }

func (s *schedule) duplicate() {
	if len(s.c.net) > 0 {
		i := s.choose(len(s.c.net))
		n := s.c.node(s.c.net[i].m.To)
		s.c.deliver(i, true)
		s.maybeTake(n)
	}
}

func (s *schedule) cutOne() {
	n := len(s.c.nodes)
	a, b := paxos.ReplicaID(1+s.choose(n)), paxos.ReplicaID(1+s.choose(n))
	s.c.cut[[2]paxos.ReplicaID{a, b}] = true
}

// isolate cuts a replica off, in one direction or in both.
func (s *schedule) isolate() {
	n := paxos.ReplicaID(1 + s.choose(len(s.c.nodes)))
	how := s.choose(3)
	for _, o := range s.c.nodes {
		if how != 1 {
			s.c.cut[[2]paxos.ReplicaID{n, o.id}] = true
		}
		if how != 2 {
			s.c.cut[[2]paxos.ReplicaID{o.id, n}] = true
		}
	}
}

func (s *schedule) healAll() { clear(s.c.cut) }

func (s *schedule) campaign() {
	if n := s.pick(up); n != nil {
		s.c.step(n, paxos.Campaign{})
		s.maybeTake(n)
	}
}

func (s *schedule) handover() {
	if n := s.pick(func(n *node) bool { return n.r != nil && n.role.Role == paxos.Leader }); n != nil {
		s.c.step(n, paxos.Handover{To: paxos.ReplicaID(s.choose(len(s.c.nodes) + 1))})
		s.maybeTake(n)
	}
}

// link: a link tells of bulk that is on its way, there or at its other end. What
// it tells need not be true: no more than patience depends on it.
func (s *schedule) link() {
	n := s.pick(up)
	if n == nil {
		return
	}
	o := paxos.ReplicaID(1 + s.choose(len(s.c.nodes)))
	if s.choose(2) == 0 {
		s.c.step(n, paxos.Arriving{From: o})
	} else {
		s.c.step(n, paxos.Sent{To: o, Queued: []int{0, 1000, 1 << 20}[s.choose(3)]})
	}
	s.maybeTake(n)
}

func (s *schedule) snapshot() {
	if n := s.pick(up); n != nil {
		s.c.snapshot(n, paxos.Slot(s.choose(6)))
		s.maybeTake(n)
	}
}

// calm stops the faults and wants, within a bounded time: a leader, a command
// chosen, a read confirmed, everybody up to date, and no change of leader
// after that.
func (s *schedule) calm() {
	c := s.c
	clear(c.cut)
	for _, n := range c.nodes {
		if n.r == nil {
			c.start(n)
		}
		n.slow = false
		c.persist(n, len(n.owed))
		for _, o := range c.nodes {
			c.step(n, paxos.Sent{To: o.id}) // links that work come to their end
		}
		c.take(n)
	}
	begin := c.now
	const patience = 20 * time.Second
	asked := paxos.Slot(0)
	for turn := 0; ; turn++ {
		if turn%50 == 0 {
			s.found()
			c.takeAll()
		}
		s.calmTurn()
		l := s.leader()
		if l != nil && turn%50 == 0 {
			commands := s.fresh(1)
			c.hist.given(l, commands)
			c.step(l, paxos.Propose{Commands: commands})
			asked = c.hist.top() + 1
			s.reads++
			c.hist.asked(c, l, s.reads)
			c.step(l, paxos.ConfirmRead{ID: s.reads})
			c.take(l)
		}
		if l != nil && asked != 0 && c.hist.top() >= asked && s.level() && s.confirmed(l) {
			break
		}
		if c.now-begin > patience {
			var b strings.Builder
			for _, n := range c.nodes {
				fmt.Fprintf(&b, "\n %+v applied %d first on disk %d needs %d reads %v", n.r.Status(), n.applied, n.disk.first, n.needs, n.reads)
			}
			fail("no progress %v after the faults stopped; %d slots chosen%s", patience, c.hist.top(), b.String())
		}
	}
	s.stays()
	c.hist.settled(c)
}

// calmTurn lets 20 ms pass in which all that is due gets done.
func (s *schedule) calmTurn() {
	c := s.c
	c.tick(20 * time.Millisecond)
	c.takeAll()
	for round := 0; ; round++ {
		if round > 500 {
			fail("no end of messages without time passing: %s", messageText(&c.net[0].m))
		}
		quiet := true
		for range len(c.net) {
			c.deliver(0, false)
			quiet = false
		}
		for _, n := range c.nodes {
			for len(n.reads) > 0 {
				c.answerRead(n)
				quiet = false
			}
			if n.needs != 0 && c.install(n) {
				quiet = false
			}
		}
		c.takeAll()
		if quiet && len(c.net) == 0 {
			break
		}
	}
	if s.p != nil {
		s.p.beliefs(false)
	}
}

// leader returns the replica that leads, if exactly one thinks so.
func (s *schedule) leader() *node {
	var l *node
	for _, n := range s.c.nodes {
		if n.role.Role == paxos.Leader {
			if l != nil {
				return nil
			}
			l = n
		}
	}
	return l
}

// level: everybody has applied all that is chosen.
func (s *schedule) level() bool {
	for _, n := range s.c.nodes {
		if n.applied != s.c.hist.top() {
			return false
		}
	}
	return true
}

// confirmed: the newest read is.
func (s *schedule) confirmed(l *node) bool {
	a := s.c.hist.reads[readKey{life{l.id, l.boot}, s.reads}]
	return a != nil && a.confirmed
}

// stays: a healthy cell keeps its leader.
func (s *schedule) stays() {
	was := s.leader().role
	for end := s.c.now + 3*time.Second; s.c.now < end; {
		s.calmTurn()
		if l := s.leader(); l == nil || l.role.Ballot != was.Ballot {
			fail("the leader at %v is gone although nothing is wrong", was.Ballot)
		}
	}
}
