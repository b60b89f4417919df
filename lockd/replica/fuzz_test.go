package replica

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/fuzzing"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// strange are messages that no client of ours sends.
func strange(session uint64) []*wirepb.ClientMessage {
	huge := uint64(1<<64 - 1)
	return []*wirepb.ClientMessage{
		nil, {},
		{Body: &wirepb.ClientMessage_Hello{}}, {Body: &wirepb.ClientMessage_Open{}}, {Body: &wirepb.ClientMessage_Attach{}},
		{Body: &wirepb.ClientMessage_KeepAlive{}}, {Body: &wirepb.ClientMessage_Request{}}, {Body: &wirepb.ClientMessage_Read{}},
		{Body: &wirepb.ClientMessage_Watch{}}, {Body: &wirepb.ClientMessage_Unwatch{}}, {Body: &wirepb.ClientMessage_Ack{}},
		{Body: &wirepb.ClientMessage_Request{Request: &wirepb.Request{}}},
		{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Op: &wirepb.Read_Node{}}}},
		{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Op: &wirepb.Read_Children{}}}},
		{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Op: &wirepb.Read_Locks{}}}},
		{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Op: &wirepb.Read_Sessions{}}}},
		{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Op: &wirepb.Read_Check{}}}},
		{Body: &wirepb.ClientMessage_Read{Read: &wirepb.Read{Op: &wirepb.Read_Sessions{Sessions: &wirepb.ReadSessions{After: huge, Limit: 1<<32 - 1}}}}},
		request(session, huge, put("/a", "x")), request(huge, huge, put("/a", "x")), request(0, 0, put("/a", "x")),
		request(session, 1, &storepb.Command{Op: &storepb.Command_Acquire{}}),
		request(session, 1, &storepb.Command{Op: &storepb.Command_Multi{Multi: &storepb.Multi{Ops: []*storepb.MultiOp{{}}}}}),
		request(session, 2, &storepb.Command{AckedEvent: huge, LowestUnanswered: huge, Op: &storepb.Command_Release{}}),
		request(session, 1, put("/\xff\xfe", "x")), // no UTF-8: cannot be encoded
		keepAlive(huge, true, 0, huge, session, session), keepAlive(1, false), ack(session, huge), attach(session, huge, huge),
		open(huge, nil, 0), open(huge, bytes.Repeat([]byte{0}, 64), 1<<62),
		watch(&wirepb.Watch{Id: huge, Path: "/", Scope: -1, Since: huge}), watch(&wirepb.Watch{Path: "/", Scope: 2, Since: huge}),
	}
}

// Strange messages end a connection at most; nothing else is disturbed.
func TestStrangeMessages(t *testing.T) {
	c := newCell(t, 1)
	good := c.reps[0].dial()
	s := good.open(1, long)
	bad := c.reps[0].dial()
	mine := bad.open(2, long)
	for _, session := range []uint64{s, mine} {
		for i, m := range strange(session) {
			bad.send(m)
			c.advance(tick)
			if c.reps[0].ended[bad.conn] != "" {
				bad.hangup()
				bad = c.reps[0].dial()
				bad.send(attach(mine, 2, 0))
			}
			bad.all()
			if err := c.reps[0].store.Check(); err != nil {
				t.Fatalf("after strange message %d: %v", i, err)
			}
		}
	}
	good.code(storepb.Code_OK, good.do(s, put("/a", "x")))
	for _, m := range strange(s) { // before the Hello
		cl := c.reps[0].connect()
		cl.send(m)
		cl.hangup()
	}
	good.code(storepb.Code_OK, good.do(s, put("/a", "x")))
}

// FuzzClientMessage gives a master, and a replica that is none, whatever bytes
// decode to messages: frames of a two-byte length each. Nothing panics, and
// every answer can be encoded.
func FuzzClientMessage(f *testing.F) {
	frames := func(ms ...*wirepb.ClientMessage) (all []byte) {
		for _, m := range ms {
			if b, err := proto.Marshal(m); err == nil {
				all = append(binary.BigEndian.AppendUint16(all, uint16(len(b))), b...)
			}
		}
		return all
	}
	const session = 1<<40 + 1
	fuzzing.Seed(f, "strange", frames(strange(session)...))
	fuzzing.Seed(f, "work", frames(request(session, 1, lock("/l", 0)), request(session, 2, lock("/l", time.Second)), request(session, 3, unlock("/l", 1)),
		watch(&wirepb.Watch{Id: 1, Path: "/", Scope: 2}), keepAlive(1, true, session), read(nodeRead("/")), ack(session, 1)))
	fuzzing.Seed(f, "open", frames(open(1, nonce(1), time.Second), attach(session, 1, 0), attach(session, 2, 0)))
	f.Fuzz(func(t *testing.T, in []byte) {
		c := newCell(t, 2)
		var clients []*testClient
		for _, r := range c.reps {
			clients = append(clients, r.dial())
		}
		clients[0].open(1, long)
		for n := 0; len(in) >= 2 && n < 64; n++ {
			size := min(int(binary.BigEndian.Uint16(in)), len(in)-2)
			m := new(wirepb.ClientMessage)
			err := proto.Unmarshal(in[2:2+size], m)
			in = in[2+size:]
			if err != nil {
				continue
			}
			for _, cl := range clients {
				cl.post(m)
			}
			if n%3 == 0 {
				c.advance(tick)
			}
		}
		c.advance(200 * time.Millisecond)
		for _, cl := range clients {
			for _, m := range cl.all() {
				if _, err := proto.Marshal(m); err != nil {
					t.Fatalf("an answer that cannot be encoded: %v", err)
				}
			}
		}
		for _, r := range c.reps {
			if err := r.store.Check(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The same events give the same effects, to the byte.
func TestSameInputsSameOutputs(t *testing.T) {
	run := func() []byte {
		var out []byte
		c := newCell(t, 3)
		encode := func() {
			for _, r := range c.reps {
				for conn := ConnID(1); conn <= r.last; conn++ {
					for _, m := range r.inbox[conn] {
						out = fmt.Appendf(out, "%d ", conn)
						out, _ = proto.MarshalOptions{}.MarshalAppend(out, m)
					}
					r.inbox[conn] = nil
				}
				out = fmt.Appendf(out, "%x %v %v\n", r.store.Hash(), r.role, r.notes)
			}
		}
		var clients []*testClient
		for i := uint64(1); i <= 30; i++ {
			cl := c.reps[0].dial()
			cl.open(i, time.Duration(1+i%4)*time.Second)
			cl.send(watch(&wirepb.Watch{Id: i, Path: "/", Scope: wirepb.WatchScope(i % 3)}))
			clients = append(clients, cl)
		}
		for round := range uint64(5) {
			for i, cl := range clients {
				s := uint64(1<<40 + 1 + i)
				cl.post(request(s, round+1, lock(fmt.Sprintf("/l%d", i%5), time.Second)))
				cl.post(keepAlive(round, i%2 == 0, s))
				cl.post(read(nodeRead("/")))
			}
			c.settle()
			encode()
			c.advance(700 * time.Millisecond)
			encode()
		}
		c.elect(2)
		encode()
		c.advance(5 * time.Second)
		encode()
		return out
	}
	first := run()
	for range 3 {
		if !bytes.Equal(first, run()) {
			t.Fatal("the same inputs gave other outputs")
		}
	}
	if len(first) < 10_000 {
		t.Errorf("only %d bytes: the script does too little", len(first))
	}
}
