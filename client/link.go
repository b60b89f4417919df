package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"unicode/utf8"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"google.golang.org/protobuf/proto"
)

const (
	linkMaxFrame   = 4 << 20
	linkQueueBytes = 32 << 20 // far above what the machine lets out at a time
)

// link is one connection, from dialing to its end. Its goroutine dials and
// then reads; the loop sends and ends it.
type link struct {
	ctx    context.Context // ends with the link
	cancel context.CancelFunc
	conn   *wire.Conn    // set before Connected is posted
	large  chan struct{} // full: a large message is in the inbox
}

// largeFrame is from which size on only one message of a link may be in the
// inbox, and only one goes into a batch: that bounds the bytes of both.
const largeFrame = 64 << 10

// dial begins a connection; its end is told by ConnectFailed or Disconnected,
// unless it is given up before.
func (d *driver) dial(address string) {
	l := &link{large: make(chan struct{}, 1)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	d.link = l
	d.log(slog.LevelDebug, "connecting", "address", address)
	d.wg.Go(func() { d.run(l, address) })
}

// run is the link's goroutine.
func (d *driver) run(l *link, address string) {
	nc, err := d.cfg.dial(l.ctx, address)
	if err != nil {
		d.fromLink(l, machine.ConnectFailed{Err: err})
		return
	}
	conn := wire.NewConn(nc, wire.Options{MaxFrame: linkMaxFrame, QueueBytes: linkQueueBytes})
	// However the link ends, the connection is closed, which ends Read, and its
	// writer is waited for here.
	stop := context.AfterFunc(l.ctx, func() { _ = nc.Close() })
	defer stop()
	defer conn.Close()
	if err := conn.Handshake(l.ctx); err != nil {
		d.fromLink(l, machine.ConnectFailed{Err: err})
		return
	}
	l.conn = conn
	if !d.fromLink(l, machine.Connected{}) {
		return
	}
	for {
		msg, size, err := readMessage(conn)
		if err != nil {
			d.fromLink(l, machine.Disconnected{Err: err})
			return
		}
		if msg == nil {
			continue // of a kind that is not known here
		}
		m := message{event: machine.Received{Message: msg}, link: l}
		if size >= largeFrame {
			m.large = true
			select {
			case l.large <- struct{}{}:
			case <-l.ctx.Done():
				return
			case <-d.stopped:
				return
			}
		}
		if !d.bring(m) {
			return
		}
	}
}

// fromLink brings an event to the loop; false: nobody wants it any more.
func (d *driver) fromLink(l *link, ev machine.Event) bool {
	return d.bring(message{event: ev, link: l})
}

func (d *driver) bring(m message) bool {
	select {
	case d.inbox <- m:
		return true
	case <-m.link.ctx.Done():
		return false
	case <-d.stopped:
		return false
	}
}

// readMessage reads the next message and tells its size; nil for a frame of
// another kind.
func readMessage(conn *wire.Conn) (*pb.ServerMessage, int, error) {
	kind, payload, err := conn.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, 0, errors.New("the service closed the connection")
	case err != nil:
		return nil, 0, err
	case kind != wire.KindServer:
		return nil, 0, nil
	}
	msg := &pb.ServerMessage{}
	if err := proto.Unmarshal(payload, msg); err != nil {
		return nil, 0, fmt.Errorf("message of the service cannot be decoded: %w", err)
	}
	return msg, len(payload), nil
}

func (l *link) send(msg *pb.ClientMessage) error {
	if l == nil || l.conn == nil {
		return errors.New("there is no connection")
	}
	return l.conn.Queue(wire.KindClient, msg)
}

// hangup gives the connection up; its goroutine ends by itself.
func (d *driver) hangup() {
	if d.link != nil {
		d.link.cancel()
		d.link = nil
	}
}

// checkText refuses what cannot be sent: texts of the protocol are UTF-8.
func checkText(what, text string) error {
	if !utf8.ValidString(text) {
		return fmt.Errorf("%s %q is not valid UTF-8", what, text)
	}
	if len(text) > maxSequencer {
		return fmt.Errorf("%s has %d bytes, the limit is %d", what, len(text), maxSequencer)
	}
	return nil
}
