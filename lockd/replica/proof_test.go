package replica

import (
	"testing"
	"time"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// Events that come while an Attach waits for its proof follow its answer, each
// once; those behind it come at once.
func TestEventsAroundAnAttach(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	h, w := cl.open(1, time.Minute), cl.open(2, time.Minute)
	for n, path := range []string{"/l", "/m"} {
		cl.send(request(h, uint64(n+1), lock(path, 0)))
		cl.send(request(w, uint64(n+1), lock(path, time.Minute)))
	}
	cl.all()
	two := r.dial()
	r.log.unproven = true
	two.send(attach(w, 2, 0))
	cl.send(request(h, 3, unlock("/l", 1)))
	cl.code(storepb.Code_OK, cl.result(3))
	two.none()
	r.log.unproven = false
	c.settle()
	if a := two.next().GetAttached(); a.GetSession() != w {
		t.Fatalf("attached %v", a)
	}
	two.event(1, storepb.Code_GRANTED)
	two.none()
	cl.send(request(h, 4, unlock("/m", 2)))
	two.event(2, storepb.Code_GRANTED)
	two.none()
}

// A master that hands over extends nothing more, even under a proof that was
// begun before.
func TestNoLeaseWhileLeaving(t *testing.T) {
	c := newCell(t, 2)
	r := c.reps[0]
	cl := r.dial()
	s := cl.open(1, time.Minute)
	r.log.unproven = true
	cl.send(keepAlive(1, true, s))
	r.Step(c.now, HandOver{})
	r.log.unproven = false
	c.settle()
	c.advance(time.Second)
	cl.none()
}

// An OpenSession that is repeated needs a proof begun after the repeat: its
// lease is counted from there at the client.
func TestRepeatedOpenNeedsItsOwnProof(t *testing.T) {
	c := newCell(t, 1)
	r := c.reps[0]
	cl := r.dial()
	r.log.hold = true
	cl.send(open(1, nonce(1), time.Minute)) // proven, not applied
	c.advance(100 * time.Millisecond)
	r.log.unproven = true
	cl.send(open(2, nonce(1), time.Minute))
	r.log.hold = false
	c.settle()
	cl.none()
	r.log.unproven = false
	c.settle()
	if o := cl.next().GetOpened(); o.GetId() != 2 || o.GetHeldNs() != 0 {
		t.Errorf("opened %v", o)
	}
	cl.none()
}
