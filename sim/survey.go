package sim

import (
	"errors"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire/pb"
)

// askTime is for how long a client's shell waits for the answer to who is at an
// address.
const askTime = 2 * second

var errAskedInVain = errors.New("no answer in time")

// surveyAnswer is an answer to the question who is at an address.
type surveyAnswer struct {
	address  string
	batch    int
	identity uint64
}

// ask asks an address who is there, on a connection of its own beside the one that
// the machine has: it says Hello, takes the first message, and hangs up.
func (c *client) ask(address string) {
	w := c.w
	p := w.processByAddress(address)
	if p == nil {
		w.fail("client", "%s asks the address %q, which nobody has", c.name, address)
		return
	}
	w.nextConn++
	n := &conn{w: w, id: w.nextConn, c: c, p: p, life: c.life, ask: true}
	c.asks = append(c.asks, n)
	w.trace.add(w.now, "ask", uint64(c.index), uint64(p.index))
	if w.telling() {
		w.tell(c.name, "asks who is at %s (connection %d)", p.name, n.id)
	}
	w.after(w.latency(), n.arrive)
	w.after(askTime, func() { n.answered(nil, errAskedInVain) })
}

// answered ends a question; only the first answer counts.
func (n *conn) answered(m *pb.ServerMessage, err error) {
	c := n.c
	for i, o := range c.asks {
		if o == n {
			c.asks = append(c.asks[:i:i], c.asks[i+1:]...)
			n.endAsking(0)
			address := n.p.address()
			c.post(func() { c.takeAnswer(machine.Asked{Address: address, Message: m, Err: err}) })
			return
		}
	}
}

// endAsking hangs up.
func (n *conn) endAsking(wait int64) {
	if n.broken {
		return
	}
	n.broken = true
	n.w.after(wait+n.w.latency(), n.tellServer)
}

// takeAnswer hands an answer to the machine and keeps what it says, to judge later
// what the machine makes of all.
func (c *client) takeAnswer(a machine.Asked) {
	c.w.trace.add(c.w.now, "asked", uint64(c.index), hashText(a.Address))
	kept := c.answers[:0]
	for _, o := range c.answers {
		if o.address != a.Address {
			kept = append(kept, o)
		}
	}
	c.answers = append(kept, surveyAnswer{a.Address, c.batches, a.Message.GetHello().GetCellIdentity()})
	c.step(a)
}

// askAll begins the questions of a survey. What was answered before is no vote in
// it, unless it came in this very batch.
func (c *client) askAll(addresses []string) {
	if len(addresses) == 0 {
		return
	}
	kept := c.answers[:0]
	for _, o := range c.answers {
		if o.batch == c.batches {
			kept = append(kept, o)
		}
	}
	c.answers = kept
	for _, a := range addresses {
		c.ask(a)
	}
}

// outvoted reports whether a survey may have found that most of those that answer
// belong to other cells, or that there is no such cell.
func (c *client) outvoted() bool {
	ours, voters := 0, 0
	for _, a := range c.answers {
		if a.identity != 0 {
			voters++
		}
		if a.identity != 0 && a.identity == c.w.knownIdentity() {
			ours++
		}
	}
	return 2*ours <= voters
}
