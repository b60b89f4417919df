package sim

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// opKind is what an application does.
type opKind int

const (
	opPut opKind = iota
	opGet
	opStale
	opSwap   // compare and swap
	opCreate // a register
	opDelete // a register
	opSequential
	opEphemeral
	opCount // increment a counter by compare and swap
	opMulti // two registers at once
	opLock  // wait for a lock, exclusive
	opShared
	opTry
	opWatch
	opBreak // an operator takes a lock away
	opForce // deletes a lock's node in spite of its holders
	opCheck // is the sequencer of a held lock valid
	opClose // end the session
	opRelease
	opYield // a transaction that gives a lock back
	opKinds
)

var opNames = [opKinds]string{"put", "get", "stale get", "swap", "create", "delete", "sequential", "ephemeral",
	"count", "multi", "lock", "shared lock", "try lock", "watch", "break", "force delete", "check", "close", "release", "yield"}

func (k opKind) String() string { return opNames[k] }

// opWeights say how often a client does what, before a plan changes them.
var opWeights = [opKinds]int64{opPut: 10, opGet: 12, opStale: 3, opSwap: 6, opCreate: 3, opDelete: 4,
	opSequential: 4, opEphemeral: 3, opCount: 5, opMulti: 3, opLock: 9, opShared: 6, opTry: 3, opWatch: 2, opBreak: 1, opForce: 1, opCheck: 2, opClose: 1}

// call is one call of an application, from its start to its answer.
type call struct {
	c       *client
	life    int
	id      machine.CallID
	kind    opKind
	path    string
	token   uint64 // unique value written, 0 for none
	ifGen   uint64
	start   int64 // true time
	end     int64
	floor   uint64 // highest revision that anyone had an answer of before this began
	cancel  bool   // the application has given up on it
	shared  bool
	stop    int64
	wait    int64  // how long it waits for a lock, negative for ever
	lock    *hold  // releases
	varied  bool   // a lock of another node
	session uint64 // when it ended
	result  *storepb.Result
	read    *wirepb.ReadReply
	failure error
	want    error // with which it has to be refused; nil: it has not
	flood   bool  // one of thousands
	bytes   int   // of its command, where that may be too large
}

func nanos(n int64) time.Duration { return time.Duration(n) }

// think plans the application's next call.
func (c *client) think() {
	c.w.after(c.random.skewed(1, 4*c.w.plan.load.think), c.thought)
}

// thinks makes the call that think has planned, if the program can make one. A
// program that cannot is not woken for it.
func (c *client) thinks(life int) {
	w := c.w
	if c.life != life || c.m == nil || w.winding {
		return
	}
	c.ops++
	c.own.seed(w.seed, 1<<40|uint64(c.number())<<24|uint64(c.ops))
	c.daring = c.own.chance(100_000)
	if c.pauses == 0 && !c.mayCall() {
		c.think()
		return
	}
	c.post(c.makeCall)
}

// mayCall reports whether the program can make the call that it has thought of.
func (c *client) mayCall() bool {
	return len(c.open) < c.w.plan.load.outstanding && !c.ending && c.w.now >= c.idleUntil &&
		!c.w.plan.skips(c.number(), c.ops) && (c.state == machine.Live || c.state == machine.Jeopardy || c.daring)
}

// callNow makes it.
func (c *client) callNow() {
	w := c.w
	if w.winding {
		return
	}
	if c.mayCall() {
		w.acted++
		shared := w.workRandom
		w.workRandom = &c.own
		c.act()
		w.workRandom = shared
	}
	if c.m != nil {
		c.think()
	}
}

// act starts a call drawn by the weights of the plan.
func (c *client) act() {
	w := c.w
	l := &w.plan.load
	switch {
	case c.reader:
		c.actReader()
		return
	case l.kinds.misuse > 0 && w.workRandom.chance(l.kinds.misuse):
		c.misuse()
		return
	case l.kinds.floods > 0 && w.workRandom.chance(l.kinds.floods):
		c.flood()
		return
	}
	var sum int64
	for _, n := range l.weights {
		sum += n
	}
	n := w.workRandom.below(sum)
	kind := opKind(0)
	for n >= l.weights[kind] {
		n -= l.weights[kind]
		kind++
	}
	if l.variety > 0 && w.workRandom.chance(l.variety) {
		c.vary()
		return
	}
	k := &call{kind: kind}
	switch kind {
	case opClose:
		if w.workRandom.chance(500_000) {
			c.close(w.plan.load.hastyClose && w.workRandom.chance(600_000))
		}
		return
	case opLock, opShared, opTry:
		c.acquire(k)
	case opCheck:
		if n := int64(len(w.granted)); n > 0 {
			c.checkSequencer(w.granted[w.workRandom.below(n)])
		}
		return
	case opWatch:
		c.watch(k)
	case opGet, opStale:
		k.path = c.register()
		level := wirepb.ReadLevel_LINEARIZABLE
		if kind == opStale {
			level = wirepb.ReadLevel_STALE
		}
		c.start(k)
		c.read(k, level)
	case opCount:
		c.count(k)
	default:
		c.command(k)
	}
	if kind != opWatch && w.workRandom.chance(60_000) {
		c.giveUpAfter(k, w.workRandom.skewed(1, 1500*millisecond))
	}
}

// start gives a call its number and takes down what was known before it.
func (c *client) start(k *call) {
	c.nextCall++
	k.c, k.life, k.id = c, c.life, c.nextCall
	k.start, k.floor = c.w.now, c.w.history.answered
	c.calls[k.id] = k
	c.open = append(c.open, k)
	c.w.trace.add(k.start, "call", uint64(c.index), uint64(k.id), uint64(k.kind))
	if c.w.telling() {
		c.w.tell(c.name, "call %d: %v %s token %d if %d", k.id, k.kind, k.path, k.token, k.ifGen)
	}
}

// giveUpAfter cancels a call if it has no answer by then.
func (c *client) giveUpAfter(k *call, d int64) {
	c.later(d, func() {
		if k.id == 0 || k.end != 0 || k.cancel {
			return
		}
		k.cancel = true
		c.w.tell(c.name, "gives up on call %d", k.id)
		c.step(machine.Cancel{ID: k.id})
	})
}

func (c *client) register() string {
	return fmt.Sprintf("/r/%d", c.w.workRandom.below(int64(c.w.plan.load.pathsOfEach)))
}

// value makes content that nobody else writes: the token, then filling.
func (w *World) value(token uint64) []byte {
	b := make([]byte, 8+w.workRandom.below(w.plan.load.valueBytes+1))
	binary.BigEndian.PutUint64(b, token)
	if w.plan.noise {
		n := token
		for rest := b[8:]; len(rest) >= 8; rest = rest[8:] {
			n = n*0x9e3779b97f4a7c15 + 0x632be59bd9b4e019
			binary.BigEndian.PutUint64(rest, n)
		}
	}
	return b
}

func tokenOf(data []byte) uint64 {
	if len(data) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(data)
}

// command starts a write.
func (c *client) command(k *call) {
	w := c.w
	w.nextToken++
	k.token = w.nextToken
	data := w.value(k.token)
	m := &storepb.Command{}
	if k.path = c.register(); k.flood {
		k.path = "/f"
	}
	switch k.kind {
	case opPut:
		m.Op = &storepb.Command_Put{Put: &storepb.Put{Path: k.path, Data: data, HasData: true, Create: true, Parents: true}}
	case opSwap:
		k.ifGen = w.history.generationSeen(k.path)
		m.Op = &storepb.Command_Put{Put: &storepb.Put{Path: k.path, Data: data, HasData: true, Parents: true}}
		swap(m.GetPut(), k.ifGen)
	case opCreate:
		m.Op = &storepb.Command_Create{Create: &storepb.Create{Path: k.path, Kind: storepb.NodeKind_PERMANENT,
			Data: data, HasData: true, Parents: true}}
	case opDelete:
		k.token = 0
		m.Op = &storepb.Command_Delete{Delete: &storepb.Delete{Path: k.path}}
	case opSequential:
		k.path = "/s/"
		m.Op = &storepb.Command_Create{Create: &storepb.Create{Path: k.path, Kind: storepb.NodeKind_PERMANENT, Sequential: true,
			Data: data, HasData: true, Parents: true}}
	case opEphemeral:
		k.path = fmt.Sprintf("/e/%s-%d", c.name, w.workRandom.below(3))
		if w.plan.load.ephemeralLocks && w.workRandom.chance(500_000) {
			k.path = ephemeralLock
		}
		m.Op = &storepb.Command_Create{Create: &storepb.Create{Path: k.path, Kind: storepb.NodeKind_EPHEMERAL,
			Data: data, HasData: true, Parents: true}}
	case opBreak:
		k.token = 0
		k.path = lockPath(w.workRandom.below(int64(w.plan.load.locks)))
		w.counts.breaks++
		fence := w.history.queue(k.path).fence
		if w.workRandom.chance(300_000) {
			fence -= min(fence, uint64(w.workRandom.between(1, 20))) // perhaps that of an earlier holder
		}
		m.Op = &storepb.Command_BreakLock{BreakLock: &storepb.Break{Path: k.path, Fence: fence}}
	case opForce:
		k.token = 0
		k.path = lockPath(w.workRandom.below(int64(w.plan.load.locks)))
		w.counts.breaks++
		m.Op = &storepb.Command_Delete{Delete: &storepb.Delete{Path: k.path, Force: true, Recursive: true}}
	case opMulti:
		k.path = "/m/a"
		m.Op = &storepb.Command_Multi{Multi: c.multi(data)}
	}
	k.bytes = m.SizeVT()
	c.start(k)
	c.step(machine.Call{ID: k.id, Command: m})
}

// multi puts two registers at once, or neither: in part of the cases a
// condition on one of them, or a check of something else, does not hold.
func (c *client) multi(data []byte) *storepb.Multi {
	w := c.w
	put := func(path string) *storepb.Put {
		return &storepb.Put{Path: path, Data: data, HasData: true, Create: true, Parents: true}
	}
	a, b := put("/m/a"), put("/m/b")
	if w.workRandom.chance(400_000) {
		b.Create = false
		b.Conditions = []*storepb.Condition{{Demand: &storepb.Condition_Generation{Generation: max(1, w.history.generationSeen("/m/b"))}}}
	}
	ops := []*storepb.MultiOp{{Op: &storepb.MultiOp_Put{Put: a}}, {Op: &storepb.MultiOp_Put{Put: b}}}
	if w.workRandom.chance(300_000) {
		path := lockPath(w.workRandom.below(int64(w.plan.load.locks)))
		fence := w.history.queue(path).fence
		if fence == 0 || w.workRandom.chance(300_000) {
			fence++
		}
		ops = append(ops, &storepb.MultiOp{Op: &storepb.MultiOp_Check{Check: &storepb.Check{Path: path,
			Conditions: []*storepb.Condition{{Demand: &storepb.Condition_Fence{Fence: fence}}}}}})
	}
	return &storepb.Multi{Ops: ops}
}

func (c *client) read(k *call, level wirepb.ReadLevel) {
	c.step(machine.Read{ID: k.id, Read: &wirepb.Read{Level: level, Op: &wirepb.Read_Node{Node: &wirepb.ReadNode{Path: k.path}}}})
}

// counterPath is the node whose content is a number that everybody increments.
const counterPath = "/c/0"

// count reads the counter and then writes the next number, if nobody else has.
func (c *client) count(k *call) {
	k.path = counterPath
	c.start(k)
	c.read(k, wirepb.ReadLevel_LINEARIZABLE)
}

// countOn is the second half: k is the read that has been answered.
func (c *client) countOn(k *call) {
	w := c.w
	n, gen := uint64(0), uint64(0)
	if node := k.read.GetNode(); node != nil {
		n, gen = tokenOf(node.GetData()), node.GetStat().GetContentGeneration()
	}
	next := &call{kind: opCount, path: k.path, token: n + 1, ifGen: gen}
	c.start(next)
	put := &storepb.Put{Path: k.path, Data: w.value(n + 1), HasData: true, Parents: true}
	swap(put, gen)
	m := &storepb.Command{Op: &storepb.Command_Put{Put: put}}
	next.bytes = m.SizeVT()
	c.step(machine.Call{ID: next.id, Command: m})
}

// swap demands a content generation, or with 0 that there is no node yet.
func swap(p *storepb.Put, generation uint64) {
	c := &storepb.Condition{Demand: &storepb.Condition_Generation{Generation: generation}}
	if generation == 0 {
		p.Create = true
		c.Demand = &storepb.Condition_Exists{}
	}
	p.Conditions = []*storepb.Condition{c}
}

// generationOf is what swap demands, 0 of a put that it has not made.
func generationOf(p *storepb.Put) uint64 {
	for _, c := range p.GetConditions() {
		if n := c.GetGeneration(); n != 0 {
			return n
		}
	}
	return 0
}

// close ends the session in order. In haste it does not wait for work that
// still goes on: that has until its lock is reported lost, and stop longer.
func (c *client) close(hasty bool) {
	for _, h := range c.holds {
		if !h.released && !hasty {
			return // first the locks
		}
	}
	if c.state != machine.Live {
		return
	}
	c.ending = true
	for _, h := range c.holds {
		if !h.released {
			c.w.happened(FaultHastyClose)
			break
		}
	}
	c.w.tell(c.name, "closes its session")
	c.w.trace.add(c.w.now, "close", uint64(c.index))
	c.step(machine.Close{})
	c.useClosing()
}

// done takes the answer to a call.
func (c *client) done(d machine.Done) {
	w := c.w
	k := c.calls[d.ID]
	if k == nil || k.end != 0 {
		w.fail("client", "%s: call %d is answered twice or was never made", c.name, d.ID)
		return
	}
	k.end, k.result, k.read, k.failure, k.session = w.now, d.Result, d.Read, d.Err, c.session
	c.remove(k)
	given := 0
	for _, b := range []bool{d.Result != nil, d.Read != nil, d.Err != nil} {
		if b {
			given++
		}
	}
	if given != 1 {
		w.fail("client", "%s: call %d is answered with %d of result, read and error", c.name, k.id, given)
		return
	}
	w.trace.add(w.now, "done", uint64(c.index), uint64(k.id), uint64(d.Result.GetCode()), d.Result.GetRevision(), d.Read.GetRevision())
	if w.telling() {
		w.tell(c.name, "call %d %v %s: %s", k.id, k.kind, k.path, tellAnswer(&d))
	}
	c.judgeCall(k)
	w.history.answer(k)
	if w.plan.scripted && k.kind != opCheck {
		c.lastAnswer = answerName(k)
	}
	switch k.kind {
	case opLock, opShared, opTry:
		c.acquired(k)
	case opRelease:
		c.released(k)
	case opYield:
		c.yielded(k)
	case opCheck:
		w.checkedSequencer(k)
	case opCount:
		if k.read != nil && k.read.GetCode() != storepb.Code_TOO_LARGE && !k.cancel && !c.ending && !w.winding {
			c.countOn(k)
		}
	}
}
