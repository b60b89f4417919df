package sim

import (
	"sort"
	"strings"

	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// command reads one command. Those of a client may begin with its name. Before
// anything else happens a cell has to be founded.
func (p *scriptParser) command() func(d *director) {
	if verb := p.peek(); p.script.replicas == 0 && verb != "set" && verb != "start" {
		p.fail("first a cell has to be founded, with a line like \"start 3\"")
		return nil
	}
	n, named := 1, clientNumber(p.peek()) > 0
	if named {
		n = p.client()
	}
	verb := p.peek()
	if read, ok := clientCommands[verb]; ok {
		p.next++
		return read(p, n)
	}
	if named {
		p.fail("no such command of a client: it is one of %s", verbs(clientCommands))
		return nil
	}
	read, ok := commands()[verb]
	if !ok {
		p.fail("no such command: it is one of %s, %s", verbs(commands()), verbs(clientCommands))
		return nil
	}
	p.next++
	return read(p)
}

func verbs[T any](m map[string]T) string {
	var all []string
	for v := range m {
		all = append(all, v)
	}
	sort.Strings(all)
	return strings.Join(all, ", ")
}

func commands() map[string]func(*scriptParser) func(*director) {
	return map[string]func(*scriptParser) func(*director){
		"set": parseSet, "start": parseStart, "let": parseLet, "wait": parseWait, "advance": parseWait, "heal": parseHeal,
		"partition": parsePartition, "one-way": parseOneWay, "power-cut": parsePowerCut, "damage": parseDamage,
		"fail": parseFail, "slow-disk": parseSlow, "slow-link": parseSlowLink, "expect": parseExpect,
		"stop":      onReplicas((*director).stop),
		"kill":      onMachines((*director).kill, (*director).killClient),
		"freeze":    onMachines((*director).freeze, (*director).freezeClient),
		"thaw":      onMachines((*director).thaw, (*director).thawClient),
		"hang-disk": onReplicas(func(_ *director, r *process) { r.hang() }),
		"full-disk": onReplicas(func(_ *director, r *process) { r.fill(0) }),
		"mend-disk": onReplicas(func(_ *director, r *process) { r.mendDisk() }),
		"wipe":      onReplicas((*director).wipe),
		"second":    onReplicas((*director).second),
	}
}

func onReplicas(do func(*director, *process)) func(*scriptParser) func(*director) {
	return func(p *scriptParser) func(*director) {
		list := p.replicas()
		return func(d *director) {
			for _, r := range d.replicas(list) {
				do(d, r)
			}
		}
	}
}

func onMachines(do func(*director, *process), doClient func(*director, *client)) func(*scriptParser) func(*director) {
	return func(p *scriptParser) func(*director) {
		list := p.machines()
		return func(d *director) {
			for _, m := range d.machines(list) {
				if m < len(d.w.replicas) {
					do(d, d.w.replicas[m])
				} else {
					doClient(d, d.w.clients[m-len(d.w.replicas)])
				}
			}
		}
	}
}

// parseSet: settings of the run, before the cell is founded.
func parseSet(p *scriptParser) func(*director) {
	if p.script.replicas > 0 {
		p.next--
		p.fail("settings come before the cell is founded")
		return nil
	}
	var s setting
	switch p.among("setting", "lease", "snapshot", "trail", "segment", "seed", "flush", "latency") {
	case 0:
		d := p.duration()
		s = func(o *plan) { o.load.lease = d }
	case 1:
		n := p.count("a number of slots", 1, 1_000_000)
		s = func(o *plan) { o.snapshotSlots = n }
	case 2:
		n := p.count("a number of slots", 1, 1_000_000)
		s = func(o *plan) { o.trailSlots = n }
	case 3:
		n := p.count("a number of bytes", 4096, 1<<30)
		s = func(o *plan) { o.segmentBytes = int64(n) }
	case 4:
		n := p.count("a number", 0, 1<<62)
		s = func(o *plan) { o.seed = uint64(n) }
	case 5:
		d := p.duration()
		s = func(o *plan) { o.flushLo, o.flushHi = d, d+d/2 }
	default:
		d := p.duration()
		s = func(o *plan) { o.latencyLo, o.latencyHi = d, d+d/2 }
	}
	p.script.settings = append(p.script.settings, s)
	return nil
}

// parseStart founds the cell the first time, and starts replicas and clients
// after that.
func parseStart(p *scriptParser) func(*director) {
	if p.script.replicas == 0 {
		p.script.replicas = p.count("the number of replicas", 1, 9)
		return (*director).found
	}
	list := p.machines()
	return func(d *director) {
		for _, m := range d.machines(list) {
			if m < len(d.w.replicas) {
				d.start(d.w.replicas[m])
			} else {
				d.startClient(d.w.clients[m-len(d.w.replicas)])
			}
		}
	}
}

// parseLet gives a name to who is master, or a follower, now.
func parseLet(p *scriptParser) func(*director) {
	name := p.key("a name")
	p.want("=")
	list := p.replicas()
	p.names[name] = true
	return func(d *director) {
		if r := d.replicas(list); len(r) == 1 {
			d.names[name] = r[0]
		} else {
			d.fail("%s would name %d replicas", name, len(r))
		}
	}
}

func parseWait(p *scriptParser) func(*director) {
	t := p.duration()
	return func(d *director) { d.wait(t) }
}

func parseHeal(*scriptParser) func(*director) { return (*director).heal }

func parsePartition(p *scriptParser) func(*director) { return parseCuts(p, "from", true) }

func parseOneWay(p *scriptParser) func(*director) { return parseCuts(p, "to", false) }

// parseCuts: "partition A from B" cuts both ways, "one-way A to B" what A sends.
func parseCuts(p *scriptParser, between string, both bool) func(*director) {
	a := p.machines()
	p.want(between)
	rest := p.take("rest")
	var b []who
	if !rest {
		b = p.machines()
	}
	return func(d *director) { d.cut(a, b, rest, both) }
}

func parsePowerCut(p *scriptParser) func(*director) {
	list := p.replicas()
	left := keepNothing
	if p.take("keeping") {
		left = []keeping{keepNothing, keepMark, keepRecord, keepAll}[p.among("part of what is not flushed", "nothing", "mark", "record", "all")]
	}
	return func(d *director) {
		for _, r := range d.replicas(list) {
			r.keeping = left
			d.down(r, "its power goes")
		}
	}
}

func parseFail(p *scriptParser) func(*director) {
	list := p.replicas()
	op := []faultfs.Op{faultfs.Sync, faultfs.Write, faultfs.SyncDir, faultfs.Rename, faultfs.Create}[p.among("operation of the disk", "fsync", "write", "syncdir", "rename", "create")]
	return func(d *director) {
		for _, r := range d.replicas(list) {
			d.w.tell(r.name, "its disk will fail a %v", op)
			r.fs.Fail(op, 1, &diskError{op})
		}
	}
}

func parseSlow(p *scriptParser) func(*director) {
	list := p.replicas()
	t := p.duration()
	return func(d *director) {
		for _, r := range d.replicas(list) {
			r.slowDown(max(t, 8))
		}
	}
}

var damages = []string{"last-record", "first-record", "mark", "marks", "snapshot", "snapshots", "identity", "torn-tail", "cut-short"}

func parseDamage(p *scriptParser) func(*director) {
	list := p.replicas()
	what := damages[p.among("part of a disk", damages...)]
	return func(d *director) {
		for _, r := range d.replicas(list) {
			d.damage(r, what)
		}
	}
}

// ---- clients ----

var clientCommands = map[string]func(p *scriptParser, c int) func(*director){
	"write": parseWrite, "large": parseLarge, "fill": parseFill, "delete": parseDelete, "acquire": parseAcquire, "release": parseRelease, "break": parseBreak, "close": parseClose,
}

// behind takes an "&": the command is begun and not waited for.
func (p *scriptParser) behind() bool { return p.take("&") }

func parseWrite(p *scriptParser, c int) func(*director) {
	key := p.key("a name for the value")
	value := p.word("the value")
	behind := p.behind()
	return func(d *director) { d.write(d.client(c), key, value, behind) }
}

// parseFill: so many writes of a kilobyte each, to make the log grow.
func parseFill(p *scriptParser, c int) func(*director) {
	n := p.count("a number of writes", 1, 10_000)
	return func(d *director) {
		for i := 0; i < n && d.w.failure == nil; i++ {
			d.writeBytes(d.client(c), "_fill", "filled", 1000, false)
		}
	}
}

func parseDelete(p *scriptParser, c int) func(*director) {
	key := p.key("the name of a value")
	behind := p.behind()
	return func(d *director) { d.remove(d.client(c), key, behind) }
}

// acquireOptions say how a script wants a lock.
type acquireOptions struct {
	shared, try       bool
	wait, delay, stop int64
}

func parseAcquire(p *scriptParser, c int) func(*director) {
	lock := p.key("the name of a lock")
	o := acquireOptions{wait: 60 * second}
	for p.err == nil && !p.ends() && p.peek() != "&" {
		switch p.among("way to acquire", "shared", "try", "wait", "delay", "stop") {
		case 0:
			o.shared = true
		case 1:
			o.try = true
		case 2:
			o.wait = p.duration()
		case 3:
			o.delay = p.duration()
		default:
			o.stop = p.duration()
		}
	}
	behind := p.behind()
	return func(d *director) { d.acquire(d.client(c), lock, o, behind) }
}

func parseRelease(p *scriptParser, c int) func(*director) {
	lock := p.key("the name of a lock")
	behind := p.behind()
	return func(d *director) { d.release(d.client(c), lock, behind) }
}

func parseBreak(p *scriptParser, c int) func(*director) {
	lock := p.key("the name of a lock")
	behind := p.behind()
	return func(d *director) { d.breakLock(d.client(c), lock, behind) }
}

func parseClose(p *scriptParser, c int) func(*director) {
	return func(d *director) { d.closeSession(d.client(c)) }
}

// ---- expectations ----

func parseExpect(p *scriptParser) func(*director) {
	word := p.peek()
	switch {
	case p.take("master"):
		return parseExpectMaster(p)
	case p.take("no"):
		if p.among("thing", "master", "progress") == 0 {
			t := p.within(10 * second)
			return func(d *director) { d.expectNoMaster(t) }
		}
		p.want("for")
		t := p.duration()
		return func(d *director) { d.expectNoProgress(t) }
	case p.take("progress"):
		t := p.within(20 * second)
		return func(d *director) { d.expectProgress(t) }
	case p.take("equal"):
		t := p.within(20 * second)
		return func(d *director) { d.expectEqual(t) }
	case clientNumber(word) > 0:
		return parseExpectClient(p, p.client())
	}
	if _, ok := p.whos(word, false); ok && word != "" {
		return parseExpectReplica(p)
	}
	return parseExpectValue(p)
}

func parseExpectMaster(p *scriptParser) func(*director) {
	not := p.take("not")
	var list []who
	if not || (!p.ends() && p.peek() != "within") {
		list = p.replicas()
	}
	not = not || list == nil
	t := p.within(20 * second)
	return func(d *director) { d.expectMaster(list, not, t) }
}

func parseExpectReplica(p *scriptParser) func(*director) {
	list := p.replicas()
	var check func(r *process) string
	switch p.among("state of a replica", "refuses", "up", "down", "installs", "notes", "stops") {
	case 0:
		why := refusals[p.among("reason", "damaged", "doubtful", "emptied")]
		check = func(r *process) string { return refuses(r, why) }
	case 1:
		check = func(r *process) string { return isUp(r, true) }
	case 2, 5:
		check = func(r *process) string { return isUp(r, false) }
	case 3:
		p.want("snapshot")
		check = installedOne
	default:
		text := p.word("a word of the note")
		check = func(r *process) string { return noted(r, text) }
	}
	t := p.within(20 * second)
	return func(d *director) {
		for _, r := range d.replicas(list) {
			d.until(t, func() string { return check(r) })
		}
	}
}

var refusals = []string{"damaged", "doubtful", "emptied"}

var clientStates = []string{"holds", "lost", "waits", "answered", "unanswered", "live", "jeopardy", "expired", "answer"}

func parseExpectClient(p *scriptParser, n int) func(*director) {
	state := clientStates[p.among("state of a client", clientStates...)]
	arg := ""
	switch state {
	case "holds", "lost", "waits":
		arg = p.key("the name of a lock")
	case "answer":
		arg = p.word("a code like HELD, or unknown")
	}
	t := p.within(20 * second)
	return func(d *director) { d.expectClient(d.client(n), state, arg, t) }
}

// parseExpectValue: "expect x 2", or of a lock "expect l free" or "expect l held
// by c2".
func parseExpectValue(p *scriptParser) func(*director) {
	key := p.key("what is expected (master, no, progress, equal, a replica, a client, a value or a lock)")
	switch {
	case p.take("free"):
		t := p.within(20 * second)
		return func(d *director) { d.expectFree(key, t) }
	case p.take("held"):
		p.want("by")
		if p.err == nil && clientNumber(p.peek()) == 0 {
			p.fail("a client (c1 to c9) is expected here")
		}
		n := p.client()
		t := p.within(20 * second)
		return func(d *director) { d.expectHeld(key, d.client(n), t) }
	}
	value := p.word("the value, or missing")
	c := 1
	if p.take("by") {
		c = p.client()
	}
	t := p.within(20 * second)
	return func(d *director) { d.expectValue(d.client(c), key, value, t) }
}
