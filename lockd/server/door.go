package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	storepb "github.com/seed70370324/lockd/store/pb"
)

const (
	// letterBytes is what a message costs besides its bytes while it waits.
	letterBytes = 256
	// flushTime bounds how long a connection that is being closed may take to
	// read what is left for it.
	flushTime = time.Second
	// politeRefusals is how many connections over the limit are told so at the
	// same time; the rest are just closed.
	politeRefusals = 64

	// fullBytes is what usually waits at most for one client to read it. With
	// more the answers to its further reads are put off for putOffMS.
	fullBytes = 8 << 20
	putOffMS  = 20
	// queueBytes is what may wait for one client at all: the first state of a
	// watch (32 MiB), which comes at once, and what goes beside it. So much may
	// wait for maxDeep clients at a time.
	queueBytes = 48 << 20
	maxDeep    = 16
)

// clientConn is a client's connection. Its reader goroutine reads it, or while it
// is parked a reactor; the loop is the only one that sends.
type clientConn struct {
	id   replica.ConnID
	nc   net.Conn
	wire *wire.Conn
	// pending is what waits in the mailbox, in bytes. Only who reads adds; it
	// stops reading while there is too much.
	pending atomic.Int64
	limit   int64
	room    chan struct{} // one slot: pending fell to the limit
	gone    chan struct{} // closed when the connection is being ended from here
	mine    chan struct{} // one slot: a reactor gives it back to the reader
	hello   *time.Timer   // interrupts the reader when the first message is late
	last    *lastWords    // set by a reactor that gives it back: why it is to end
	// Of the loop.
	ending bool // nothing more is sent
	held   bool // it has frames that are to be flushed at the end of the batch
	seen   int  // bytes that were queued when that was last looked at
}

// stepped takes off a message that the replica has been given.
func (c *clientConn) stepped(size int) {
	after := c.pending.Add(-int64(size))
	if after <= c.limit && after+int64(size) > c.limit {
		select {
		case c.room <- struct{}{}:
		default:
		}
	}
}

// door accepts clients and carries their messages. It decides nothing but who
// does not speak the protocol.
type door struct {
	listener net.Listener
	limits   Limits
	box      *mailbox
	metrics  *shellMetrics
	log      *slog.Logger

	ctx    context.Context // ends the handshakes
	cancel context.CancelFunc
	lastID atomic.Uint64
	open   atomic.Int64 // connections that stand or shake hands
	polite atomic.Int64
	wg     sync.WaitGroup // accept, readers
	// closers are the goroutines that let a closing connection's last frames
	// leave. The loop alone adds to them, so drain may wait once it has ended.
	closers sync.WaitGroup
	// reactors are there from the start to stop.
	reactors     []*reactor
	reactorsDone sync.WaitGroup
	deep         map[*clientConn]struct{}       // may have more than fullBytes queued; of the loop
	held         []*clientConn                  // have frames to be flushed; of the loop
	clients      map[replica.ConnID]*clientConn // all that the loop knows; of the loop
	queued       int                            // bytes for all of them, or more: see relieve

	mu     sync.Mutex
	conns  map[net.Conn]struct{} // every open socket, for stop
	closed bool
}

func newDoor(l net.Listener, limits Limits, box *mailbox, m *shellMetrics, log *slog.Logger) *door {
	ctx, cancel := context.WithCancel(context.Background())
	return &door{listener: l, limits: limits, box: box, metrics: m, log: log,
		ctx: ctx, cancel: cancel, conns: map[net.Conn]struct{}{}, deep: map[*clientConn]struct{}{}}
}

// start begins to take connections. stop must be called in the end.
func (d *door) start() {
	d.startReactors()
	d.wg.Go(d.accept)
}

// accept takes connections until the listener is closed.
func (d *door) accept() {
	wait := 5 * time.Millisecond
	for {
		nc, err := d.listener.Accept()
		switch {
		case err == nil:
			wait = 5 * time.Millisecond
			d.admit(nc)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			// Out of descriptors, mostly: others will be closed.
			d.log.Warn("cannot accept a client", "error", err, "again_in", wait)
			select {
			case <-time.After(wait):
			case <-d.ctx.Done():
				return
			}
			wait = min(2*wait, time.Second)
		}
	}
}

// admit starts a reader for a connection, or refuses it.
func (d *door) admit(nc net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		_ = nc.Close()
		return
	}
	serve := d.serve
	if d.open.Load() >= int64(d.limits.MaxConnections) {
		d.metrics.refused.Inc()
		d.metrics.met(limitConnections)
		if d.polite.Load() >= int64(cmp.Or(d.limits.maxRefusals, politeRefusals)) {
			_ = nc.Close()
			return
		}
		d.polite.Add(1)
		serve = d.refuse
	} else {
		d.open.Add(1)
	}
	d.conns[nc] = struct{}{}
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		serve(nc)
		d.mu.Lock()
		delete(d.conns, nc)
		d.mu.Unlock()
	}()
}

func (d *door) newWire(nc net.Conn) *wire.Conn {
	return wire.NewConn(nc, wire.Options{Accepted: true, MaxFrame: d.limits.MaxFrame, QueueBytes: queueBytes, WriteTimeout: d.limits.WriteTimeout, FrameTimeout: d.limits.FrameTimeout})
}

// refuse tells a client that there are too many connections.
func (d *door) refuse(nc net.Conn) {
	defer d.polite.Add(-1)
	w := d.newWire(nc)
	if w.Handshake(d.ctx) == nil {
		d.lastWord(w, limitError(pb.ErrorCode_TOO_MANY, limitConnections, fmt.Sprintf(
			"this replica has its %d connections, the limit: close some, or share one among sessions", d.limits.MaxConnections)))
	}
	_ = w.Close()
}

// serve is a connection's life.
func (d *door) serve(nc net.Conn) {
	defer d.open.Add(-1)
	w := d.newWire(nc)
	defer func() { _ = w.Close() }() // it returns nothing else
	if err := w.Handshake(d.ctx); err != nil {
		d.metrics.garbage.Inc()
		d.log.Debug("a client did not shake hands", "remote", nc.RemoteAddr(), "error", err)
		return
	}
	c := &clientConn{
		id: replica.ConnID(d.lastID.Add(1)), nc: nc, wire: w, limit: int64(d.limits.MaxPending),
		room: make(chan struct{}, 1), gone: make(chan struct{}), mine: make(chan struct{}, 1),
	}
	// Not a deadline of the socket: those of frames take its place.
	c.hello = time.AfterFunc(d.limits.HelloTimeout, w.Interrupt)
	defer c.hello.Stop()
	if !d.box.put(letter{event: replica.ConnOpened{Conn: c.id, Remote: nc.RemoteAddr().String()}, conn: c}) {
		return
	}
	d.metrics.accepted.Inc()
	if last := d.read(c); last != nil {
		d.metrics.bad.Inc()
		d.metrics.met(last.limit)
		d.log.Debug("a client is cut off", "remote", nc.RemoteAddr(), "reason", last.text)
		d.lastWord(w, limitError(last.code, last.limit, last.text))
	} else if errors.Is(w.Err(), os.ErrDeadlineExceeded) {
		d.metrics.tooSlow.Inc()
		d.metrics.met(limitWriteTime)
		d.log.Warn("a client is cut off: it has taken nothing for too long", "remote", nc.RemoteAddr(), "limit", d.limits.WriteTimeout)
	}
	d.box.put(letter{event: replica.ConnClosed{Conn: c.id}, conn: c})
}

// lastWords are what a client is told that is cut off.
type lastWords struct {
	code  pb.ErrorCode
	limit string // that it has met, or ""
	text  string
}

// read carries messages into the mailbox until the connection ends; nil: there
// is nothing to be told.
func (d *door) read(c *clientConn) *lastWords {
	for first := true; ; {
		if !first {
			d.park(c)
		}
		if c.last != nil {
			return c.last
		}
		if !d.waitToRead(c) {
			return nil
		}
		kind, payload, err := c.wire.Read()
		if !first && errors.Is(err, wire.ErrInterrupted) {
			continue // the first message came at the last moment
		}
		if err != nil {
			return d.readFailed(err)
		}
		l, last := d.letterOf(c, kind, payload, first)
		if last != nil {
			return last
		}
		if l.event == nil {
			continue // the first message is still to come, if it was
		}
		if first {
			first = false
			c.hello.Stop()
		}
		if !d.box.put(l) {
			return nil
		}
	}
}

// letterOf decodes a frame and counts its message among what is pending. The
// letter has no event if the frame, of a later version, is to be left out. Else
// the client is to be told something and cut off. The payload is not kept.
func (d *door) letterOf(c *clientConn, kind byte, payload []byte, first bool) (letter, *lastWords) {
	if first && kind == wire.KindPeer {
		return letter{}, &lastWords{pb.ErrorCode_BAD_MESSAGE, "", "this is the port for clients: --initial-cluster must name the other replicas' --listen-peer"}
	}
	if kind != wire.KindClient {
		return letter{}, nil
	}
	if last := tooManyParts(payload); last != nil {
		return letter{}, last
	}
	m := newMessage(payload)
	if err := m.Decode(payload); err != nil {
		return letter{}, &lastWords{pb.ErrorCode_BAD_MESSAGE, "", fmt.Sprintf("the message cannot be decoded: %v", err)}
	}
	if m.Body == nil {
		return letter{}, nil
	}
	size := weight(m, len(payload))
	c.pending.Add(int64(size))
	return letter{event: replica.ConnReceived{Conn: c.id, Message: m}, conn: c, size: size, wakes: urgency(m)}, nil
}

// mayRead reports whether more may be read from the connection now.
func (d *door) mayRead(c *clientConn) bool {
	return c.pending.Load() <= c.limit && !d.box.full.Load()
}

// waitToRead waits until more may be read from the connection; false: nothing
// more is to be read.
func (d *door) waitToRead(c *clientConn) bool {
	for c.pending.Load() > c.limit {
		select {
		case <-c.room:
		case <-c.gone:
			return false
		case <-d.ctx.Done():
			return false
		}
	}
	return !d.box.full.Load() || d.box.wait(c.gone, d.ctx.Done())
}

// tagRequest is the first byte of a message with a Request: the field's number
// and its kind.
const tagRequest = 5<<3 | 2

// newMessage returns what a payload can be decoded into. What it is likely to
// have lies in one piece with it, for the decoder fills what it finds.
func newMessage(payload []byte) *pb.ClientMessage {
	if len(payload) == 0 || payload[0] != tagRequest {
		return new(pb.ClientMessage)
	}
	m := &struct {
		message pb.ClientMessage
		body    pb.ClientMessage_Request
		request pb.Request
		command storepb.Command
	}{}
	m.message.Body = &m.body
	m.body.Request = &m.request
	m.request.Command = &m.command
	return &m.message
}

// urgency tells when a message wakes the loop: only requests, which the log
// takes, gather. KeepAlives, reads and the rest wait for nothing.
func urgency(m *pb.ClientMessage) wakes {
	if m.GetRequest() != nil {
		return gathered
	}
	return always
}

// readFailed says what a client is to be told when reading from it has failed.
func (d *door) readFailed(err error) *lastWords {
	var large *wire.FrameTooLargeError
	var header *wire.HeaderError
	switch {
	case errors.As(err, &large):
		return &lastWords{pb.ErrorCode_FRAME_TOO_LARGE, limitFrame, err.Error()}
	case errors.As(err, &header):
		return &lastWords{pb.ErrorCode_BAD_MESSAGE, "", err.Error()}
	case errors.Is(err, wire.ErrInterrupted):
		return &lastWords{pb.ErrorCode_BAD_MESSAGE, limitHelloTime, fmt.Sprintf("no Hello within %v of connecting", d.limits.HelloTimeout)}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &lastWords{pb.ErrorCode_BAD_MESSAGE, limitFrameTime, fmt.Sprintf("a frame was not whole %v after its first byte", d.limits.FrameTimeout)}
	}
	return nil
}

// lastWord tells a client why its connection ends, and ends it.
func (d *door) lastWord(w *wire.Conn, m *pb.ServerMessage) {
	// If it cannot be queued the client is not reading; it is cut off anyway.
	_ = w.Queue(wire.KindServer, m)
	_ = w.CloseAfterFlush(flushTime)
}

func fatalError(code pb.ErrorCode, text string) *pb.ServerMessage { return limitError(code, "", text) }

func limitError(code pb.ErrorCode, limit, text string) *pb.ServerMessage {
	return &pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Code: code, Text: text, Limit: limit, Fatal: true}}}
}

// send queues a message; the loop alone calls it.
func (d *door) send(c *clientConn, m *pb.ServerMessage) {
	if c.ending {
		return
	}
	err := d.queue(c, m)
	switch {
	case err == nil:
		if !c.held {
			c.held = true
			d.held = append(d.held, c)
		}
		return
	case errors.Is(err, wire.ErrClosed):
		return
	case errors.Is(err, wire.ErrQueueFull):
		d.tooSlow(c, limitConnOutput)
		return
	default:
		d.log.Error("a client is cut off: its message cannot be encoded", "remote", c.nc.RemoteAddr(), "error", err)
	}
	d.cut(c)
}

// tooSlow cuts off a client that does not read.
func (d *door) tooSlow(c *clientConn, limit string) {
	d.metrics.tooSlow.Inc()
	d.metrics.met(limit)
	d.log.Warn("a client is cut off: it reads too slowly", "remote", c.nc.RemoteAddr(), "queued_bytes", c.wire.Queued(), "limit", limit)
	d.cut(c)
}

func (d *door) cut(c *clientConn) {
	c.ending = true
	close(c.gone)
	_ = c.nc.Close() // the reader sees it and cleans up
}

// queue queues a message for a client. One that asks for much at once is not to
// blame: it is served as fast as it reads. One that does not read is
// ErrQueueFull in the end.
func (d *door) queue(c *clientConn, m *pb.ServerMessage) error {
	queued := c.wire.Queued()
	if queued > fullBytes {
		if r := m.GetRead(); r != nil {
			d.metrics.met(limitConnOutput)
			m = &pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{Code: pb.ErrorCode_OVERLOADED, Id: r.GetId(),
				RetryAfterMs: putOffMS, Limit: limitConnOutput, Text: fmt.Sprintf(
					"%d bytes wait for this connection to read them, the limit is %d: read them, and repeat this one soon", queued, fullBytes)}}}
		}
		if !d.mayBeDeep(c) {
			return wire.ErrQueueFull
		}
	}
	if err := c.wire.Hold(wire.KindServer, m); err != nil {
		return err
	}
	// Only these can be large; of others it is enough to count the last but one.
	if m.GetWatch() != nil || m.GetRead() != nil {
		queued = c.wire.Queued()
	}
	d.queued += queued - c.seen
	c.seen = queued
	if d.queued > d.limits.MaxQueued {
		d.relieve()
	}
	return nil
}

// flush lets the frames go that a batch has gathered, a connection at a time.
// No writer is woken for them, unless a socket does not take all at once.
func (d *door) flush() {
	for i, c := range d.held {
		c.held = false
		c.wire.Flush()
		d.held[i] = nil
	}
	d.held = d.held[:0]
}

// mayBeDeep gives the connection one of the places of those with a deep queue.
func (d *door) mayBeDeep(c *clientConn) bool {
	if _, ok := d.deep[c]; ok {
		return true
	}
	for o := range d.deep {
		if o.ending || o.wire.Queued() <= fullBytes {
			delete(d.deep, o)
		}
	}
	if len(d.deep) >= maxDeep {
		return false
	}
	d.deep[c] = struct{}{}
	return true
}

// end closes a connection once what is queued for it has left; the loop alone
// calls it.
func (d *door) end(c *clientConn, reason string) {
	if c.ending {
		return
	}
	d.log.Debug("a client's connection is closed", "remote", c.nc.RemoteAddr(), "reason", reason)
	c.ending = true
	close(c.gone)
	d.closers.Add(1)
	go func() {
		defer d.closers.Done()
		d.unpark(c) // or its reactor would wait for the reading there
		_ = c.wire.CloseAfterFlush(flushTime)
	}()
}

// goodbye tells a client that the replica stops, and ends the connection; the
// loop alone calls it.
func (d *door) goodbye(c *clientConn) {
	d.send(c, fatalError(pb.ErrorCode_SHUTTING_DOWN, "this replica is stopping: go to another one"))
	d.end(c, "the replica is stopping")
}

// stopAccepting ends the listener; connections stand.
func (d *door) stopAccepting() { _ = d.listener.Close() }

// stop ends every connection, those that are being closed once their last
// frames have left, and waits for every goroutine of the door. The loop must
// have ended.
func (d *door) stop() {
	d.stopAccepting()
	d.cancel()
	d.closers.Wait()
	d.mu.Lock()
	d.closed = true
	for nc := range d.conns {
		_ = nc.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
	d.stopReactors()
}
