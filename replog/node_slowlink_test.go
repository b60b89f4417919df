package replog_test

import (
	"testing"
	"time"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/codec"
	"github.com/seed70370324/lockd/replog/pb"
)

// A snapshot comes over a link of 1 Mbit/s, on which a piece takes longer than
// a piece that was lost is waited for: each is asked for once.
func TestSnapshotOverASlowLink(t *testing.T) {
	const rate = 125_000 // bytes a second
	l := newLateAccept(t)
	c, source := l.c, l.c.hosts[1]
	state := *source.sm
	state.filler = 3 << 20
	for slot := l.from + 1; slot <= l.last+1; slot++ {
		state.Apply(l.entry(slot, "of n4"))
	}
	l.last++
	conf := source.node.Configuration()
	source.must(source.storage.SaveSnapshot(&pb.SnapshotMeta{Slot: uint64(l.last), Cell: "demo",
		Config: codec.EncodeConfiguration(conf), CellIdentity: conf.CellIdentity}, state))

	for _, i := range []int{0, 3, 4} {
		c.disconnect(l.h, c.hosts[i])
	}

	var way []*pb.SnapshotChunk // on their way to n3
	var carried, size int       // bytes of the first, and of all
	begin := c.now
	for l.h.installs == 0 && c.now-begin < 2*time.Minute {
		c.now += stepTime
		if len(way) > 0 {
			carried += int(rate * stepTime / time.Second)
			if carried >= len(way[0].Data) {
				l.receive(2, &pb.PeerMessage{Body: &pb.PeerMessage_SnapshotChunk{SnapshotChunk: way[0]}})
				way, carried = way[1:], 0
			} else if c.now%(50*time.Millisecond) < stepTime {
				l.h.node.Step(c.now, replog.PeerArriving{Peer: 2})
			}
		}
		l.h.node.Step(c.now, replog.Tick{})
		for _, m := range l.settle(nil) {
			px := m.GetPaxos()
			switch kind := paxos.MessageKind(px.GetKind()); {
			case m.GetSnapshotRequest() != nil:
				r := m.GetSnapshotRequest()
				chunk, err := source.storage.ReadSnapshot(paxos.Slot(r.Slot), int64(r.Offset), int(r.Limit))
				source.must(err)
				way = append(way, chunk)
				size += len(chunk.Data)
			case kind == paxos.MsgProbe:
				l.receive(2, paxosMessage(paxos.Message{Kind: paxos.MsgProbeReply, Chosen: l.last, First: l.last + 1, Sequence: px.Sequence}))
			case kind == paxos.MsgCatchUp:
				l.receive(2, paxosMessage(paxos.Message{Kind: paxos.MsgCatchUpReply, Slot: paxos.Slot(px.Slot), Chosen: l.last, First: l.last + 1}))
			}
		}
	}
	t.Logf("%d installations, %d KiB of pieces in %v", l.h.installs, size>>10, c.now-begin)
	if l.h.installs != 1 || size > state.filler+64<<10 {
		t.Error("the snapshot does not come, or pieces of it come again")
	}
}
