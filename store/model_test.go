package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// model is the store once more, as plainly as can be: maps, slices, copies of
// everything, no indexes, no hash, no limits that a small test cannot reach.
type model struct {
	rev, epoch uint64
	cell       int64
	nodes      map[string]mNode
	locks      map[string]mLock
	sessions   map[uint64]mSession

	changed bool
}

type mNode struct {
	kind    pb.NodeKind
	owner   uint64
	gen     uint64
	inst    uint64
	rev     uint64 // of the last write of its content
	data    string
	nextSeq int
	used    bool
	implied bool
}

type mClaim struct {
	session, ticket, fence, delay, lease uint64
	mode                                 pb.LockMode
	ghost                                bool
	until                                int64
}

type mLock struct {
	gen, fence     uint64
	holders, queue []mClaim
}

type mSession struct {
	nonce         string
	lease         uint64
	last, change  uint64
	noted         int64
	lowest, acked uint64
	results       map[uint64]mResult
	events        []string // all that ever were, by number
}

type mResult struct {
	code     pb.Code
	rev      uint64
	path     string
	fence    uint64
	position int
	failed   int
	session  uint64
	gen      uint64
}

func newModel() *model {
	return &model{
		nodes:    map[string]mNode{"/": {kind: pb.NodeKind_PERMANENT, gen: 1}},
		locks:    map[string]mLock{},
		sessions: map[uint64]mSession{},
	}
}

func (m *model) copy() *model {
	c := *m
	c.nodes, c.locks, c.sessions = maps.Clone(m.nodes), map[string]mLock{}, map[uint64]mSession{}
	for p, l := range m.locks {
		l.holders, l.queue = slices.Clone(l.holders), slices.Clone(l.queue)
		c.locks[p] = l
	}
	for id, x := range m.sessions {
		x.results, x.events = maps.Clone(x.results), slices.Clone(x.events)
		c.sessions[id] = x
	}
	return &c
}

func (m *model) apply(c *pb.Command) mResult {
	m.changed = false
	r := m.execute(c)
	if m.changed {
		m.rev++
	}
	if r.rev == 0 {
		r.rev = m.rev
	}
	return r
}

func (m *model) execute(c *pb.Command) mResult {
	if c.Epoch != m.epoch {
		return mResult{code: pb.Code_STALE_EPOCH}
	}
	switch op := c.Op.(type) {
	case *pb.Command_OpenSession:
		m.cell = max(m.cell, c.CellTime)
		for id, x := range m.sessions {
			if x.nonce == string(op.OpenSession.Nonce) {
				return mResult{session: id}
			}
		}
		m.changed = true
		lease := min(max(op.OpenSession.LeaseMs, LeaseMinMillis), LeaseMaxMillis)
		m.sessions[m.rev+1] = mSession{nonce: string(op.OpenSession.Nonce), lease: lease, lowest: 1, change: m.rev + 1, results: map[uint64]mResult{}}
		return mResult{session: m.rev + 1}
	case *pb.Command_ExpireSession:
		m.cell = max(m.cell, c.CellTime)
		x, ok := m.sessions[op.ExpireSession.Session]
		if !ok {
			return mResult{code: pb.Code_UNKNOWN_SESSION}
		}
		if x.change != op.ExpireSession.LastChange {
			return mResult{code: pb.Code_STALE_EPOCH, session: op.ExpireSession.Session}
		}
		m.end(op.ExpireSession.Session, true, false)
		m.settle()
		return mResult{session: op.ExpireSession.Session}
	case *pb.Command_Timers:
		m.cell = max(m.cell, c.CellTime)
		for _, ref := range op.Timers.Due {
			m.timer(ref)
			m.settle()
		}
		return mResult{}
	case *pb.Command_NoteSessions:
		m.cell = max(m.cell, c.CellTime)
		for _, n := range op.NoteSessions.Notes {
			if x, ok := m.sessions[n.Session]; ok && n.LeaseEndCell >= 0 {
				if x.noted != 0 && n.LeaseEndCell == 0 {
					x.change++
				}
				x.noted = n.LeaseEndCell
				m.sessions[n.Session] = x
			}
		}
		return mResult{}
	case *pb.Command_Clock:
		m.cell = max(m.cell, c.CellTime)
		return mResult{}
	}
	m.cell = max(m.cell, c.CellTime)
	x, ok := m.sessions[c.Session]
	if !ok {
		return mResult{code: pb.Code_UNKNOWN_SESSION}
	}
	if _, ok := c.Op.(*pb.Command_AckEvents); ok {
		x.acked = max(x.acked, min(c.AckedEvent, uint64(len(x.events))))
		x.lowest = max(x.lowest, min(c.LowestUnanswered, x.last+1))
		m.sessions[c.Session] = x
		return mResult{session: c.Session}
	}
	switch {
	case c.Number > x.last+1:
		return mResult{code: pb.Code_RETRY}
	case c.Number <= x.last:
		r, kept := x.results[c.Number]
		if !kept || c.Number < x.lowest {
			r = mResult{code: pb.Code_FORGOTTEN}
		}
		x.acked = max(x.acked, min(c.AckedEvent, uint64(len(x.events))))
		x.lowest = max(x.lowest, min(c.LowestUnanswered, x.last+1))
		m.sessions[c.Session] = x
		return r
	}
	x.acked = max(x.acked, min(c.AckedEvent, uint64(len(x.events))))
	x.lowest = max(x.lowest, min(c.LowestUnanswered, c.Number))
	m.sessions[c.Session] = x
	r := m.perform(c)
	m.settle()
	r.rev = m.rev
	if m.changed {
		r.rev++
	}
	if x, ok := m.sessions[c.Session]; ok {
		x.last = c.Number
		x.results[c.Number] = r
		m.sessions[c.Session] = x
	}
	return r
}

func (m *model) perform(c *pb.Command) mResult {
	if failed, bad := mRefuses(c); bad {
		return mResult{code: pb.Code_BAD_COMMAND, failed: failed}
	}
	switch op := c.Op.(type) {
	case *pb.Command_CloseSession:
		m.end(c.Session, false, op.CloseSession.WorkEnded)
		return mResult{session: c.Session}
	case *pb.Command_VoidRequest:
		return mResult{code: pb.Code_VOIDED}
	case *pb.Command_Create:
		return m.create(c.Session, op.Create)
	case *pb.Command_Put:
		return m.put(op.Put)
	case *pb.Command_Delete:
		return m.delete(op.Delete)
	case *pb.Command_Acquire:
		return m.acquire(c.Session, c.Number, op.Acquire)
	case *pb.Command_Release:
		return m.release(c.Session, op.Release.Ticket)
	case *pb.Command_Forfeit:
		for p, l := range m.locks {
			for i, h := range l.holders {
				if h.session == c.Session && h.ticket == op.Forfeit.Ticket && !h.ghost {
					l.holders[i].ghost, m.changed = true, true
					return mResult{path: p}
				}
			}
		}
		return mResult{}
	case *pb.Command_BreakLock:
		code := pb.Code_NOT_HELD
		l := m.locks[op.BreakLock.Path]
		for i, h := range l.holders {
			if !h.ghost && h.fence == op.BreakLock.Fence {
				m.lose(op.BreakLock.Path, i)
				code = pb.Code_OK
			}
		}
		if code != pb.Code_OK {
			return mResult{code: code}
		}
		return mResult{path: op.BreakLock.Path}
	case *pb.Command_Multi:
		before := m.copy()
		for i, one := range op.Multi.Ops {
			var r mResult
			switch one := one.Op.(type) {
			case *pb.MultiOp_Create:
				r = m.create(c.Session, one.Create)
			case *pb.MultiOp_Put:
				r = m.put(one.Put)
			case *pb.MultiOp_Delete:
				r = m.delete(one.Delete)
			case *pb.MultiOp_Check:
				r = m.check(one.Check)
			case *pb.MultiOp_Release:
				if r = m.release(c.Session, one.Release.Ticket); r.code == pb.Code_WITHDRAWN {
					r = mResult{code: pb.Code_NOT_HELD}
				}
			}
			if r.code != pb.Code_OK {
				*m = *before
				return mResult{code: r.code, path: r.path, failed: i}
			}
		}
		return mResult{}
	}
	return mResult{code: pb.Code_BAD_COMMAND}
}

func mParent(p string) string {
	if i := strings.LastIndex(p, "/"); i > 0 {
		return p[:i]
	}
	return "/"
}

func (m *model) children(p string) (n int) {
	for q := range m.nodes {
		if q != "/" && mParent(q) == p {
			n++
		}
	}
	return n
}

// add creates path and, with parents, what is missing above it.
func (m *model) add(path string, n mNode, parents bool) pb.Code {
	up := mParent(path)
	if _, ok := m.nodes[up]; !ok {
		if !parents {
			return pb.Code_NOT_FOUND
		}
		if code := m.add(up, mNode{kind: pb.NodeKind_CONTAINER, implied: true}, true); code != pb.Code_OK {
			return code
		}
	}
	p := m.nodes[up]
	if p.kind == pb.NodeKind_EPHEMERAL {
		return pb.Code_EPHEMERAL_PARENT
	}
	p.used = p.kind == pb.NodeKind_CONTAINER
	m.nodes[up] = p
	n.gen, n.inst, n.rev = 1, m.rev+1, m.rev+1
	m.nodes[path] = n
	m.changed = true
	return pb.Code_OK
}

func (m *model) create(session uint64, c *pb.Create) mResult {
	path := c.Path
	if strings.Contains(path, "//") {
		return mResult{code: pb.Code_BAD_PATH}
	}
	n := mNode{kind: c.Kind, data: string(c.Data)}
	if n.kind == pb.NodeKind_EPHEMERAL {
		n.owner = session
	}
	seq := 0
	if c.Sequential {
		base := path
		for seq = m.nodes[mParent(base)].nextSeq; ; seq++ {
			path = fmt.Sprintf("%s%010d", base, seq)
			if _, taken := m.nodes[path]; !taken {
				break
			}
		}
	}
	if _, ok := m.nodes[path]; ok {
		return mResult{code: pb.Code_EXISTS}
	}
	if code := m.holds(c.Conditions, path, pb.Code_EXISTS); code != pb.Code_OK {
		return mResult{code: code}
	}
	if code := m.add(path, n, c.Parents); code != pb.Code_OK {
		return mResult{code: code}
	}
	if c.Sequential {
		p := m.nodes[mParent(path)]
		p.nextSeq = seq + 1
		m.nodes[mParent(path)] = p
	}
	return mResult{path: path, gen: 1}
}

func (m *model) put(p *pb.Put) mResult {
	n, ok := m.nodes[p.Path]
	if !ok && !p.Create {
		return mResult{code: pb.Code_NOT_FOUND}
	}
	if code := m.holds(p.Conditions, p.Path, pb.Code_CONFLICT); code != pb.Code_OK {
		return mResult{code: code}
	}
	if ok {
		n.gen++
		n.rev = m.rev + 1
		if n.implied {
			n.kind, n.implied, n.used = pb.NodeKind_PERMANENT, false, false
		}
		n.data = string(p.Data)
		m.nodes[p.Path] = n
		m.changed = true
		return mResult{path: p.Path, gen: n.gen}
	}
	if code := m.add(p.Path, mNode{kind: pb.NodeKind_PERMANENT, data: string(p.Data)}, p.Parents); code != pb.Code_OK {
		return mResult{code: code}
	}
	return mResult{path: p.Path, gen: 1}
}

func (m *model) delete(d *pb.Delete) mResult {
	if _, ok := m.nodes[d.Path]; !ok {
		return mResult{code: pb.Code_NOT_FOUND}
	}
	if code := m.holds(d.Conditions, d.Path, pb.Code_CONFLICT); code != pb.Code_OK {
		return mResult{code: code}
	}
	if !d.Recursive && m.children(d.Path) > 0 {
		return mResult{code: pb.Code_NOT_EMPTY}
	}
	var all []string
	for p := range m.nodes {
		if p == d.Path || strings.HasPrefix(p, d.Path+"/") {
			all = append(all, p)
		}
	}
	// Deepest first, later siblings first.
	sort.Slice(all, func(i, j int) bool {
		return strings.ReplaceAll(all[i], "/", "\x01") > strings.ReplaceAll(all[j], "/", "\x01")
	})
	for _, p := range slices.Backward(all) {
		l := m.locks[p]
		live := slices.ContainsFunc(l.holders, func(h mClaim) bool { return !h.ghost })
		if !d.Force && (live || len(l.queue) > 0) {
			return mResult{code: pb.Code_LOCKED, path: p}
		}
	}
	for _, p := range all {
		m.remove(p)
	}
	return mResult{path: d.Path}
}

// remove deletes a node in spite of holders and waiters.
func (m *model) remove(p string) {
	l := m.locks[p]
	for _, w := range l.queue {
		m.event(w.session, "WITHDRAWN", w.ticket)
	}
	l.queue = nil
	m.locks[p] = l
	for i, h := range l.holders {
		if !h.ghost {
			m.lose(p, i)
		}
	}
	if len(l.holders) == 0 {
		delete(m.locks, p)
	}
	delete(m.nodes, p)
	m.changed = true
}

func (m *model) check(c *pb.Check) mResult {
	if _, ok := m.nodes[c.Path]; !ok && len(c.Conditions) == 0 {
		return mResult{code: pb.Code_NOT_FOUND}
	}
	return mResult{code: m.holds(c.Conditions, c.Path, pb.Code_EXISTS)}
}

func (m *model) event(session uint64, code string, ticket uint64) {
	if x, ok := m.sessions[session]; ok {
		x.events = append(x.events, fmt.Sprintf("%s %d", code, ticket))
		m.sessions[session] = x
	}
	m.changed = true
}

func (m *model) lose(p string, i int) {
	h := &m.locks[p].holders[i]
	h.ghost, h.until = true, 0
	m.event(h.session, "LOST", h.ticket)
}

func (l mLock) admits(mode pb.LockMode) bool {
	for _, h := range l.holders {
		if h.mode == exclusive || mode == exclusive {
			return false
		}
	}
	return true
}

func seen(r *pb.Result) mResult {
	return mResult{
		code: r.Code, rev: r.Revision, path: r.Path, fence: r.GetGrant().GetFence(), position: int(r.Position),
		failed: int(r.FailedOp), session: r.Session,
	}
}

func TestStoreBehavesLikeItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, m := New(), newModel()
		s.ApplyFound("cell", 7, 1000)
		m.rev = 1000
		root := m.nodes["/"]
		root.inst = 1000
		m.nodes["/"] = root
		replica := s.Clone()
		g := &script{t: t, next: map[uint64]uint64{}}
		for range 10 + g.roll() {
			switch k := g.roll(); {
			case k < 3:
				// A clock of that many seconds after 2025, some of them far ahead.
				ahead := pick(g, -1<<40, 0, int64(g.roll()), 1<<40)
				// Read under the present epoch, or an earlier one.
				read := m.epoch - min(m.epoch, pick(g, uint64(0), 0, 1))
				s.ApplyLead(revisionStart+ahead, g.cell, read)
				replica.ApplyLead(revisionStart+ahead, g.cell, read)
				if read == m.epoch {
					m.cell = max(m.cell, g.cell)
				}
				m.epoch++
				if high := min(ahead, 3<<30); high > int64(m.rev>>31) {
					m.rev = uint64(high) << 31
				}
			case k < 8:
				s = reread(t, s)
			case k < 10:
				g.cell += 1 << 30 // of a leader whose clock went on
			}
			c := g.command(s)
			encoded, err := proto.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			clone, was := s.Clone(), ""
			if len(encoded)%4 == 0 {
				was = dump(clone)
			}
			r, _ := s.Apply(encoded)
			want := m.apply(c)
			got := seen(r)
			if want.gen != 0 && r.GetStat().GetContentGeneration() != want.gen {
				t.Fatalf("%v: content generation %v, the model says %d", c, r, want.gen)
			}
			want.gen = 0
			if size := resultSize(r); size > answerMax(c) {
				t.Fatalf("%v -> %v: it counts %d bytes, %d were allowed for", c, r, size, answerMax(c))
			}
			if got != want {
				t.Fatalf("%v\nstore: %+v (%v)\nmodel: %+v", c, got, r, want)
			}
			if a, b := dump(s), m.dump(); a != b {
				t.Fatalf("%v -> %v\nstore:\n%s\nmodel:\n%s", c, r, a, b)
			}
			if err := s.Check(); err != nil {
				t.Fatalf("%v -> %v: %v", c, r, err)
			}
			if was != "" && was != dump(clone) {
				t.Fatalf("%v changed a clone taken before it", c)
			}
			// Another replica, never restored, goes the same way to the byte.
			r2, _ := replica.Apply(encoded)
			if !proto.Equal(r, r2) || replica.Hash() != s.Hash() {
				t.Fatalf("%v: replicas differ: %v, %v", c, r, r2)
			}
			g.learn(s, r)
		}
		if !bytes.Equal(image(t, s), image(t, replica)) {
			t.Fatal("the replicas' snapshots differ")
		}
	})
}

func image(t *rapid.T, s *Store) []byte {
	var b bytes.Buffer
	if err := s.WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func reread(t *rapid.T, s *Store) *Store {
	again, err := ReadSnapshot(bytes.NewReader(image(t, s)))
	if err != nil {
		t.Fatal(err)
	}
	if again.Hash() != s.Hash() {
		t.Fatalf("the hash was %x and is %x after a snapshot", s.Hash(), again.Hash())
	}
	return again
}
