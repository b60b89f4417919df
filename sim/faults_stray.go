package sim

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// Peers that are out of their mind, and strangers in a replica's name. What they
// say is such that a replica has to find out by itself that it must not be
// believed: no sender of another kind is defended against.

// faultStray lets a replica get malformed messages from another, or be connected
// for a while with a stranger that bears another's name.
func (w *World) faultStray() {
	s := w.faultRandom
	to, from := w.target(), pick(s, w.replicas)
	if from == to || !to.up {
		return
	}
	if s.chance(500_000) {
		if to.connected[from.index] {
			for n := s.between(1, 6); n > 0; n-- {
				w.sendOdd(from, to, malformed(s, from, to))
			}
		}
		return
	}
	for _, c := range w.net.pairs {
		if c.deceived == nil && (c.a == to && c.b == from || c.a == from && c.b == to) {
			w.connectStranger(c, from, to)
		}
	}
}

// sendOdd has a message arrive that its sender has not sent.
func (w *World) sendOdd(from, to *process, m *pb.PeerMessage) {
	w.happened(FaultMalformed)
	boot := to.boot
	w.after(w.latency(), func() {
		if to.up && to.boot == boot && to.connected[from.index] {
			w.takeOdd(from, to, m)
		}
	})
}

func (w *World) takeOdd(from, to *process, m *pb.PeerMessage) {
	kind, numbers := describePeer(w.numbers[:0], m)
	w.trace.add(w.now, kind, append(numbers, uint64(from.index), uint64(to.index))...)
	if w.telling() {
		w.tell("net", "%s gets as from %s: %s", to.name, from.name, tellPeer(m))
	}
	to.post(replog.PeerReceived{Peer: from.id, Message: m})
}

// connectStranger ends the connection of two replicas, and connects one of them
// with a process that calls itself by the other's name.
func (w *World) connectStranger(c *pair, from, to *process) {
	s := w.faultRandom
	h := w.strangeHello(from, to)
	w.happened(FaultStray)
	w.disconnectPair(c)
	c.deceived = to
	w.trace.add(w.now, "stranger", uint64(from.index), uint64(to.index))
	w.tell("net", "%s is connected with a stranger: %s", to.name, tellHello(h))
	to.post(replog.PeerConnected{Hello: h})
	boot := to.boot
	still := func() bool { return to.up && to.boot == boot && c.deceived == to }
	at := int64(0)
	for n := s.between(0, 4); n > 0; n-- {
		at += s.skewed(millisecond, 400*millisecond)
		m := w.strangeMessage(h, from, to)
		w.after(at, func() {
			if still() {
				w.takeOdd(from, to, m)
			}
		})
	}
	w.after(at+s.skewed(millisecond, 2*second), func() {
		if still() {
			to.post(replog.PeerDisconnected{Peer: from.id})
		}
		c.deceived = nil
	})
}

func tellHello(h *pb.PeerHello) string {
	return fmt.Sprintf("%s, replica %d of cell %s (%016x), incarnation %016x, version %d",
		h.GetName(), h.GetReplica(), h.GetCell(), h.GetCellIdentity(), h.GetIncarnation(), h.GetVersion())
}

// strangeHello is the hello of a process that is not the replica whose name it
// bears.
func (w *World) strangeHello(from, to *process) *pb.PeerHello {
	s := w.faultRandom
	h := &pb.PeerHello{Cell: cellName, Name: from.name, Replica: uint64(from.id), Incarnation: s.uint64()>>1 | 1,
		CellIdentity: to.identity, Founded: to.identity != 0, ClientAddress: "stranger:7101", PeerAddress: "stranger:7201",
		Version: replog.PeerVersion, Lane: "main"}
	if to.identity == 0 {
		// Before the founding it cannot be told from the member, and its address is believed.
		h.ClientAddress = from.address()
	}
	switch s.below(6) {
	case 0:
		h.Version = uint32(s.between(0, 1)*2) + replog.PeerVersion - 1
	case 1:
		h.Cell, h.CellIdentity = "another", s.uint64()|1
	case 2:
		h.Replica += uint64(s.between(1, 3))
	case 3:
		h.Name = "nobody"
	case 4:
		if to.identity != 0 {
			h.CellIdentity ^= 1
		}
	}
	return h
}

// strangeMessage is what a stranger may send.
func (w *World) strangeMessage(h *pb.PeerHello, from, to *process) *pb.PeerMessage {
	s := w.faultRandom
	kinds := int64(4)
	if to.identity == 0 {
		kinds = 9
	}
	switch s.below(kinds) {
	case 0:
		fatal := s.chance(500_000)
		if fatal && h.GetName() == from.name {
			to.warned = true
		}
		return &pb.PeerMessage{Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{
			Text: "who are you?", Fatal: fatal, Incarnation: to.incarnation()}}}
	case 1:
		return w.strangeFounding(h, from, to)
	case 2:
		return &pb.PeerMessage{Body: &pb.PeerMessage_Hello{Hello: proto.CloneOf(h)}}
	case 3:
		return malformed(s, from, to)
	case 4:
		// It proposes a cell in which this replica has another disk.
		own := &pb.Ballot{Round: 1, Replica: uint64(from.id)}
		return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgAccept), Ballot: own,
			Entries: []*pb.Entry{{Slot: 1, Ballot: own, Value: &pb.Value{Kind: pb.ValueKind_CONFIG, Config: w.strangeConfig()}}}})
	}
	return w.strangeFounding(h, from, to)
}

// strangeFounding is what no founder must take for a reason to found the cell:
// the stranger has other members, is not empty, or has taken part in an attempt
// with other disks.
func (w *World) strangeFounding(h *pb.PeerHello, from, to *process) *pb.PeerMessage {
	f := &pb.Founding{Name: from.name, Incarnation: h.GetIncarnation(), Empty: true}
	for _, q := range w.replicas {
		f.Members = append(f.Members, q.name)
	}
	switch w.faultRandom.below(4) {
	case 0:
		f.Members = append(f.Members, "somebody")
	case 1:
		f.Empty = false
	case 2:
		f.Attempt = w.strangeConfig()
	case 3:
		f.Attempt = w.strangeConfig()
		f.Attempt.Members[0], f.Attempt.Members[1] = f.Attempt.Members[1], f.Attempt.Members[0]
	}
	return &pb.PeerMessage{Body: &pb.PeerMessage_Founding{Founding: f}}
}

// strangeConfig is a cell of replicas that have these names and other disks.
func (w *World) strangeConfig() *pb.Config {
	c := &pb.Config{Cell: cellName, CellIdentity: 77}
	for _, q := range w.replicas {
		c.Members = append(c.Members, &pb.Member{Replica: uint64(q.id), Name: q.name, Incarnation: 1, Voter: true})
	}
	return c
}

// refusedByStranger: a replica that knows of nothing chosen may be told by
// another cell that it has come to the wrong place.
func (p *process) refusedByStranger(fatal error) bool {
	var refused *replog.RefusedError
	if !p.warned || !errors.As(fatal, &refused) || p.identity != 0 {
		return false
	}
	p.w.crashAndRestart(p, "refused by a stranger")
	return true
}

func oddPaxos(m *pb.PaxosMessage) *pb.PeerMessage {
	return &pb.PeerMessage{Body: &pb.PeerMessage_Paxos{Paxos: m}}
}

// malformed is a message that no replica sends. Each of them is to be left out.
func malformed(s *stream, from, to *process) *pb.PeerMessage {
	own := &pb.Ballot{Round: uint64(s.between(1, 9)), Replica: uint64(from.id)}
	accept := func(e *pb.Entry) *pb.PeerMessage {
		return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgAccept), Ballot: own, Entries: []*pb.Entry{e}})
	}
	slot := uint64(s.between(1, 500))
	noop := &pb.Value{Kind: pb.ValueKind_NOOP}
	config := func(ids ...uint64) *pb.Value {
		c := &pb.Config{Cell: cellName}
		for _, id := range ids {
			c.Members = append(c.Members, &pb.Member{Replica: id, Name: "m", Voter: true})
		}
		return &pb.Value{Kind: pb.ValueKind_CONFIG, Config: c}
	}
	beyond := &pb.Ballot{Round: 1<<62 + 1, Replica: uint64(from.id)}
	table := []func() *pb.PeerMessage{
		func() *pb.PeerMessage { return &pb.PeerMessage{} },
		func() *pb.PeerMessage { return oddPaxos(nil) },
		func() *pb.PeerMessage {
			return oddPaxos(&pb.PaxosMessage{Kind: pick(s, []uint32{0, 77, 300, 1 << 20}), Ballot: own})
		},
		func() *pb.PeerMessage { return accept(&pb.Entry{Ballot: own, Value: noop}) },
		func() *pb.PeerMessage { return accept(&pb.Entry{Slot: slot, Ballot: own}) },
		func() *pb.PeerMessage { return accept(&pb.Entry{Slot: slot, Ballot: own, Named: true}) },
		func() *pb.PeerMessage { return accept(&pb.Entry{Slot: slot, Ballot: own, Named: true, Value: noop}) },
		func() *pb.PeerMessage {
			return accept(&pb.Entry{Slot: slot, Ballot: own, Value: &pb.Value{Kind: pb.ValueKind_LEAD}})
		},
		func() *pb.PeerMessage { return accept(&pb.Entry{Slot: slot, Ballot: own, Value: &pb.Value{Kind: 9}}) },
		func() *pb.PeerMessage {
			return accept(&pb.Entry{Slot: slot, Ballot: own, Value: &pb.Value{Kind: pb.ValueKind_CONFIG}})
		},
		func() *pb.PeerMessage { return accept(&pb.Entry{Slot: slot, Ballot: own, Value: config(2, 1)}) },
		func() *pb.PeerMessage { return accept(&pb.Entry{Slot: slot, Ballot: beyond, Value: noop}) },
		func() *pb.PeerMessage {
			return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgPrepare), Ballot: &pb.Ballot{Round: 1 << 40, Replica: uint64(to.id)}})
		},
		func() *pb.PeerMessage { return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgHeartbeat)}) },
		func() *pb.PeerMessage {
			return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgPrepare), Ballot: beyond})
		},
		func() *pb.PeerMessage {
			return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgPromise), Ballot: own, Promised: beyond})
		},
		func() *pb.PeerMessage {
			// A candidate of long ago asks for a value.
			return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgFetch), Ballot: own, Slot: slot,
				Entries: []*pb.Entry{{Slot: slot, Ballot: own, Named: true}}})
		},
		func() *pb.PeerMessage {
			return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgFetch), Ballot: own, Entries: []*pb.Entry{{Slot: slot, Ballot: own, Value: noop}}})
		},
		func() *pb.PeerMessage { return oddPaxos(&pb.PaxosMessage{Kind: uint32(paxos.MsgCatchUp)}) },
		func() *pb.PeerMessage { return &pb.PeerMessage{Body: &pb.PeerMessage_Hello{}} },
		func() *pb.PeerMessage {
			return &pb.PeerMessage{Body: &pb.PeerMessage_Hello{Hello: &pb.PeerHello{Cell: cellName, Name: "nobody"}}}
		},
		func() *pb.PeerMessage {
			return &pb.PeerMessage{Body: &pb.PeerMessage_Founding{Founding: &pb.Founding{Name: "nobody", Empty: true}}}
		},
		func() *pb.PeerMessage {
			return &pb.PeerMessage{Body: &pb.PeerMessage_Refusal{Refusal: &pb.PeerRefusal{
				Text: "no", Fatal: to.identity != 0, Incarnation: to.incarnation()}}}
		},
		func() *pb.PeerMessage {
			return &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotRequest{SnapshotRequest: &pb.SnapshotRequest{
				Slot: slot, Offset: pick(s, []uint64{0, 1 << 40, 1 << 63}), Limit: uint32(s.below(1 << 30))}}}
		},
		func() *pb.PeerMessage {
			return &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: oddChunk(s)}}
		},
	}
	return pick(s, table)()
}

// oddChunk is a piece of a snapshot that makes no sense.
func oddChunk(s *stream) *pb.SnapshotChunk {
	far := uint64(1 << 40)
	return pick(s, []*pb.SnapshotChunk{
		{},
		{Slot: far, Gone: true},
		{Slot: far, Data: make([]byte, 10), Size: 5, Last: true},
		{Slot: far, Data: make([]byte, 10), Size: 10},
		{Slot: far, Size: 10},
		{Slot: far, Data: make([]byte, 1000), Size: 1000, Last: true},
		{Slot: 1, Data: make([]byte, 1000), Size: 1000, Last: true},
		{Slot: far, Offset: 77, Data: make([]byte, 10), Size: 1000},
	})
}

// answerOddly has a request of a replica answered by nonsense, before the right
// answer or in its place.
func (w *World) answerOddly(p, to *process, m *pb.PeerMessage) {
	often := w.plan.oddAnswers
	if m.GetSnapshotRequest() != nil {
		often *= 20 // there are few
	}
	if !w.faulty || often == 0 || !p.connected[to.index] || !w.faultRandom.chance(min(often, 600_000)) {
		return
	}
	s := w.faultRandom
	far := uint64(1 << 40)
	switch b := m.Body.(type) {
	case *pb.PeerMessage_Paxos:
		px := b.Paxos
		yes := &pb.PaxosMessage{Ballot: px.GetBallot(), Promised: px.GetBallot(), Ok: true}
		switch paxos.MessageKind(px.GetKind()) {
		case paxos.MsgPrepare:
			// Of a slot that no acceptor can have.
			yes.Kind, yes.Entries = uint32(paxos.MsgPromise), []*pb.Entry{{Slot: far, Ballot: px.GetBallot(), Named: true}}
		case paxos.MsgAccept:
			// A vote for what was never proposed.
			yes.Kind, yes.Slot = uint32(paxos.MsgAccepted), far
		case paxos.MsgFetch:
			yes.Kind, yes.Slot = uint32(paxos.MsgValues), px.GetSlot()
			if yes.Ok = s.chance(500_000); !yes.Ok && s.chance(500_000) {
				yes.Promised = &pb.Ballot{Round: px.GetBallot().GetRound() + 1, Replica: uint64(to.id)}
			} else if yes.Ok {
				// Values that were not asked for.
				yes.Entries = []*pb.Entry{{Slot: far, Ballot: px.GetBallot(), Value: &pb.Value{Kind: pb.ValueKind_NOOP}}}
			}
		default:
			return
		}
		w.sendOdd(to, p, oddPaxos(yes))
	case *pb.PeerMessage_SnapshotRequest:
		c := oddChunk(s)
		if s.chance(400_000) {
			c = w.strangeSnapshot(p)
		}
		if c != nil {
			w.sendOdd(to, p, &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: c}})
		}
	}
}

// strangeSnapshot is a sound snapshot that is not of the replica's cell, or not of
// this replica as it is.
func (w *World) strangeSnapshot(p *process) *pb.SnapshotChunk {
	s := w.faultRandom
	var from *process
	for _, q := range w.replicas {
		if q.up && q.rep != nil && q.identity != 0 {
			from = q
		}
	}
	if from == nil {
		return nil
	}
	const slot = 1 << 40
	cell, identity := cellName, from.identity
	c := w.strangeConfig()
	c.CellIdentity = identity
	switch s.below(5) {
	case 0:
		cell = "another"
	case 1:
		identity ^= 1
		c.CellIdentity = identity
	case 2:
		c.Members[p.index].Name = "nobody"
	case 3:
		c.Members[0], c.Members[1] = c.Members[1], c.Members[0]
	}
	opened, err := storage.Open(storage.Options{FS: faultfs.New(), Cell: cell, Replica: "stranger", Decode: replica.DecodeSnapshot,
		SegmentBytes: 64 << 10, NewIncarnation: func() uint64 { return 1 }})
	if err != nil {
		w.fail("simulator", "a storage in memory cannot be opened: %v", err)
		return nil
	}
	meta := &pb.SnapshotMeta{Slot: slot, Cell: cell, CellIdentity: identity, Config: c}
	if err := opened.Storage.SaveSnapshot(meta, from.rep.Store().Clone()); err != nil {
		w.fail("simulator", "a strange snapshot cannot be made: %v", err)
		return nil
	}
	chunk, err := opened.Storage.ReadSnapshot(slot, 0, 1<<20)
	if err != nil || !chunk.GetLast() {
		return nil // too long for one piece
	}
	return chunk
}
