package peer

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"go.uber.org/goleak"
)

// patience ends a test that would hang; no test waits for it to pass.
const patience = 30 * time.Second

// peerEnd is one replica's shell with what it was delivered.
type peerEnd struct {
	t      testing.TB
	peers  *Peers
	events chan replog.Event
	log    *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// listeners opens n loopback ports.
func listeners(t testing.TB, n int) ([]net.Listener, []paxos.Member) {
	t.Helper()
	var ls []net.Listener
	var members []paxos.Member
	for i := 0; i < n; i++ {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ls = append(ls, l)
		members = append(members, paxos.Member{ID: paxos.ReplicaID(i + 1), Name: "n" + string(rune('1'+i)), PeerAddress: l.Addr().String()})
	}
	return ls, members
}

func startPeer(t testing.TB, l net.Listener, members []paxos.Member, id paxos.ReplicaID, change func(*Options)) *peerEnd {
	t.Helper()
	e := &peerEnd{t: t, events: make(chan replog.Event, 10000), log: new(syncBuffer)}
	o := Options{
		Listener: l,
		Self:     id,
		Members:  members,
		Hello:    &pb.PeerHello{Cell: "test", Name: members[id-1].Name, Replica: uint64(id), Incarnation: uint64(100 + id), Version: replog.PeerVersion},
		Logger:   slog.New(slog.NewTextHandler(e.log, nil)),
		RetryMin: time.Millisecond,
		RetryMax: 20 * time.Millisecond,
	}
	if change != nil {
		change(&o)
	}
	e.peers = New(o, func(ev replog.Event, _ int) { e.events <- ev })
	e.peers.Start()
	return e
}

// wait returns the first event for which ok holds; earlier ones are dropped.
func (e *peerEnd) wait(what string, ok func(replog.Event) bool) replog.Event {
	e.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case ev := <-e.events:
			if ok(ev) {
				return ev
			}
		case <-timeout:
			e.t.Fatalf("%s did not come; log:\n%s", what, e.log)
		}
	}
}

func (e *peerEnd) waitConnected(name string) *pb.PeerHello {
	e.t.Helper()
	ev := e.wait("the connection of "+name, func(ev replog.Event) bool {
		c, ok := ev.(replog.PeerConnected)
		return ok && c.Hello.GetName() == name
	})
	return ev.(replog.PeerConnected).Hello
}

func (e *peerEnd) waitGone(id paxos.ReplicaID) {
	e.t.Helper()
	e.wait("the end of the connection", func(ev replog.Event) bool {
		c, ok := ev.(replog.PeerDisconnected)
		return ok && c.Peer == id
	})
}

// sendUntil sends until the other end has it: a lane may not be up yet.
func sendUntil(from, to *peerEnd, s replog.Send) {
	from.t.Helper()
	want := s.Message.GetPaxos().GetSequence()
	timeout := time.After(patience)
	for {
		from.peers.Send(s)
		retry := time.After(5 * time.Millisecond)
		for waiting := true; waiting; {
			select {
			case ev := <-to.events:
				if r, ok := ev.(replog.PeerReceived); ok && r.Message.GetPaxos().GetSequence() == want {
					return
				}
			case <-retry:
				waiting = false
			case <-timeout:
				from.t.Fatalf("message %d did not arrive; log:\n%s", want, from.log)
			}
		}
	}
}

func heartbeat(to paxos.ReplicaID, sequence uint64) replog.Send {
	return replog.Send{To: to, Message: &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: &pb.PaxosMessage{
		Kind: uint32(paxos.MsgHeartbeat), Sequence: sequence,
	}}}}
}

func TestPeersExchangeOnBothLanes(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	a := startPeer(t, ls[0], members, 1, nil)
	defer a.peers.Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	if h := a.waitConnected("n2"); h.GetIncarnation() != 102 || h.GetCell() != "test" {
		t.Fatalf("n1 saw %v", h)
	}
	if h := b.waitConnected("n1"); h.GetIncarnation() != 101 {
		t.Fatalf("n2 saw %v", h)
	}
	for i, bulk := range []bool{false, true} {
		m := heartbeat(2, uint64(10+i))
		m.Bulk = bulk
		sendUntil(a, b, m)
		m = heartbeat(1, uint64(20+i))
		m.Bulk = bulk
		sendUntil(b, a, m)
	}
}

func TestPeersReconnectAfterRestart(t *testing.T) {
	for _, restarted := range []paxos.ReplicaID{1, 2} {
		t.Run(members3[restarted-1], func(t *testing.T) {
			defer goleak.VerifyNone(t)
			ls, members := listeners(t, 2)
			other := 3 - restarted
			stays := startPeer(t, ls[other-1], members, other, nil)
			defer stays.peers.Close()
			again := startPeer(t, ls[restarted-1], members, restarted, nil)
			name := members[restarted-1].Name
			for round := 0; round < 3; round++ {
				stays.waitConnected(name)
				sendUntil(again, stays, heartbeat(other, uint64(round+1)))
				again.peers.Close()
				stays.waitGone(restarted)
				l, err := net.Listen("tcp", members[restarted-1].PeerAddress)
				if err != nil {
					t.Fatal(err)
				}
				again = startPeer(t, l, members, restarted, nil)
			}
			stays.waitConnected(name)
			again.peers.Close()
		})
	}
}

var members3 = []string{"n1", "n2", "n3"}

func TestGarbageAtThePeerPort(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	hello := func(m *pb.PeerMessage) func(*wire.Conn) {
		return func(c *wire.Conn) {
			if err := c.Queue(wire.KindPeer, sealed{m}); err != nil {
				t.Error(err)
			}
		}
	}
	for name, after := range map[string]func(*wire.Conn){
		"no message":   func(c *wire.Conn) { _ = c.QueueBytes(wire.KindPeer, []byte("\xff\xff\xff")) },
		"no hello":     hello(&pb.PeerMessage{}),
		"client frame": func(c *wire.Conn) { _ = c.QueueBytes(wire.KindClient, nil) },
		"stranger":     hello(helloMessage(&pb.PeerHello{Name: "n9", Cell: "test"}, laneMain, "")),
		"strange lane": hello(helloMessage(&pb.PeerHello{Name: "n1", Cell: "test"}, "fast", "")),
	} {
		nc, err := net.Dial("tcp", members[1].PeerAddress)
		if err != nil {
			t.Fatal(err)
		}
		c := wire.NewConn(nc, wire.Options{})
		if err := c.Handshake(context.Background()); err != nil {
			t.Fatal(err)
		}
		after(c)
		for err == nil {
			_, _, err = c.Read()
		}
		if _, ok := <-b.quietly(); ok {
			t.Errorf("%s: something was delivered", name)
		}
		c.Close()
	}
	for _, garbage := range []string{"GET / HTTP/1.0\r\n\r\n", "\x00\x01\x02\x03", strings.Repeat("x", 100000)} {
		nc, err := net.Dial("tcp", members[1].PeerAddress)
		if err != nil {
			t.Fatal(err)
		}
		// It may be closed before all of it is written.
		_, _ = io.WriteString(nc, garbage)
		if got, _ := io.ReadAll(nc); len(got) != 0 {
			t.Errorf("%.10q was answered with %q", garbage, got)
		}
		nc.Close()
	}
	// The peers go on as if nothing had been.
	a := startPeer(t, ls[0], members, 1, nil)
	defer a.peers.Close()
	b.waitConnected("n1")
	if n := strings.Count(b.log.String(), "was closed"); n != 1 {
		t.Errorf("garbage from one host was logged %d times:\n%s", n, b.log)
	}
}

// quietly is a closed channel if nothing was delivered.
func (e *peerEnd) quietly() <-chan replog.Event {
	if len(e.events) > 0 {
		return e.events
	}
	c := make(chan replog.Event)
	close(c)
	return c
}

func TestStrangerIsToldWhy(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	// n2 knows of a cell without n1, but n1 knows n2.
	b := startPeer(t, ls[1], []paxos.Member{{ID: 1, Name: "m1", PeerAddress: members[0].PeerAddress}, members[1]}, 2, nil)
	defer b.peers.Close()
	a := startPeer(t, ls[0], members, 1, nil)
	defer a.peers.Close()
	ev := a.wait("the refusal", func(ev replog.Event) bool {
		r, ok := ev.(replog.PeerReceived)
		return ok && r.Message.GetRefusal() != nil
	})
	r := ev.(replog.PeerReceived).Message.GetRefusal()
	if !r.GetFatal() || !strings.Contains(r.GetText(), `has no replica "n1"`) {
		t.Fatalf("n1 was told %v", r)
	}
}

func TestAddressOfAnotherReplica(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 3)
	ls[1].Close()
	c := startPeer(t, ls[2], members, 3, nil)
	defer c.peers.Close()
	swapped := append([]paxos.Member(nil), members...)
	swapped[1].PeerAddress = members[2].PeerAddress // n2's address leads to n3
	refused := make(chan struct{}, 1)
	a := startPeer(t, ls[0], swapped, 1, func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) {
			if bytes.Contains(p, []byte("is the address of replica n3")) {
				select {
				case refused <- struct{}{}:
				default:
				}
			}
		}), nil))
	})
	defer a.peers.Close()
	a.waitConnected("n3")
	select {
	case <-refused:
	case <-time.After(patience):
		t.Fatal("nothing was said about the wrong address")
	}
	if len(a.peers.links) != 2 || a.peers.links[0].main.Load() != nil {
		t.Fatal("n3 is taken for n2")
	}
}

// What comes in a member's name and is not that member does not push out the
// member's connection.
func TestStrangerInAMembersName(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 3)
	config := &paxos.Configuration{Cell: "test", CellIdentity: 7}
	for _, m := range members {
		m.Incarnation = uint64(100 + m.ID)
		config.Members = append(config.Members, m)
	}
	founded := func(id paxos.ReplicaID) *peerEnd {
		e := startPeer(t, ls[id-1], members, id, func(o *Options) { o.Hello.Process = 1 })
		e.peers.Founded(config)
		return e
	}
	c := founded(3)
	defer c.peers.Close()
	b := founded(2)
	defer b.peers.Close()
	c.waitConnected("n2")
	for _, s := range []struct {
		name  string
		hello *pb.PeerHello
		want  string
		fatal bool
	}{
		{"an emptied disk", &pb.PeerHello{Cell: "test", Name: "n2", Replica: 2, Incarnation: 42, Process: 2, Version: replog.PeerVersion}, "with another disk", true},
		{"another cell", &pb.PeerHello{Cell: "other", Name: "n2", Replica: 2, Incarnation: 102, Process: 2, Version: replog.PeerVersion}, `this is cell "test"`, true},
		{"another number", &pb.PeerHello{Cell: "test", Name: "n2", Replica: 1, Incarnation: 102, Process: 2, Version: replog.PeerVersion}, "calls itself replica 1", true},
		{"another release", &pb.PeerHello{Cell: "test", Name: "n2", Replica: 2, Incarnation: 102, Process: 2, Version: 99}, "same release", false},
		{"a copy", &pb.PeerHello{Cell: "test", Name: "n2", Replica: 2, Incarnation: 102, Process: 2, Version: replog.PeerVersion}, "another process is connected", false},
	} {
		for _, lane := range []string{laneMain, laneBulk} {
			got := refusal(t, members[2].PeerAddress, s.hello, lane)
			if !strings.Contains(got.GetText(), s.want) || got.GetFatal() != s.fatal {
				t.Errorf("%s (%s): was told %v", s.name, lane, got)
			}
		}
	}
	// n2 dials n3, not the other way round.
	h := &pb.PeerHello{Cell: "test", Name: "n3", Replica: 3, Incarnation: 103, Process: 1, Version: replog.PeerVersion}
	if got := refusal(t, members[1].PeerAddress, h, laneMain); !strings.Contains(got.GetText(), "does not dial") {
		t.Errorf("who is to be dialled was told %v", got)
	}
	if _, ok := <-c.quietly(); ok {
		t.Error("a stranger was noticed by the node")
	}
	sendUntil(b, c, heartbeat(3, 1))
	// The same member after a restart is let in once its old connection has ended.
	b.peers.Close()
	c.waitGone(2)
	h = &pb.PeerHello{Cell: "test", Name: "n2", Replica: 2, Incarnation: 102, Process: 2, Version: replog.PeerVersion}
	for i := 0; ; i++ {
		again := fakeHello(t, members[2].PeerAddress, h, laneMain)
		defer again.Close()
		if readRefusal(again) == nil {
			break
		}
		if i == 1000 {
			t.Fatal("it is not let in again")
		}
	}
	c.waitConnected("n2")
}

// refusal says hello and returns what the other side has against it.
func refusal(t testing.TB, address string, h *pb.PeerHello, lane string) *pb.PeerRefusal {
	t.Helper()
	c := fakeHello(t, address, h, lane)
	defer c.Close()
	return readRefusal(c)
}

// readRefusal reads until a refusal comes, or a ping: nil.
func readRefusal(c *wire.Conn) *pb.PeerRefusal {
	for {
		_, payload, err := c.Read()
		if err != nil || len(payload) == 0 {
			return nil
		}
		m := new(pb.PeerMessage)
		if body, err := unseal(payload); err == nil && m.Decode(body) == nil && m.GetRefusal() != nil {
			return m.GetRefusal()
		}
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

// fakePeer connects to a replica's port as n1 would.
func fakePeer(t testing.TB, address, lane string) *wire.Conn {
	t.Helper()
	return fakeHello(t, address, &pb.PeerHello{Cell: "test", Name: "n1", Replica: 1, Version: replog.PeerVersion}, lane)
}

func fakeHello(t testing.TB, address string, h *pb.PeerHello, lane string) *wire.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewConn(nc, wire.Options{ReadTimeout: patience})
	if err := c.Handshake(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := c.Queue(wire.KindPeer, sealed{helloMessage(h, lane, "")}); err != nil {
		t.Fatal(err)
	}
	if _, err := readHello(c); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestSilentPeerIsGivenUp(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, func(o *Options) { o.ReadTimeout = 20 * time.Millisecond })
	defer b.peers.Close()
	c := fakePeer(t, members[1].PeerAddress, laneMain)
	defer c.Close()
	b.waitConnected("n1")
	b.waitGone(1) // although the connection stands
}

func TestPingsKeepAQuietConnection(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, func(o *Options) { o.PingEvery = time.Millisecond })
	defer b.peers.Close()
	c := fakePeer(t, members[1].PeerAddress, laneMain)
	defer c.Close()
	for i := 0; i < 3; i++ {
		if kind, p, err := c.Read(); err != nil || kind != wire.KindPeer || len(p) != 0 {
			t.Fatalf("instead of a ping: kind %d, %d bytes, %v", kind, len(p), err)
		}
	}
}

func TestPeerThatDoesNotReadCostsBoundedMemory(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	c := fakePeer(t, members[1].PeerAddress, laneMain)
	defer c.Close()
	b.waitConnected("n1")
	m := heartbeat(1, 1)
	m.Message.GetPaxos().Entries = []*pb.Entry{{Value: &pb.Value{Commands: [][]byte{make([]byte, 1<<20)}}}}
	for i := 0; i < 1000 && b.peers.Dropped() == 0; i++ {
		b.peers.Send(m) // never blocks
	}
	if b.peers.Dropped() == 0 {
		t.Fatal("a thousand megabytes were queued")
	}
	conn := b.peers.links[0].main.Load()
	if conn == nil {
		return // given up already
	}
	if n := conn.Queued(); n > peerQueueBytes {
		t.Fatalf("%d bytes are queued", n)
	}
}

func TestSendToNobodyIsDropped(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	b.peers.Send(heartbeat(1, 1)) // not connected
	b.peers.Send(heartbeat(7, 1)) // no member
	if n := b.peers.Dropped(); n != 2 {
		t.Fatalf("%d dropped, want 2", n)
	}
}

func TestNewConnectionTakesTheOldOnesPlace(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	old := fakePeer(t, members[1].PeerAddress, laneMain)
	defer old.Close()
	b.waitConnected("n1")
	c := fakePeer(t, members[1].PeerAddress, laneMain)
	defer c.Close()
	b.waitConnected("n1")
	// The old one ends; nothing of it is delivered any more.
	_ = old.Queue(wire.KindPeer, sealed{heartbeat(2, 1).Message})
	for err := error(nil); err == nil; {
		_, _, err = old.Read()
	}
	if err := c.Queue(wire.KindPeer, sealed{heartbeat(2, 2).Message}); err != nil {
		t.Fatal(err)
	}
	b.wait("the message", func(ev replog.Event) bool {
		switch ev := ev.(type) {
		case replog.PeerDisconnected:
			t.Fatal("the end of the replaced connection was delivered")
		case replog.PeerReceived:
			if ev.Message.GetPaxos().GetSequence() == 1 {
				t.Fatal("a message of the replaced connection was delivered")
			}
			return true
		}
		return false
	})
}

func TestHelloIsUpdated(t *testing.T) {
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	a := startPeer(t, ls[0], members, 1, nil)
	defer a.peers.Close()
	b := startPeer(t, ls[1], members, 2, nil)
	defer b.peers.Close()
	b.waitConnected("n1")
	a.waitConnected("n2")
	a.peers.UpdateHello(&pb.PeerHello{Cell: "test", Name: "n1", Replica: 1, Founded: true, CellIdentity: 5})
	b.wait("the new hello", func(ev replog.Event) bool {
		r, ok := ev.(replog.PeerReceived)
		return ok && r.Message.GetHello().GetCellIdentity() == 5
	})
}

func TestTooManyThatDoNotSayHello(t *testing.T) {
	tooManyThatDoNotSayHello(t, 0, maxGreeting)
	tooManyThatDoNotSayHello(t, 3, 3)
}

func tooManyThatDoNotSayHello(t *testing.T, option, most int) {
	t.Helper()
	defer goleak.VerifyNone(t)
	ls, members := listeners(t, 2)
	ls[0].Close()
	b := startPeer(t, ls[1], members, 2, func(o *Options) { o.HelloTimeout, o.MaxGreetings = time.Hour, option })
	defer b.peers.Close()
	var open []net.Conn
	closed := make(chan struct{})
	for i := 0; i < most+1; i++ {
		nc, err := net.Dial("tcp", members[1].PeerAddress)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, nc)
	}
	// They are accepted in order: the last one is one too many.
	go func() {
		defer close(closed)
		_, _ = open[most].Read(make([]byte, 1))
	}()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Error("every connection is kept")
	}
	for _, nc := range open {
		nc.Close()
	}
	<-closed
}
