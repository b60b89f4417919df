package server

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// patience bounds every wait in these tests; on a good day nothing takes a
// hundredth of it.
const patience = 60 * time.Second

// testCell runs replicas in this process, over loopback, each with a directory
// of its own. Addresses stay the same over restarts.
type testCell struct {
	t       *testing.T
	dir     string
	members []paxos.Member
	client  map[string]string // addresses by name
	running map[string]*running
	bound   map[string][2]net.Listener // of replicas that did not start yet
	change  func(*Config)
}

type running struct {
	s    *Server
	stop context.CancelFunc
	done chan error
}

func newTestCell(t *testing.T, replicas int) *testCell {
	t.Helper()
	c := &testCell{t: t, dir: t.TempDir(), client: map[string]string{}, running: map[string]*running{}, bound: map[string][2]net.Listener{}}
	for i := range replicas {
		name := fmt.Sprintf("n%d", i+1)
		var l [2]net.Listener
		for k := range l {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			l[k] = ln
		}
		c.bound[name] = l
		c.client[name] = l[0].Addr().String()
		c.members = append(c.members, paxos.Member{Name: name, PeerAddress: l[1].Addr().String(), Voter: true})
	}
	t.Cleanup(func() {
		for name := range c.running {
			c.stop(name)
		}
		for _, l := range c.bound {
			_ = l[0].Close()
			_ = l[1].Close()
		}
	})
	return c
}

func (c *testCell) config(name string) Config {
	cfg := Config{
		Name: name, Cell: "test", DataDir: filepath.Join(c.dir, name), Version: "test",
		ListenClient: c.client[name], ListenHTTP: "127.0.0.1:0", InitialCluster: c.members,
		Tuning: Tuning{SegmentBytes: 1 << 20},
	}
	for _, m := range c.members {
		if m.Name == name {
			cfg.ListenPeer = m.PeerAddress
		}
	}
	if l, ok := c.bound[name]; ok {
		delete(c.bound, name)
		cfg.ClientListener, cfg.PeerListener = l[0], l[1]
	}
	if c.change != nil {
		c.change(&cfg)
	}
	return cfg
}

func (c *testCell) start(name string) {
	c.t.Helper()
	s, err := New(c.config(name))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{s: s, stop: cancel, done: make(chan error, 1)}
	go func() { r.done <- s.Run(ctx) }()
	c.running[name] = r
}

func (c *testCell) startAll() {
	c.t.Helper()
	for _, m := range c.members {
		c.start(m.Name)
	}
}

// stop stops a replica in order.
func (c *testCell) stop(name string) {
	c.t.Helper()
	r := c.running[name]
	delete(c.running, name)
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			c.t.Errorf("%s stopped with %v", name, err)
		}
	case <-time.After(patience):
		c.t.Fatalf("%s does not stop", name)
	}
}

// master waits until some replica serves as master, and returns its name.
func (c *testCell) master() string {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		for _, m := range c.members {
			r := c.running[m.Name]
			if r == nil {
				continue
			}
			select {
			case err := <-r.done:
				delete(c.running, m.Name)
				c.t.Fatalf("%s has ended: %v", m.Name, err)
			default:
			}
			if l := r.s.loop.Load(); l != nil && l.role.Load().Master {
				return m.Name
			}
		}
		time.Sleep(5 * time.Millisecond) // between two looks
	}
	c.t.Fatal("the cell has no master")
	return ""
}

// rawClient speaks the protocol by hand.
type rawClient struct {
	t       *testing.T
	w       *wire.Conn
	hello   *pb.HelloReply
	nonce   []byte
	session uint64
	number  uint64
}

// dial connects to a replica and says hello.
func (c *testCell) dial(name string) *rawClient {
	c.t.Helper()
	nc, err := net.Dial("tcp", c.client[name])
	if err != nil {
		c.t.Fatal(err)
	}
	r := &rawClient{t: c.t, w: wire.NewConn(nc, wire.Options{ReadTimeout: patience})}
	c.t.Cleanup(func() { _ = r.w.Close() })
	if err := r.w.Handshake(context.Background()); err != nil {
		c.t.Fatal(err)
	}
	r.send(hello("test"))
	r.hello = r.receive().GetHello()
	if r.hello == nil {
		c.t.Fatal("no answer to hello")
	}
	return r
}

func (r *rawClient) send(m *pb.ClientMessage) {
	r.t.Helper()
	queue(r.t, r.w, m)
}

func (r *rawClient) receive() *pb.ServerMessage {
	r.t.Helper()
	m, err := readServer(r.w)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// open opens a session.
func (r *rawClient) open() {
	r.t.Helper()
	r.nonce = []byte("0123456789abcdef")
	r.send(&pb.ClientMessage{Body: &pb.ClientMessage_Open{Open: &pb.OpenSession{
		Id: 1, Nonce: r.nonce, LeaseMs: 60_000, Client: &storepb.ClientInfo{Name: "test"},
	}}})
	o := r.receive().GetOpened()
	if o.GetSession() == 0 {
		r.t.Fatalf("no session: %v", o)
	}
	r.session = o.GetSession()
}

// attach takes up another client's session.
func (r *rawClient) attach(o *rawClient) {
	r.t.Helper()
	r.session, r.nonce, r.number = o.session, o.nonce, o.number
	r.send(&pb.ClientMessage{Body: &pb.ClientMessage_Attach{Attach: &pb.Attach{Session: r.session, Nonce: r.nonce}}})
	if a := r.receive().GetAttached(); a.GetCode() != storepb.Code_OK || a.GetSession() != r.session || a.GetLastNumber() != r.number {
		r.t.Fatalf("attached: %v, want session %d at number %d", a, r.session, r.number)
	}
}

// put writes a node.
func (r *rawClient) put(path, data string) {
	r.t.Helper()
	r.number++
	r.send(putMessage(r, path, data))
	reply := r.receive().GetReply()
	if res := reply.GetResult(); res.GetCode() != storepb.Code_OK || res.GetNumber() != r.number {
		r.t.Fatalf("put %s: %v", path, reply)
	}
}

func putMessage(r *rawClient, path, data string) *pb.ClientMessage {
	return &pb.ClientMessage{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: &storepb.Command{
		Session: r.session, Number: r.number, LowestUnanswered: r.number,
		Op: &storepb.Command_Put{Put: &storepb.Put{Path: path, Data: []byte(data), HasData: true, Create: true}},
	}}}}
}

// get reads a node linearizably.
func (r *rawClient) get(path string) string {
	r.t.Helper()
	r.send(&pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{Id: 9, Op: &pb.Read_Node{Node: &pb.ReadNode{Path: path}}}}})
	reply := r.receive().GetRead()
	if reply.GetCode() != storepb.Code_OK {
		r.t.Fatalf("read %s: %v", path, reply)
	}
	return string(reply.GetNode().GetData())
}

// status asks a replica how it is.
func (r *rawClient) status() *pb.StatusResult {
	r.t.Helper()
	r.send(&pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{
		Id: 8, Level: pb.ReadLevel_STALE, Op: &pb.Read_Status{Status: &pb.ReadStatus{}},
	}}})
	s := r.receive().GetRead().GetStatus()
	if s == nil {
		r.t.Fatal("no status")
	}
	return s
}

func TestCellOfThree(t *testing.T) {
	c := newTestCell(t, 3)
	c.startAll()
	first := c.master()
	a := c.dial(first)
	if !a.hello.GetMaster() || a.hello.GetCell() != "test" || a.hello.GetReplica() != first {
		t.Errorf("hello: %v", a.hello)
	}
	a.open()
	a.put("/x", "one")
	s := a.status()
	// The first mastership's revisions follow the founders' clocks already.
	if since := int64(s.GetRevision()>>31) - (time.Now().Unix() - time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC).Unix()); since > 0 || since < -60 {
		t.Errorf("revision %d is of %d s from now", s.GetRevision(), since)
	}
	if s.GetRole() != "master" || s.GetVersion() != "test" || len(s.GetPeers()) != 2 || s.GetSessions() != 1 {
		t.Errorf("status: %v", s)
	}
	// A replica that is not master names the master by its advertised address.
	for _, m := range c.members {
		if m.Name == first {
			continue
		}
		waitFor(t, m.Name+" names the master", func() bool {
			h := c.dial(m.Name).hello
			return !h.GetMaster() && h.GetMasterName() == first && h.GetMasterAddress() == c.client[first]
		})
	}
	// An orderly stop hands the lead over; the session lives on.
	begin := time.Now()
	c.stop(first)
	t.Logf("%s stopped in %v", first, time.Since(begin))
	if m, err := readServer(a.w); err == nil && m.GetLeaving() == nil && m.GetError().GetCode() != pb.ErrorCode_SHUTTING_DOWN {
		t.Errorf("the clients of a stopping master got %v", m)
	}
	second := c.master()
	if second == first {
		t.Fatal("a stopped replica is master")
	}
	b := c.dial(second)
	b.attach(a)
	if got := b.get("/x"); got != "one" {
		t.Errorf("/x is %q after the hand-over", got)
	}
	b.put("/x", "two")
	// The first one comes back and catches up.
	c.start(first)
	waitFor(t, first+" catches up", func() bool {
		r := c.running[first].s
		return r.ready(context.Background()) == nil && c.dial(first).status().GetRevision() >= b.status().GetRevision()
	})
	// The whole cell stops and starts again with everything.
	for _, m := range c.members {
		c.stop(m.Name)
	}
	c.startAll()
	d := c.dial(c.master())
	d.attach(b)
	if got := d.get("/x"); got != "two" {
		t.Errorf("/x is %q after the restart", got)
	}
}

// waitFor waits for a condition.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
}

func TestCellOfOne(t *testing.T) {
	c := newTestCell(t, 1)
	c.startAll()
	a := c.dial(c.master())
	a.open()
	a.put("/x", "one")
	begin := time.Now()
	c.stop("n1")
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("a cell of one took %v to stop: it has nobody to hand over to", took)
	}
	c.startAll()
	b := c.dial(c.master())
	b.attach(a)
	if got := b.get("/x"); got != "one" {
		t.Errorf("/x is %q after the restart", got)
	}
}

// run runs a replica that is expected not to start, and returns its error.
func (c *testCell) run(cfg Config) error {
	c.t.Helper()
	s, err := New(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { done <- s.Run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		c.t.Fatal("the replica started")
		return nil
	}
}

func TestDataOfOthersIsRefused(t *testing.T) {
	c := newTestCell(t, 1)
	c.startAll()
	c.master()
	dir := filepath.Join(c.dir, "n1")
	alone := good(t)
	alone.Cell = "test"
	alone.DataDir = dir
	wantError(t, "in use", c.run(alone), "in use")
	c.stop("n1")

	before := listing(t, dir)
	other := alone
	other.Name = "n2"
	wantError(t, "another replica's", c.run(other), `the data of replica "n1" of cell "test"`)
	other = alone
	other.Cell = "elsewhere"
	wantError(t, "another cell's", c.run(other), `the data of replica "n1" of cell "test"`)
	if after := listing(t, dir); before != after {
		t.Errorf("the directory was changed:\n%s\n%s", before, after)
	}
	strange := alone
	strange.DataDir = t.TempDir()
	if err := os.WriteFile(filepath.Join(strange.DataDir, "letter.txt"), []byte("dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantError(t, "no replica's", c.run(strange), "letter.txt")
	file := alone
	file.DataDir = filepath.Join(strange.DataDir, "letter.txt")
	wantError(t, "a file", c.run(file), "--data-dir")
	c.startAll()
	c.master()
}

func wantError(t *testing.T, what string, err error, want string) {
	t.Helper()
	if err == nil || !contains(err.Error(), want) || !contains(err.Error(), "--data-dir") {
		t.Errorf("%s: error %v does not say %q", what, err, want)
	}
}

// listing names the files below dir with size and time.
func listing(t *testing.T, dir string) string {
	t.Helper()
	out := ""
	err := filepath.Walk(dir, func(path string, i os.FileInfo, err error) error {
		if err == nil && !i.IsDir() && i.Name() != "LOCK" { // that tells who looked last
			out += fmt.Sprintln(path, i.Size(), i.ModTime())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
