package peer

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/peer/lane"
	"google.golang.org/protobuf/proto"
)

const (
	// peerMaxFrame limits a frame; what is larger goes in parts.
	peerMaxFrame = 256 << 10
	// peerMaxMessage limits a message in parts.
	peerMaxMessage = 64 << 20
	// peerQueueBytes may be queued for a peer that reads slowly, on each lane.
	peerQueueBytes = 32 << 20
	// maxGreeting is how many accepted connections may not have said hello, by default.
	maxGreeting = 64
	// logAgain is how long the same trouble with the same remote is not logged
	// again.
	logAgain = time.Minute
)

// The names of the lanes in a hello.
const (
	laneMain = "main"
	laneBulk = "bulk"
)

// Options say who talks to whom. The durations have defaults.
type Options struct {
	// Listener accepts the peers; Close closes it. It may be nil in a cell of
	// one.
	Listener net.Listener
	Self     paxos.ReplicaID
	Members  []paxos.Member // all of the cell, with their peer addresses
	Hello    *pb.PeerHello  // what this replica says of itself, see Node.Hello
	Logger   *slog.Logger   // default: discard

	ReadTimeout  time.Duration // silence that ends a connection, default 5 s
	PingEvery    time.Duration // default 1 s
	HelloTimeout time.Duration // from connecting to the hello, default 5 s
	MaxGreetings int           // accepted connections that have not said hello, default 64
	DialTimeout  time.Duration // default 3 s
	RetryMin     time.Duration // pause between dials, default 50 ms
	RetryMax     time.Duration // default 1 s
	// Dial connects; default a net.Dialer.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&o.ReadTimeout, 5 * time.Second},
		{&o.PingEvery, time.Second},
		{&o.HelloTimeout, 5 * time.Second},
		{&o.DialTimeout, 3 * time.Second},
		{&o.RetryMin, 50 * time.Millisecond},
		{&o.RetryMax, time.Second},
	} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Dial == nil {
		dialer := new(net.Dialer)
		o.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}
	}
}

// Peers owns the connections to the other replicas. Its methods may be called
// by any goroutine.
type Peers struct {
	o     Options
	start time.Time // from which the lanes count
	// deliver gets PeerConnected, PeerDisconnected, PeerReceived, PeerArriving and
	// PeerSent.
	deliver func(ev replog.Event, bytes int)
	links   []*link // by ID
	hello   atomic.Pointer[pb.PeerHello]
	config  atomic.Pointer[paxos.Configuration] // nil until Founded
	dropped atomic.Uint64
	quiet   quietLog

	encoding sync.Mutex
	scratch  []byte // of holdEqual

	// spoken is the highest ballot in which this replica has spoken; speaking
	// guards its change.
	speaking   sync.Mutex
	spoken     atomic.Pointer[lane.Rank]
	superseded atomic.Uint64

	ctx      context.Context
	cancel   context.CancelFunc
	wg       sync.WaitGroup
	greeting chan struct{} // one for each accepted connection without a hello
}

// New makes the shell; Start sets it going. deliver is called for each
// event with the encoded size of its message in bytes (0 if there is none). It
// must not block: where it has no room it must drop PeerReceived events, and
// those only. The events of a peer come in order, one at a time, except that
// PeerSent ones come beside the others; these are delivered while the link is
// locked, so deliver must not send anything from within.
func New(o Options, deliver func(ev replog.Event, bytes int)) *Peers {
	o.setDefaults()
	p := &Peers{o: o, start: time.Now(), deliver: deliver, greeting: make(chan struct{}, cmp.Or(o.MaxGreetings, maxGreeting))}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.hello.Store(o.Hello)
	for _, m := range o.Members {
		if m.ID != o.Self {
			p.links = append(p.links, newLink(p, m))
		}
	}
	return p
}

// Start begins to accept and to dial. It is called once, before Close.
func (p *Peers) Start() {
	if p.o.Listener != nil {
		p.wg.Add(1)
		go p.acceptLoop()
	}
	for _, l := range p.links {
		if l.member.ID < p.o.Self {
			continue // it dials us
		}
		for _, name := range []string{laneMain, laneBulk} {
			p.wg.Add(1)
			go l.dialLoop(name)
		}
	}
	p.wg.Add(1)
	go p.pingLoop()
}

// Close ends all connections, the listener and all goroutines, and waits for
// them. What is queued is dropped. Nothing is delivered after it.
func (p *Peers) Close() {
	p.cancel()
	if p.o.Listener != nil {
		// An error means that it is closed already.
		_ = p.o.Listener.Close()
	}
	p.wg.Wait()
}

// Run is Start, waiting for ctx to end, and Close.
func (p *Peers) Run(ctx context.Context) {
	p.Start()
	<-ctx.Done()
	p.Close()
}

// now is the lanes' clock.
func (p *Peers) now() time.Duration { return time.Since(p.start) }

// Send queues a message for a peer; it never blocks. See Dropped.
func (p *Peers) Send(s replog.Send) {
	p.speaks(s.Message)
	if l := p.link(s.To); l != nil {
		l.send(s)
		l.flush()
		return
	}
	p.dropped.Add(1)
}

// SendAll is Send for several messages in their order. Those for one peer go in
// one write, and equal ones in a row (the same value) are encoded once.
func (p *Peers) SendAll(sends []replog.Send) {
	for i := 0; i < len(sends); {
		n := 1
		for i+n < len(sends) && sends[i+n].Message == sends[i].Message {
			n++
		}
		p.speaks(sends[i].Message)
		if n == 1 || sends[i].Bulk {
			p.hold(sends[i : i+n])
		} else {
			p.holdEqual(sends[i : i+n])
		}
		i += n
	}
	if len(sends) > 0 {
		for _, l := range p.links {
			l.flush()
		}
	}
}

func (p *Peers) hold(sends []replog.Send) {
	for _, s := range sends {
		if l := p.link(s.To); l != nil {
			l.send(s)
		} else {
			p.dropped.Add(1)
		}
	}
}

// scratchMax is the largest buffer that is kept for encoding, in bytes.
const scratchMax = 4 << 20

func (p *Peers) holdEqual(sends []replog.Send) {
	p.encoding.Lock()
	defer p.encoding.Unlock()
	m := sealed{sends[0].Message}
	n := m.SizeVT()
	b := slices.Grow(p.scratch[:0], n)[:n]
	if _, err := m.MarshalToSizedBufferVT(b); err != nil {
		p.dropped.Add(uint64(len(sends)))
		p.o.Logger.Error("a message for replicas cannot be encoded and was dropped", "reason", err)
		return
	}
	bulk, r := IsBulk(m.PeerMessage), AcceptRank(m.PeerMessage)
	var shared []byte
	for _, s := range sends {
		if l := p.link(s.To); l != nil {
			shared = l.sendEncoded(b, shared, bulk, r)
		} else {
			p.dropped.Add(1)
		}
	}
	if p.scratch = b; cap(b) > scratchMax {
		p.scratch = nil
	}
}

func (p *Peers) link(to paxos.ReplicaID) *link {
	for _, l := range p.links {
		if l.member.ID == to {
			return l
		}
	}
	return nil
}

// Dropped counts the messages that were not sent: the peer was not connected,
// or its queue was full.
func (p *Peers) Dropped() uint64 { return p.dropped.Load() }

// Superseded counts the messages that were dropped before they had left as a
// whole, since this replica had gone on to a higher ballot.
func (p *Peers) Superseded() uint64 { return p.superseded.Load() }

// UpdateHello changes what this replica says of itself, and tells the peers
// that are connected.
func (p *Peers) UpdateHello(h *pb.PeerHello) {
	p.hello.Store(h)
	for _, l := range p.links {
		if l.main.Load() != nil {
			l.send(replog.Send{To: l.member.ID, Message: helloMessage(h, laneMain, l.member.Name)})
			l.flush()
		}
	}
}

// Founded tells the configuration of the cell: from now on only its members'
// incarnations are let in.
func (p *Peers) Founded(c *paxos.Configuration) { p.config.Store(c) }

// helloMessage completes a hello for a lane to a peer.
func helloMessage(h *pb.PeerHello, lane, to string) *pb.PeerMessage {
	h = proto.CloneOf(h)
	h.Lane, h.To = lane, to
	return &pb.PeerMessage{Body: &pb.PeerMessage_Hello{Hello: h}}
}

// pingLoop keeps idle connections from being given up. A ping is a frame
// without content, which says nothing.
func (p *Peers) pingLoop() {
	defer p.wg.Done()
	t := time.NewTicker(p.o.PingEvery)
	defer t.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-t.C:
		}
		for _, l := range p.links {
			for _, use := range []*atomic.Pointer[wire.Conn]{&l.main, &l.bulk} {
				c := use.Load()
				switch {
				case c == nil:
				case c.Queued() > 0:
					c.Flush() // an acknowledgement that waits for company
				default:
					// It may have ended: then its reader sees that.
					_ = c.QueueBytes(wire.KindPeer, nil)
				}
			}
		}
	}
}

// pause waits for d or the end; false: the end.
func (p *Peers) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.ctx.Done():
		return false
	}
}

// retries doubles the pause between dials, with jitter: replicas that restart
// together do not knock in step.
type retries struct {
	next time.Duration
}

func (r *retries) delay(o *Options) time.Duration {
	d := max(r.next, o.RetryMin)
	r.next = min(2*d, o.RetryMax)
	return d/2 + rand.N(d/2+1)
}

// quietLog remembers what was logged, so that a remote that keeps knocking
// fills no log. It is bounded.
type quietLog struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// again reports whether key was not logged within logAgain.
func (q *quietLog) again(key string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if last, ok := q.last[key]; ok && now.Sub(last) < logAgain {
		return false
	}
	if q.last == nil || len(q.last) >= 1024 {
		q.last = map[string]time.Time{}
	}
	q.last[key] = now
	return true
}

// forget lets the next line with key be logged.
func (q *quietLog) forget(key string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.last, key)
}
