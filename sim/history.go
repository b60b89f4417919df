package sim

import (
	"fmt"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/sim/model"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// history is what the cell has decided, taken down at the first replica that
// applies each slot. Everything else is held against it: the other replicas,
// replicas after a restart, and what clients were told.
type history struct {
	w     *World
	slots []slotRecord // slot s is at s-1

	requests map[request]*applied
	sessions map[uint64]*session
	nodes    map[string][]version // registers and counters, by path
	watched  []watchedChange      // of registers and locks, in order
	counter  uint64
	created  map[uint64]string // token of a sequential create: its path
	owners   map[string]uint64 // ephemeral nodes
	queues   map[string]*lockQueue
	taken    map[request]bool // tickets whose lock was taken away
	holders  map[string]*holders
	deeds    map[deed]int
	written  map[uint64]bool // tokens of writes that were executed
	sequence []string        // sequential nodes that vary has made

	answered uint64 // highest revision that any client has had an answer of
	revision uint64 // behind the newest applied entry
	highest  uint64 // of the newest applied command
	calls    []*call

	model *model.Model // what the text makes of the log; nil: not asked
}

type slotRecord struct {
	value uint64 // hash of what was chosen
	state uint64 // hash of the state behind it
	at    int64  // when it was first applied
	by    int
}

// request names a request for ever.
type request struct{ session, number uint64 }

// applied is what the log made of a request.
type applied struct {
	encoded []byte // its result: a copy, which costs less than one of the message
	at      int64
	token   uint64
}

func (a *applied) result() *storepb.Result {
	r := new(storepb.Result)
	if err := r.UnmarshalVT(a.encoded); err != nil {
		panic(fmt.Sprintf("simulator: a result that was encoded cannot be decoded: %v", err))
	}
	return r
}

// version is a node's content from a revision on.
type version struct {
	revision, instance, generation, token uint64
	exists                                bool
	bytes                                 int // of content
}

type session struct {
	id       uint64
	owner    owner
	openedAt int64
	ended    bool
}

// owner is a client's machine.
type owner struct {
	c    *client
	life int
}

func newHistory(w *World) *history {
	return &history{w: w, model: model.New(), requests: map[request]*applied{}, sessions: map[uint64]*session{}, nodes: map[string][]version{},
		created: map[uint64]string{}, owners: map[string]uint64{}, queues: map[string]*lockQueue{}, taken: map[request]bool{}, holders: map[string]*holders{}, deeds: map[deed]int{}, written: map[uint64]bool{}}
}

// observer is told by one replica, in one of its lives, what it applies.
type observer struct {
	p    *process
	boot int
}

func (o *observer) Command(slot paxos.Slot, command []byte, result *storepb.Result, changes []store.Change, s *store.Store) {
	h := o.p.w.history
	if int(slot) == len(h.slots)+1 {
		h.command(command, result, changes, s)
	}
}

func (o *observer) Entry(e paxos.Entry, s *store.Store) {
	p := o.p
	w := p.w
	if e.Slot != p.applied+1 {
		w.fail("agreement", "%s applies slot %d after slot %d", p.name, e.Slot, p.applied)
		return
	}
	p.applied = e.Slot
	w.history.entry(p, e, s)
}

func (o *observer) Restored(slot paxos.Slot, s *store.Store) {
	if slot == 0 {
		return // the state that New was given; start has looked at it
	}
	o.p.applied = slot
	o.p.w.history.checkState(o.p, slot, s)
}

// entry holds an applied entry against what is known of its slot.
func (h *history) entry(p *process, e paxos.Entry, s *store.Store) {
	w := h.w
	value := hashValue(&e.Value)
	if int(e.Slot) == len(h.slots)+1 {
		h.slots = append(h.slots, slotRecord{value: value, state: s.Hash(), at: w.now, by: p.index})
		h.revision = s.Revision()
		h.judgeEntry(&e, s)
		w.trace.add(w.now, "applied", uint64(e.Slot), value, s.Hash())
		if w.telling() {
			w.tell(p.name, "is the first to apply slot %d: %s", e.Slot, tellValue(&e.Value))
		}
		return
	}
	if int(e.Slot) > len(h.slots) {
		w.fail("agreement", "%s applies slot %d, but slot %d was never applied anywhere", p.name, e.Slot, len(h.slots)+1)
		return
	}
	if known := &h.slots[e.Slot-1]; known.value != value {
		w.fail("agreement", "%s applies to slot %d another value (%s) than %s did at %s",
			p.name, e.Slot, tellValue(&e.Value), w.replicas[known.by].name, tellTime(known.at))
		return
	}
	h.checkState(p, e.Slot, s)
}

func (h *history) checkState(p *process, slot paxos.Slot, s *store.Store) {
	if slot == 0 {
		return
	}
	if int(slot) > len(h.slots) {
		h.w.fail("agreement", "%s has a state of slot %d, but slot %d was never applied anywhere", p.name, slot, len(h.slots)+1)
		return
	}
	if known := &h.slots[slot-1]; known.state != s.Hash() {
		h.w.fail("state", "%s has another state behind slot %d (hash %x) than %s had (hash %x)",
			p.name, slot, s.Hash(), h.w.replicas[known.by].name, known.state)
	}
}

// hashValue makes a number of a value; not of its encoding.
func hashValue(v *paxos.Value) uint64 {
	h := hashText("value") + uint64(v.Kind)
	mix := func(n uint64) { h = (h ^ n) * 1099511628211 }
	for _, c := range v.Commands {
		h = hashBytes(h, c)
	}
	mix(v.Leader.Round)
	mix(uint64(v.Leader.Replica))
	if v.Config != nil {
		mix(v.Config.CellIdentity)
		mix(v.Config.RevisionFloor)
		for _, m := range v.Config.Members {
			mix(uint64(m.ID))
			mix(m.Incarnation)
			h = hashBytes(h, []byte(m.Name))
		}
	}
	return h
}

// command takes down a command that is applied for the first time.
func (h *history) command(data []byte, result *storepb.Result, changes []store.Change, s *store.Store) {
	m := new(storepb.Command)
	if err := m.UnmarshalVT(data); err != nil {
		h.w.fail("replica", "a command in the log cannot be decoded: %v", err)
		return
	}
	h.w.counts.commands++
	h.highest = max(h.highest, s.Revision())
	h.w.trace.add(h.w.now, "command", m.GetSession(), m.GetNumber(), uint64(result.GetCode()), result.GetRevision())
	if h.w.telling() {
		h.w.tell("log", "%s => %s%s", tellCommand(m), tellResult(result), tellChanges(changes))
	}
	h.judge(m, result, changes, s)
	effective := false
	for i := range changes {
		switch changes[i].Kind {
		case store.ChangeCreated, store.ChangeContent, store.ChangeDeleted, store.ChangeLock:
			effective = true
		}
	}
	fresh := h.takeRequest(m, result, effective)
	h.takeNodes(m, result, changes, s)
	h.takeLocks(m, result, changes, fresh)
	h.takeHolders(changes, s)
	h.takeWatched(changes, s)
	h.takeSessions(m, result, changes, s)
	if fresh {
		h.takeDeed(m, result)
		h.takeBreak(m, changes)
		h.checkMulti(m, result, effective)
		h.checkPair()
		if op := m.GetAcquire(); op != nil {
			h.checkRefused(op, result, s)
		}
	}
}

// takeRequest: a request is executed once; a repeat is answered with what the
// first made of it and changes nothing.
// It reports whether this is the first.
func (h *history) takeRequest(m *storepb.Command, result *storepb.Result, effective bool) bool {
	if m.GetSession() == 0 || m.GetNumber() == 0 {
		return false
	}
	name := request{m.GetSession(), m.GetNumber()}
	first := h.requests[name]
	switch result.GetCode() {
	case storepb.Code_RETRY, storepb.Code_UNKNOWN_SESSION, storepb.Code_FORGOTTEN, storepb.Code_STALE_EPOCH:
		if effective {
			h.w.fail("exactly-once", "request %d of session %s was answered %v and changed something", name.number, short(name.session), result.GetCode())
		}
		return false
	}
	if l := result.GetLimit(); result.GetCode() == storepb.Code_LIMIT && (l == store.LimitWindow || l == store.LimitResultBytes) {
		return false // not executed: its number is still to be used
	}
	if first == nil {
		if token := tokenOfCommand(m); result.GetCode() == storepb.Code_OK && m.GetPut().GetPath() != counterPath {
			h.written[token] = true
		}
		encoded, err := result.MarshalVT()
		if err != nil {
			h.w.fail("replica", "the result of request %d of session %s cannot be encoded: %v", name.number, short(name.session), err)
		}
		h.requests[name] = &applied{encoded: encoded, at: h.w.now, token: tokenOfCommand(m)}
		return true
	}
	h.w.counts.repeats++
	if effective {
		h.w.fail("exactly-once", "request %d of session %s was executed again", name.number, short(name.session))
		return false
	}
	if was := first.result(); was.GetCode() != result.GetCode() || was.GetRevision() != result.GetRevision() {
		h.w.fail("exactly-once", "request %d of session %s was answered %s, its repeat %s",
			name.number, short(name.session), tellResult(was), tellResult(result))
	}
	return false
}

func tokenOfCommand(m *storepb.Command) uint64 {
	switch {
	case m.GetPut() != nil:
		return tokenOf(m.GetPut().GetData())
	case m.GetCreate() != nil:
		return tokenOf(m.GetCreate().GetData())
	}
	return 0
}

// takeNodes follows registers, the counter, sequential and ephemeral nodes.
func (h *history) takeNodes(m *storepb.Command, result *storepb.Result, changes []store.Change, s *store.Store) {
	for i := range changes {
		c := &changes[i]
		switch c.Kind {
		case store.ChangeCreated, store.ChangeContent, store.ChangeDeleted:
			if c.Kind == store.ChangeDeleted {
				h.checkVanished(m, c.Path)
			}
			h.takeNode(c, s)
		}
	}
	if op := m.GetCreate(); op != nil && result.GetCode() == storepb.Code_OK {
		if path := result.GetPath(); op.GetKind() == storepb.NodeKind_EPHEMERAL && h.owners[path] == 0 {
			if n, ok := s.Node(path); ok && n.Stat.GetOwner() != 0 { // a repeat may find another's
				h.owners[path] = n.Stat.GetOwner()
			}
		}
		if op.GetSequential() && !h.ofRaw(m.GetSession()) {
			token := tokenOf(op.GetData())
			if old := h.created[token]; old != "" && old != result.GetPath() {
				h.w.fail("exactly-once", "one sequential create made both %s and %s", old, result.GetPath())
			}
			h.created[token] = result.GetPath()
		}
	}
}

func (h *history) takeNode(c *store.Change, s *store.Store) {
	if c.Kind == store.ChangeDeleted {
		delete(h.owners, c.Path)
	}
	h.takeVaried(c)
	if len(c.Path) < 3 || (c.Path[1] != 'v' && c.Path[1] != 'r' && c.Path[1] != 'c' && c.Path[1] != 'm') {
		return
	}
	v := version{revision: c.Revision}
	if n, ok := s.Node(c.Path); ok {
		v.exists, v.token, v.bytes = true, tokenOf(n.Data), len(n.Data)
		v.instance, v.generation = n.Stat.GetInstance(), n.Stat.GetContentGeneration()
	}
	old := h.nodes[c.Path]
	if len(old) > 0 && old[len(old)-1].revision == v.revision {
		old[len(old)-1] = v
		return
	}
	if len(old) > 0 && old[len(old)-1].revision > v.revision {
		h.w.fail("state", "the revision of %s went back from %d to %d", c.Path, old[len(old)-1].revision, v.revision)
	}
	h.nodes[c.Path] = append(old, v)
	if c.Path == counterPath && v.exists {
		if v.token != h.counter+1 {
			h.w.fail("exactly-once", "the counter went from %d to %d", h.counter, v.token)
		}
		h.counter = v.token
	}
}

// versionAt returns a node as it was behind a revision.
func (h *history) versionAt(path string, revision uint64) version {
	all := h.nodes[path]
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].revision <= revision {
			return all[i]
		}
	}
	return version{}
}

// generationSeen is a guess at a node's generation, mostly right.
func (h *history) generationSeen(path string) uint64 {
	v := h.versionAt(path, ^uint64(0))
	if h.w.workRandom.chance(150_000) {
		return v.generation + 1
	}
	return v.generation
}
