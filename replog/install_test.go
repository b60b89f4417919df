package replog

import (
	"testing"

	"github.com/seed70370324/lockd/replog/pb"
)

func TestSnapshotIsNotFetchedForEverOnceTheLogIsCaughtUpWith(t *testing.T) {
	p := &peer{id: 2, name: "n2", connected: true}
	n := &Node{applied: 30, peers: []*peer{p}}
	n.fetch.active = true
	n.fetch.begin(2)
	n.chunkReceived(p, &pb.SnapshotChunk{Slot: 30, Size: 9, Data: []byte("123")})
	n.now += 2 * fetchTimeout
	n.fetchTick()
	if len(n.fx.Send) > 0 || len(n.fx.ReceiveSnapshot) > 0 {
		t.Errorf("asks for %v, writes %v", n.fx.Send, n.fx.ReceiveSnapshot)
	}
	n.needSnapshot(2)
	if len(n.fx.Send) != 1 {
		t.Error("a snapshot that is needed later is not asked for")
	}
}
