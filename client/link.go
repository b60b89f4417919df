package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/version"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

const (
	linkMaxFrame   = 4 << 20
	linkQueueBytes = 32 << 20 // far above what the machine lets out at a time
)

// link is one connection, from dialing to its end. Its goroutine dials and
// then reads, or lends the reading to callers; others send on it and end it,
// under the driver's mutex.
type link struct {
	ctx    context.Context // ends with the link
	cancel context.CancelFunc
	conn   *wire.Conn // set before Connected is posted
	lending
}

// dial begins a connection; its end is told by ConnectFailed or Disconnected,
// unless it is given up before.
func (d *driver) dial(address string) {
	l := &link{lending: lending{recall: make(chan struct{}, 1)}}
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
	l.reading.Lock()
	defer l.reading.Unlock()
	for !l.over {
		d.readNext(l)
		if d.mayLend(l) {
			d.lend(l)
		}
	}
}

// askTime bounds one question for who is at an address.
const askTime = 2 * time.Second

// ask asks an address who it is and tells the machine.
func (d *driver) ask(address string) {
	ctx, cancel := context.WithTimeout(d.asking, askTime)
	defer cancel()
	msg, err := d.firstMessage(ctx, address)
	if err != nil && d.asking.Err() == nil && ctx.Err() != nil {
		err = errors.New("no answer in time")
	}
	d.post(machine.Asked{Address: address, Message: msg, Err: err}, origin{})
}

func (d *driver) firstMessage(ctx context.Context, address string) (*pb.ServerMessage, error) {
	nc, err := d.cfg.dial(ctx, address)
	if err != nil {
		return nil, err
	}
	conn := wire.NewConn(nc, wire.Options{MaxFrame: linkMaxFrame})
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // ends the reading below
	defer stop()
	if err := conn.Handshake(ctx); err != nil {
		return nil, err
	}
	if err := conn.Queue(wire.KindClient, machine.Hello(d.cfg.cell, program())); err != nil {
		return nil, err
	}
	for {
		if msg, err := readMessage(conn); msg != nil || err != nil {
			return msg, err
		}
	}
}

// program is this client, for the service's log.
func program() string { return "lockd-go/" + strings.ToValidUTF8(version.Version, "?") }

// fromLink steps the machine with an event of a connection; false: nobody wants
// it any more.
func (d *driver) fromLink(l *link, ev machine.Event) bool {
	return d.post(ev, origin{link: l})
}

// readMessage reads the next message; nil for a frame of another kind.
func readMessage(conn *wire.Conn) (*pb.ServerMessage, error) {
	kind, payload, err := conn.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the service closed the connection")
	case err != nil:
		return nil, err
	case kind != wire.KindServer:
		return nil, nil
	}
	msg := newMessage(payload)
	if err := msg.Decode(payload); err != nil {
		return nil, fmt.Errorf("message of the service cannot be decoded: %w", err)
	}
	return msg, nil
}

// The first byte of a message with a Reply, or with a ReadReply: the field's
// number and its kind.
const (
	tagReply = 5<<3 | 2
	tagRead  = 6<<3 | 2
)

// newMessage returns what a payload can be decoded into. What it is likely to
// have lies in one piece with it, for the decoder fills what it finds.
func newMessage(payload []byte) *pb.ServerMessage {
	switch {
	case len(payload) > 0 && payload[0] == tagReply:
		m := &struct {
			message pb.ServerMessage
			body    pb.ServerMessage_Reply
			reply   pb.Reply
			result  storepb.Result
		}{}
		m.message.Body = &m.body
		m.body.Reply = &m.reply
		m.reply.Result = &m.result
		return &m.message
	case len(payload) > 0 && payload[0] == tagRead:
		m := &struct {
			message pb.ServerMessage
			body    pb.ServerMessage_Read
			read    pb.ReadReply
		}{}
		m.message.Body = &m.body
		m.body.Read = &m.read
		return &m.message
	default:
		return &pb.ServerMessage{}
	}
}

// send sends messages in one write, from here if the socket takes them.
func (l *link) send(messages []*pb.ClientMessage) error {
	if len(messages) == 0 {
		return nil
	}
	if l == nil || l.conn == nil {
		return errors.New("there is no connection")
	}
	last := len(messages) - 1
	for _, m := range messages[:last] {
		if err := l.conn.Hold(wire.KindClient, m); err != nil {
			return err
		}
	}
	return l.conn.Send(wire.KindClient, messages[last])
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
