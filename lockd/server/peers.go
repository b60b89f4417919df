package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/peer"
	"github.com/seed70370324/lockd/replog/storage"
)

const (
	// peerPendingMax is how many bytes of peers' messages may wait for the loop.
	// Beyond it they are dropped: the protocol repeats what matters.
	peerPendingMax = 256 << 20
	// peerLetterBytes is what a message costs besides its bytes.
	peerLetterBytes = 512
)

// peers are the connections to the other replicas, and what is said of this
// one on them.
type peers struct {
	*peer.Peers
	hello *pb.PeerHello // the last one given out; of the loop
}

// newPeers makes the connections' shell; nothing is dialled before Start.
func (s *Server) newPeers(opened *storage.Opened, rep *replica.Replica, box *mailbox) (*peers, error) {
	c := rep.Configuration()
	self := paxos.ReplicaID(0)
	for _, m := range c.Members {
		if m.Name == s.cfg.Name {
			self = m.ID
		}
	}
	if self == 0 {
		return nil, fmt.Errorf("replica %s is no member of cell %s", s.cfg.Name, s.cfg.Cell)
	}
	p := &peers{hello: &pb.PeerHello{
		Cell:          s.cfg.Cell,
		Name:          s.cfg.Name,
		Replica:       uint64(self),
		Incarnation:   opened.Identity.GetIncarnation(),
		CellIdentity:  c.CellIdentity,
		Founded:       c.CellIdentity != 0,
		ClientAddress: s.cfg.AdvertiseClient,
		PeerAddress:   s.cfg.AdvertisePeer,
		Version:       replog.PeerVersion,
		Process:       randomUint64(),
		StateNodes:    uint64(s.cfg.Limits.MaxStateNodes),
		StateBytes:    uint64(s.cfg.Limits.MaxStateBytes),
	}}
	p.Peers = peer.New(peer.Options{
		Listener: s.listeners.peer, Self: self, Members: c.Members, Hello: p.hello, Logger: s.log, MaxGreetings: s.cfg.Limits.maxGreetings,
	}, s.deliverTo(box))
	if c.CellIdentity != 0 {
		p.Founded(c)
	}
	s.metrics.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "lockd_peer_messages_unsent_total",
		Help: "Messages to peers dropped because the peer was not connected or did not read.",
	}, func() float64 { return float64(p.Dropped()) }))
	s.metrics.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "lockd_peer_messages_superseded_total",
		Help: "Messages to peers dropped before they had left, because this replica had gone on to a higher ballot.",
	}, func() float64 { return float64(p.Superseded()) }))
	s.metrics.registry.MustRegister(newLinkCollector(p.Links))
	return p, nil
}

// linkCollector reads how the links get on, when scraped.
type linkCollector struct {
	links                     func() []peer.LinkStatus
	queued, window, roundTrip *prometheus.Desc
}

func newLinkCollector(links func() []peer.LinkStatus) *linkCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"peer"}, nil)
	}
	return &linkCollector{
		links:     links,
		queued:    desc("lockd_peer_queued_bytes", "Bytes of large messages that the peer has not acknowledged."),
		window:    desc("lockd_peer_window_bytes", "Bytes of large messages that may be on their way to the peer at once."),
		roundTrip: desc("lockd_peer_round_trip_seconds", "Shortest round trip of a part of a large message, 0 while none was measured."),
	}
}

// Describe names the metrics.
func (c *linkCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.queued
	ch <- c.window
	ch <- c.roundTrip
}

// Collect reads them.
func (c *linkCollector) Collect(ch chan<- prometheus.Metric) {
	for _, l := range c.links() {
		ch <- prometheus.MustNewConstMetric(c.queued, prometheus.GaugeValue, float64(l.Queued), l.Peer)
		ch <- prometheus.MustNewConstMetric(c.window, prometheus.GaugeValue, float64(l.Window), l.Peer)
		ch <- prometheus.MustNewConstMetric(c.roundTrip, prometheus.GaugeValue, l.RoundTrip.Seconds(), l.Peer)
	}
}

// deliverTo puts the peers' events into the mailbox; messages only as long as
// there is room for them.
func (s *Server) deliverTo(box *mailbox) func(replog.Event, int) {
	pending := &s.metrics.peerPending
	return func(ev replog.Event, bytes int) {
		received, ok := ev.(replog.PeerReceived)
		if !ok {
			// The link is locked while it reports what is queued, and a turn of the
			// loop would send: that is left to the loop's goroutine.
			_, report := ev.(replog.PeerSent)
			box.put(letter{event: ev, aside: report})
			return
		}
		bytes += peerLetterBytes
		if pending.Add(int64(bytes)) > peerPendingMax {
			pending.Add(-int64(bytes))
			s.metrics.peerDrops.Inc()
			return
		}
		l := letter{event: ev, peerBytes: bytes}
		// A refusal is news in any case.
		if m := received.Message.GetPaxos(); m.GetKind() == uint32(paxos.MsgAccepted) && m.GetOk() {
			l.wakes, l.vote = ifVotes, paxos.Slot(m.GetSlot())
		}
		box.put(l)
	}
}

// founded tells the peers that this replica knows its cell; the loop alone
// calls it, when the cell's identity may have become known.
func (p *peers) founded(c *paxos.Configuration) {
	if c.CellIdentity == p.hello.CellIdentity {
		return
	}
	h := &pb.PeerHello{
		Cell: p.hello.Cell, Name: p.hello.Name, Replica: p.hello.Replica, Incarnation: p.hello.Incarnation,
		CellIdentity: c.CellIdentity, Founded: true,
		ClientAddress: p.hello.ClientAddress, PeerAddress: p.hello.PeerAddress, Version: p.hello.Version,
		Process: p.hello.Process, StateNodes: p.hello.StateNodes, StateBytes: p.hello.StateBytes,
	}
	p.hello = h
	p.Founded(c)
	p.UpdateHello(h)
}
