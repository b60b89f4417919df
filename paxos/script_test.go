package paxos_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/seed70370324/lockd/paxos"
)

// commands of the scripts.
var commands = map[string]func(p *player, args []string) error{
	"cluster":  (*player).cluster,  // cluster N [empty|roomy]: N replicas, the configuration chosen in slot 1 (or nothing); with little memory, unless roomy
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
	"writes":   (*player).writes,   // writes N COUNT D: so many commands one by one, D apart; all arrives at once, nothing is shown of it
	"due":      (*player).due,      // due N: it is later, N has something to do although nothing came
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
	small := paxos.Options{MemoryBytes: 300}
	if slices.Contains(args, "roomy") {
		small.MemoryBytes = 0
	}
	p.c = newCell(n, !slices.Contains(args, "empty"), small, nil)
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

func (p *player) writes(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil || len(args) != 3 {
		return errUsage
	}
	count, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	p.c.show = nil
	defer func() { p.c.show = p }()
	for range count {
		for end := p.c.now + d; p.c.now < end; {
			p.c.tick(min(20*time.Millisecond, end-p.c.now))
			p.c.takeAll()
			if err := p.settle(nil); err != nil {
				return err
			}
		}
		p.wrote++
		p.c.step(n, paxos.Propose{Commands: [][]byte{fmt.Appendf(nil, "w%d", p.wrote)}})
		p.c.take(n)
		if err := p.settle(nil); err != nil {
			return err
		}
	}
	return nil
}

func (p *player) due(args []string) error {
	n, err := p.nodeArg(args, true)
	if err != nil {
		return err
	}
	at := n.r.Due(p.c.now)
	if at == paxos.Never {
		return errors.New("it has nothing to do")
	}
	p.say("(%v later)", at-p.c.now)
	p.c.now = at
	p.c.take(n)
	return nil
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
