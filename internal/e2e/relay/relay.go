// Package relay puts a network of a given rate, delay and queue between real
// processes on one machine. A Relay forwards TCP connections; all of them share
// its wire, one for each direction, as connections share a router's.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Options say what the wire of each direction is like.
type Options struct {
	Rate  float64       // bytes a second; 0: no limit
	Delay time.Duration // one way
	// Queue is how many bytes may wait for the wire, default 64 KiB. Nothing is
	// taken from a sender while it is full, so that its own buffers fill up.
	Queue int
}

// chunk is the most that is taken at a time.
const chunk = 4 << 10

// Relay forwards what comes to Address.
type Relay struct {
	o      Options
	target string
	l      net.Listener
	there  wire
	back   wire
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// wire is one direction.
type wire struct {
	mu    sync.Mutex
	free  time.Time // when all that was taken has left
	bytes atomic.Int64
}

// take puts n bytes on the wire and returns when they arrive at its end, and
// how long to wait before more may be taken.
func (w *wire) take(o *Options, n int) (arrives time.Time, wait time.Duration) {
	now := time.Now()
	w.bytes.Add(int64(n))
	if o.Rate <= 0 {
		return now.Add(o.Delay), 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.free.Before(now) {
		w.free = now
	}
	w.free = w.free.Add(time.Duration(float64(n) / o.Rate * float64(time.Second)))
	queue := time.Duration(float64(o.Queue) / o.Rate * float64(time.Second))
	return w.free.Add(o.Delay), w.free.Sub(now) - queue
}

// Listen begins to forward connections from a free port on loopback to target.
// Close ends it.
func Listen(target string, o Options) (*Relay, error) {
	if o.Queue <= 0 {
		o.Queue = 64 << 10
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("relay to %s: %w", target, err)
	}
	r := &Relay{o: o, target: target, l: l}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.wg.Go(r.accept)
	return r, nil
}

// Address is where it listens.
func (r *Relay) Address() string { return r.l.Addr().String() }

// Carried is how many bytes went to the target, and back.
func (r *Relay) Carried() (there, back int64) { return r.there.bytes.Load(), r.back.bytes.Load() }

// Close ends the relay and all connections, and waits for them.
func (r *Relay) Close() {
	r.cancel()
	_ = r.l.Close() // an error means that it is closed already
	r.wg.Wait()
}

func (r *Relay) accept() {
	for {
		c, err := r.l.Accept()
		if r.ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			// Out of files, perhaps; the dialer tries again.
			r.sleep(10 * time.Millisecond)
			continue
		}
		r.wg.Go(func() { r.forward(c) })
	}
}

// forward carries one connection until either side ends it.
func (r *Relay) forward(near net.Conn) {
	defer near.Close()
	var dialer net.Dialer
	far, err := dialer.DialContext(r.ctx, "tcp", r.target)
	if err != nil {
		return // nobody is there: the other side sees its connection end
	}
	defer far.Close()
	stop := context.AfterFunc(r.ctx, func() { _, _ = near.Close(), far.Close() })
	defer stop()
	var both sync.WaitGroup
	for _, way := range []struct {
		from, to net.Conn
		w        *wire
	}{{near, far, &r.there}, {far, near, &r.back}} {
		both.Go(func() { r.pump(way.from, way.to, way.w) })
	}
	both.Wait()
}

// piece is on its way.
type piece struct {
	b       []byte // nil: the end of the stream
	arrives time.Time
}

// pump carries one direction of a connection. The end of the stream arrives as
// late as bytes would.
func (r *Relay) pump(from, to net.Conn, w *wire) {
	pieces := make(chan piece, 1<<16) // far more than fit on a wire
	var writer sync.WaitGroup
	writer.Go(func() {
		for p := range pieces {
			if !r.sleep(time.Until(p.arrives)) {
				continue
			}
			if p.b == nil {
				// Ends the other direction too, as a closed connection does.
				_, _ = to.Close(), from.Close()
				continue
			}
			if _, err := to.Write(p.b); err != nil {
				_ = from.Close() // the reader sees it
			}
		}
	})
	for {
		b := make([]byte, chunk)
		n, err := from.Read(b)
		if n > 0 {
			arrives, wait := w.take(&r.o, n)
			pieces <- piece{b: b[:n], arrives: arrives}
			r.sleep(wait)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				arrives, _ := w.take(&r.o, 0)
				pieces <- piece{arrives: arrives}
			}
			break
		}
	}
	close(pieces)
	writer.Wait()
	_ = to.Close() // an error of the one side ends the other
}

// sleep waits for d; false: the relay ends.
func (r *Relay) sleep(d time.Duration) bool {
	if d <= 0 {
		return r.ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
		return false
	}
}
