package replica

import (
	"fmt"
	"slices"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	replogpb "github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// liveCell runs whole replicas, with their real logs on disks in memory and a
// network that delivers at the next turn. Time passes in ticks.
type liveCell struct {
	t    testing.TB
	now  time.Duration
	n    int
	reps []*live
}

type live struct {
	*Replica
	c       *liveCell
	id      paxos.ReplicaID
	name    string
	fs      *faultfs.FS
	opened  *storage.Opened
	storage *storage.Storage
	up, cut bool
	in      []Event
	inbox   map[ConnID][]*wirepb.ServerMessage
	ended   map[ConnID]bool
	last    ConnID
	role    Role
	edit    func(*Options)
	limits  replog.StateLimits
}

func newLiveCell(t testing.TB, n int, edit func(*Options)) *liveCell {
	c := &liveCell{t: t, now: time.Hour, n: n}
	for i := 1; i <= n; i++ {
		l := &live{c: c, id: paxos.ReplicaID(i), name: fmt.Sprintf("n%d", i), fs: faultfs.New(), edit: edit}
		c.reps = append(c.reps, l)
		l.start()
	}
	return c
}

func (l *live) start() {
	o := storage.Options{FS: l.fs, Cell: "test", Replica: l.name, SegmentBytes: 1 << 20,
		Decode: DecodeSnapshot, NewIncarnation: func() uint64 { return 1000 + uint64(l.id) }}
	opened, err := storage.Open(o)
	if err != nil {
		l.c.t.Fatalf("opening the log of %s: %v", l.name, err)
	}
	l.opened, l.storage = opened, opened.Storage
	ro := Options{Version: "test", WallMS: func() int64 { return 1_700_000_000_000 }}
	ro.Node = replog.NodeOptions{Cell: "test", Name: l.name, ClientAddress: l.name + ":7101", PeerAddress: l.name + ":7201",
		NewIdentity: func() uint64 { return 0xce11 }, Now: l.c.now}
	ro.Node.Paxos = paxos.Options{Seed: uint64(l.id), Now: l.c.now}
	for i := 1; i <= l.c.n; i++ {
		ro.Node.InitialCluster = append(ro.Node.InitialCluster, paxos.Member{
			Name: fmt.Sprintf("n%d", i), PeerAddress: fmt.Sprintf("n%d:7201", i)})
	}
	if l.edit != nil {
		l.edit(&ro)
	}
	l.limits = ro.Node.State
	if l.Replica, err = New(ro, &opened.Found); err != nil {
		l.c.t.Fatalf("starting %s: %v", l.name, err)
	}
	l.up, l.in, l.last = true, nil, l.last+100
	l.inbox, l.ended = map[ConnID][]*wirepb.ServerMessage{}, map[ConnID]bool{}
	for _, p := range l.c.reps {
		if p != l && p.up && !p.cut {
			p.in = append(p.in, replog.PeerConnected{Hello: l.hello()})
			l.in = append(l.in, replog.PeerConnected{Hello: p.hello()})
		}
	}
}

func (l *live) hello() *replogpb.PeerHello {
	identity := l.Configuration().CellIdentity
	return &replogpb.PeerHello{Cell: "test", Name: l.name, Replica: uint64(l.id), Incarnation: l.opened.Identity.GetIncarnation(),
		CellIdentity: identity, Founded: identity != 0, ClientAddress: l.name + ":7101", PeerAddress: l.name + ":7201",
		Version: replog.PeerVersion, StateNodes: l.limits.Nodes, StateBytes: l.limits.Bytes}
}

// crash ends a replica; what is not on disk is lost.
func (l *live) crash() {
	l.up, l.role = false, Role{}
	l.storage.Close()
	l.fs = l.fs.CrashLost()
	l.disconnect()
}

func (l *live) disconnect() {
	for _, p := range l.c.reps {
		if p != l && p.up {
			p.in = append(p.in, replog.PeerDisconnected{Peer: l.id})
			l.in = append(l.in, replog.PeerDisconnected{Peer: p.id})
		}
	}
}

// join ends a partition.
func (l *live) join() {
	l.cut = false
	for _, p := range l.c.reps {
		if p != l && p.up {
			p.in = append(p.in, replog.PeerConnected{Hello: l.hello()})
			l.in = append(l.in, replog.PeerConnected{Hello: p.hello()})
		}
	}
}

// turn lets every replica that runs do what it has to.
func (c *liveCell) turn() {
	for _, l := range c.reps {
		if !l.up {
			continue
		}
		in := l.in
		l.in = nil
		for _, ev := range in {
			l.Step(c.now, ev)
		}
		l.perform(l.Take(c.now))
	}
}

func (c *liveCell) run(d time.Duration) {
	for end := c.now + d; c.now < end; c.now += tick {
		for _, l := range c.reps {
			if l.up {
				l.in = append(l.in, replog.Tick{})
			}
		}
		for range 6 {
			c.turn()
		}
	}
}

// until runs until a condition holds.
func (c *liveCell) until(what string, f func() bool) {
	c.t.Helper()
	for end := c.now + time.Minute; !f(); {
		if c.now > end {
			c.t.Fatalf("a minute has passed without: %s", what)
		}
		c.run(tick)
	}
}

func (c *liveCell) master() *live {
	c.t.Helper()
	var m *live
	c.until("a master that all who run know", func() bool {
		m = nil
		for _, l := range c.reps {
			if l.up && !l.cut && l.role.Master {
				m = l
			}
		}
		return m != nil && !slices.ContainsFunc(c.reps, func(l *live) bool {
			return l.up && !l.cut && l.role.MasterName != m.name
		})
	})
	return m
}

func (l *live) must(err error) {
	if err != nil {
		l.c.t.Fatalf("%s: %v", l.name, err)
	}
}

func (l *live) send(s replog.Send) {
	p := l.c.reps[s.To-1]
	if p.up && !p.cut && !l.cut {
		p.in = append(p.in, replog.PeerReceived{Peer: l.id, Message: s.Message})
	}
}

func (l *live) perform(e Effects) {
	l.must(e.Log.Fatal)
	g := &e.Log
	for _, s := range g.Send {
		l.send(s)
	}
	if i := g.InstallSnapshot; i != nil {
		l.must(l.storage.InstallSnapshot(i.Meta, i.Promised, i.Entries))
		l.in = append(l.in, replog.SnapshotInstalled{Meta: i.Meta})
	}
	if g.SetFounded != 0 {
		l.must(l.storage.SetFounded(g.SetFounded))
	}
	for _, a := range g.Append {
		l.must(l.storage.Append([]*paxos.Record{a.Record}))
	}
	last := uint64(0)
	if len(g.Append) > 0 {
		l.must(l.storage.Sync())
		last = g.Append[len(g.Append)-1].Sequence
	}
	for _, s := range g.After {
		last = max(last, s.Sequence)
	}
	if last > 0 {
		l.in = append(l.in, replog.AppendDone{Sequence: last})
	}
	for _, s := range g.After {
		l.send(s.Send)
	}
	if g.Trim > 0 {
		l.must(l.storage.Trim(g.Trim))
	}
	for _, r := range g.DiskRead {
		entries, trimmed, err := l.storage.Read(r.From, int(r.Limit), paxos.Slot(l.Metrics().Chosen))
		l.must(err)
		l.in = append(l.in, replog.ReadDone{To: r.To, Entries: entries, Trimmed: trimmed})
	}
	if s := g.SaveSnapshot; s != nil {
		err := l.storage.SaveSnapshot(s.Meta, s.Snapshot)
		l.in = append(l.in, replog.SnapshotSaved{Slot: paxos.Slot(s.Meta.GetSlot()), Err: err})
	}
	for _, r := range g.SnapshotRead {
		chunk, err := l.storage.ReadSnapshot(r.Slot, r.Offset, r.Limit)
		l.in = append(l.in, replog.SnapshotReadDone{To: r.To, Chunk: chunk, Err: err})
	}
	for _, chunk := range g.ReceiveSnapshot {
		meta, state, err := l.storage.ReceiveSnapshot(chunk)
		l.in = append(l.in, replog.SnapshotReceived{Meta: meta, State: state, Err: err})
	}
	for _, s := range e.Conns {
		l.inbox[s.Conn] = append(l.inbox[s.Conn], s.Message)
	}
	for _, x := range e.Close {
		l.ended[x.Conn] = true
		l.in = append(l.in, ConnClosed{Conn: x.Conn})
	}
	l.role = e.Role
}

// liveClient talks to one replica.
type liveClient struct {
	l    *live
	conn ConnID
}

func (l *live) dial() *liveClient {
	l.last++
	l.in = append(l.in, ConnOpened{Conn: l.last, Remote: "client"})
	cl := &liveClient{l, l.last}
	cl.ask(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2}))
	return cl
}

func (cl *liveClient) post(m *wirepb.ClientMessage) {
	cl.l.in = append(cl.l.in, ConnReceived{Conn: cl.conn, Message: m})
}

// ask sends a message and waits for the next one.
func (cl *liveClient) ask(m *wirepb.ClientMessage) *wirepb.ServerMessage {
	cl.l.c.t.Helper()
	cl.post(m)
	return cl.next()
}

func (cl *liveClient) next() *wirepb.ServerMessage {
	cl.l.c.t.Helper()
	cl.l.c.until("an answer", func() bool { return len(cl.l.inbox[cl.conn]) > 0 })
	m := cl.l.inbox[cl.conn][0]
	cl.l.inbox[cl.conn] = cl.l.inbox[cl.conn][1:]
	return m
}

// same demands that all replicas that run come to the same state.
func (c *liveCell) same() {
	c.t.Helper()
	c.until("the same state everywhere", func() bool {
		var first *live
		for _, l := range c.reps {
			if !l.up {
				continue
			}
			if first == nil {
				first = l
			}
			if l.store.Hash() != first.store.Hash() || l.applied != first.applied {
				return false
			}
		}
		return true
	})
	for _, l := range c.reps {
		if l.up {
			l.must(l.store.Check())
		}
	}
}

func TestLiveCells(t *testing.T) {
	for _, n := range []int{1, 3, 5} {
		t.Run(fmt.Sprintf("%d replicas", n), func(t *testing.T) {
			c := newLiveCell(t, n, nil)
			m := c.master()
			cl := m.dial()
			s := cl.ask(open(1, nonce(1), 12*time.Second)).GetOpened().GetSession()
			if r := cl.ask(request(s, 1, put("/a", "x"))).GetReply().GetResult(); r.GetCode() != storepb.Code_OK {
				t.Fatalf("put: %v", r)
			}
			if a := cl.ask(read(nodeRead("/a"))).GetRead(); string(a.GetNode().GetData()) != "x" {
				t.Fatalf("read: %v", a)
			}
			if k := cl.ask(keepAlive(1, true, s)).GetKept(); len(k.GetLeases()) != 1 || k.GetHeldNs() < 0 {
				t.Fatalf("kept: %v", k)
			}
			c.same()
		})
	}
}

// The master dies with a request under way; session, lock and data live on, and
// the request, repeated, is executed once.
func TestLiveFailover(t *testing.T) {
	c := newLiveCell(t, 3, nil)
	m := c.master()
	cl := m.dial()
	s := cl.ask(open(1, nonce(1), 4*time.Second)).GetOpened().GetSession()
	fence := cl.ask(request(s, 1, lock("/l", 0))).GetReply().GetResult().GetGrant().GetFence()
	for n := uint64(2); n <= 20; n++ {
		cl.post(request(s, n, put("/a", fmt.Sprint(n))))
	}
	c.turn()
	c.turn()
	m.crash()
	died := c.now
	next := c.master()
	if took := c.now - died; took > 3*time.Second {
		t.Errorf("the failover took %v", took)
	}
	cl = next.dial()
	a := cl.ask(attach(s, 1, 0)).GetAttached()
	if a.GetCode() != storepb.Code_OK || a.GetEpoch() < 2 {
		t.Fatalf("attached: %v", a)
	}
	for n := uint64(2); n <= 20; n++ {
		cl.post(request(s, n, put("/a", fmt.Sprint(n))))
	}
	for n := uint64(2); n <= 20; n++ {
		r := cl.next().GetReply().GetResult()
		if r.GetNumber() != n || r.GetCode() != storepb.Code_OK || r.GetStat().GetContentGeneration() != n-1 {
			t.Fatalf("result of %d: %v", n, r)
		}
	}
	l, _ := next.store.Lock("/l")
	if len(l.Holders) != 1 || l.Holders[0].GetSession() != s || l.Fence != fence {
		t.Errorf("the lock after the failover: %+v", l)
	}
	m.start()
	c.same()
	// Nobody renews: the session ends, once.
	c.run(6 * time.Second)
	if _, ok := next.store.Session(s); ok {
		t.Error("the session lives for ever")
	}
	c.same()
}

// A master that is cut off gives no lease and serves no read; when it is back
// it sends its clients on.
func TestLivePartition(t *testing.T) {
	c := newLiveCell(t, 3, nil)
	old := c.master()
	cl := old.dial()
	s := cl.ask(open(1, nonce(1), 4*time.Second)).GetOpened().GetSession()
	old.cut = true
	cl.post(keepAlive(1, true, s))
	cl.post(read(nodeRead("/")))
	cl.post(request(s, 1, put("/a", "x")))
	next := c.master()
	if next == old {
		t.Fatal("the one that is cut off is still master")
	}
	other := next.dial()
	if a := other.ask(attach(s, 1, 0)).GetAttached(); a.GetCode() != storepb.Code_OK {
		t.Fatalf("attached: %v", a)
	}
	if r := other.ask(request(s, 1, put("/a", "y"))).GetReply().GetResult(); r.GetCode() != storepb.Code_OK {
		t.Fatalf("put: %v", r)
	}
	c.run(2 * time.Second)
	for _, m := range old.inbox[cl.conn] {
		if m.GetLeaving() == nil {
			t.Errorf("the one that is cut off answered %v", m)
		}
	}
	if !old.ended[cl.conn] {
		t.Error("a master without a majority keeps its clients")
	}
	old.join()
	c.same()
	if n, _ := old.store.Node("/a"); string(n.Data) != "y" {
		t.Errorf("content %q after the partition", n.Data)
	}
}

// Handing over: clients are told where to go, and the successor serves.
func TestLiveHandOver(t *testing.T) {
	c := newLiveCell(t, 3, nil)
	old := c.master()
	cl := old.dial()
	s := cl.ask(open(1, nonce(1), 4*time.Second)).GetOpened().GetSession()
	began := c.now
	old.in = append(old.in, HandOver{})
	var next *live
	c.until("another master", func() bool {
		for _, l := range c.reps {
			if l != old && l.role.Master {
				next = l
			}
		}
		return next != nil
	})
	if took := c.now - began; took > 400*time.Millisecond {
		t.Errorf("handing over took %v, as long as an election", took)
	}
	if m := cl.next(); m.GetLeaving().GetMasterAddress() != next.name+":7101" {
		t.Errorf("got %v, want Leaving to %s", m, next.name)
	}
	other := next.dial()
	if a := other.ask(attach(s, 1, 0)).GetAttached(); a.GetCode() != storepb.Code_OK {
		t.Fatalf("attached: %v", a)
	}
}

// A replica that was away while the log was cut behind a snapshot gets the
// snapshot; one that restarts comes back from its own.
func TestLiveSnapshots(t *testing.T) {
	c := newLiveCell(t, 3, func(o *Options) { o.Node.SnapshotSlots, o.Node.TrailSlots = 50, 10 })
	m := c.master()
	away := c.reps[0]
	if away == m {
		away = c.reps[1]
	}
	away.crash()
	cl := m.dial()
	s := cl.ask(open(1, nonce(1), long)).GetOpened().GetSession()
	cl.ask(request(s, 1, lock("/l", 0)))
	for n := uint64(2); n <= 400; n++ {
		if r := cl.ask(request(s, n, put(fmt.Sprintf("/d/%d", n%7), fmt.Sprint(n)))).GetReply().GetResult(); r.GetCode() != storepb.Code_OK {
			t.Fatalf("put: %v", r)
		}
	}
	away.start()
	c.same()
	if away.Status(c.now).GetSnapshotSlot() == 0 {
		t.Error("it caught up without a snapshot: the test shows nothing")
	}
	m.crash()
	m.start()
	c.same()
	if st := m.Status(c.now); st.GetSnapshotSlot() == 0 || st.GetSessions() != 1 || st.GetEpoch() == 0 {
		t.Errorf("status after the restart: %v", st)
	}
}
