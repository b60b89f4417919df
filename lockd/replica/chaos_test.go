package replica

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/replog"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// chaosClient is a client of TestChaos, which knows little.
type chaosClient struct {
	*testClient
	open     uint64 // number of the opening, 0: none
	session  uint64
	number   uint64
	acked    uint64
	attached bool
}

// Whatever the log takes, drops, holds back, proves late and applies late, and
// however masters change: no assertion fails, nothing is left under way, and each
// session that is left gets a lease when its client asks for one.
func TestChaos(t *testing.T) {
	for seed := range uint64(chaosSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { chaos(t, rand.New(rand.NewPCG(seed, 1))) })
	}
}

// chaosSeeds takes some seconds.
const chaosSeeds = 60

func chaos(t *testing.T, rng *rand.Rand) {
	room := 48 << 20
	c := newCell(t, 3, func(o *Options) {
		o.MaxPendingSession, o.WatchTopicBytes = 8, 8<<10
		o.Room = func(ConnID, bool) int { return room }
	})
	at := 1
	var clients []*chaosClient
	leases := []time.Duration{time.Second, 2 * time.Second, 6 * time.Second}
	hear := func(x *chaosClient) {
		for _, m := range x.all() {
			switch {
			case m.GetOpened() != nil:
				x.session, x.attached = m.GetOpened().GetSession(), true
			case m.GetAttached() != nil:
				if a := m.GetAttached(); a.GetCode() != storepb.Code_OK {
					x.session, x.open, x.attached = 0, 0, false
				} else if x.session == a.GetSession() {
					x.number = a.GetLastNumber()
				}
			case m.GetEvent() != nil:
				x.acked = max(x.acked, m.GetEvent().GetEvent().GetNumber())
			case m.GetKept() != nil:
				for _, g := range m.GetKept().GetGone() {
					if g == x.session {
						x.session, x.open, x.attached = 0, 0, false
					}
				}
			}
		}
	}
	nonces := uint64(0)
	connect := func(x *chaosClient) {
		if x.testClient != nil {
			x.r.Step(c.now, ConnClosed{Conn: x.conn})
		}
		x.testClient = c.reps[at-1].connect()
		x.attached = false
		x.post(hello(&wirepb.Hello{VersionMin: 2, VersionMax: 2, Cell: "test"}))
	}
	for range 6 {
		x := &chaosClient{}
		connect(x)
		clients = append(clients, x)
	}
	for range 400 {
		x := clients[rng.IntN(len(clients))]
		hear(x)
		m := c.reps[at-1]
		switch k := rng.IntN(100); {
		case k < 8:
			if x.open == 0 {
				nonces++
				x.open, x.number, x.acked = nonces, 0, 0
			}
			x.post(open(x.open, nonce(x.open), leases[rng.IntN(3)]))
		case k < 14 && x.session != 0:
			x.post(attach(x.session, x.open, x.acked))
			x.attached = true
		case k < 18:
			connect(x)
		case k < 30 && x.session != 0:
			x.post(keepAlive(1, rng.IntN(2) == 0, x.session))
		case k < 52 && x.session != 0:
			path := fmt.Sprintf("/%d", rng.IntN(3))
			x.number++
			var cmd *storepb.Command
			switch rng.IntN(9) {
			case 0:
				cmd = lock(path, 0)
			case 1, 2:
				cmd = lock(path, time.Duration(rng.IntN(3000))*time.Millisecond)
			case 3:
				cmd = unlock("", 1+rng.Uint64N(x.number))
			case 4:
				cmd = put(path, "x")
			case 5:
				cmd = &storepb.Command{Op: &storepb.Command_Delete{Delete: &storepb.Delete{Path: path, Force: true}}}
			case 6:
				cmd = &storepb.Command{Op: &storepb.Command_Forfeit{Forfeit: &storepb.Forfeit{Ticket: 1 + rng.Uint64N(x.number)}}}
			case 7:
				v, _ := m.store.Lock(path)
				cmd = &storepb.Command{Op: &storepb.Command_BreakLock{BreakLock: &storepb.Break{Path: path, Fence: v.Fence}}}
			case 8:
				if rng.IntN(10) > 0 {
					cmd = void()
				} else {
					cmd = &storepb.Command{Op: &storepb.Command_CloseSession{CloseSession: &storepb.CloseSession{WorkEnded: rng.IntN(2) == 0}}}
				}
			}
			q := request(x.session, x.number, cmd)
			q.GetRequest().GetCommand().LowestUnanswered = x.number
			x.post(q)
		case k < 55 && x.session != 0:
			x.post(ack(x.session, x.acked))
		case k < 58:
			x.post(read(nodeRead("/")))
		case k < 62:
			x.post(watch(&wirepb.Watch{Id: uint64(rng.IntN(4)), Path: "/", Scope: wirepb.WatchScope(rng.IntN(3)), Locks: rng.IntN(2) == 0, Since: uint64(rng.IntN(2)) * m.store.Revision()}))
		case k < 64:
			x.post(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Unwatch{Unwatch: &wirepb.Unwatch{Id: uint64(rng.IntN(4))}}})
		case k < 66:
			room = []int{0, 200, 300 << 10, 48 << 20}[rng.IntN(4)]
		case k < 69:
			m.log.drop = m.role.Leaving || !m.log.drop
		case k < 72:
			m.log.hold = !m.log.hold
		case k < 75:
			m.log.unproven = !m.log.unproven
		case k < 77:
			c.reps[rng.IntN(3)].log.lag = rng.IntN(2) == 0
		case k < 79:
			at = 1 + rng.IntN(3)
			if m.log.lag || c.reps[at-1].log.lag {
				c.reps[at-1].log.lag = false
			}
			var cut []int
			if other := 1 + rng.IntN(3); other != at && rng.IntN(3) == 0 {
				// Another is chosen without it: nothing of it is chosen or proven any more.
				cut = append(cut, other)
				l := c.reps[other-1].log
				l.drop, l.unproven, l.kept = true, true, nil
			}
			c.elect(at, cut...)
		case k < 80:
			m.Step(c.now, HandOver{})
			m.take() // in the same turn
		case k < 82:
			c.jump(time.Duration(rng.IntN(1500)) * time.Millisecond)
		case k < 88:
			c.settle()
		default:
			c.advance(time.Duration(rng.IntN(40)) * tick)
		}
		if rng.IntN(4) == 0 {
			m.take()
		}
	}
	// All is well again.
	for _, r := range c.reps {
		r.log.lag, r.log.hold, r.log.drop, r.log.unproven = false, false, false, false
	}
	room = 48 << 20
	c.elect(at)
	m := c.reps[at-1]
	for _, x := range clients {
		hear(x)
		if m.ended[x.conn] != "" || x.r != m {
			connect(x)
		}
		if x.session != 0 {
			x.post(attach(x.session, x.open, x.acked))
		}
	}
	c.settle()
	for _, x := range clients {
		hear(x)
	}
	for _, x := range clients {
		if x.session == 0 {
			continue
		}
		x.post(keepAlive(9, true, x.session))
	}
	c.settle()
	c.advance(2 * tick)
	for i, x := range clients {
		if x.session == 0 {
			continue
		}
		leased, gone := false, false
		for _, m := range x.all() {
			if k := m.GetKept(); k.GetId() == 9 {
				leased, gone = len(k.GetLeases()) > 0, len(k.GetGone()) > 0
			}
		}
		if !leased && !gone {
			t.Errorf("client %d, session %d: neither a lease nor its end", i, x.session)
		}
	}
	// What no client keeps alive goes.
	c.advance(15 * time.Second)
	for _, r := range c.reps {
		r.Step(c.now, replog.Tick{})
	}
	c.advance(90 * time.Second)
	if n, _ := m.store.Counts(); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
	for i := range 3 {
		if v, _ := m.store.Lock(fmt.Sprintf("/%d", i)); len(v.Holders)+len(v.Waiters) > 0 {
			t.Errorf("lock %d is held: %v", i, v)
		}
	}
	if mm := m.Metrics(); mm.WatchesBehind != 0 || mm.WatchLogBytes != 0 {
		t.Errorf("watches: %d behind, %d bytes", mm.WatchesBehind, mm.WatchLogBytes)
	}
	if err := m.store.Check(); err != nil {
		t.Error(err)
	}
}
