package sim

import (
	"maps"
	"slices"
	"strings"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
)

// tellLeader tells of a leader what no message shows: whom it asks first, what it has
// sent to others after all, and which leases are over at it. For stories alone.
func (p *process) tellLeader() {
	w := p.w
	if p.rep == nil || !p.up {
		return
	}
	m := p.rep.Metrics()
	if first := w.namesOf(m.AskedFirst); first != p.askedFirst {
		p.askedFirst = first
		if first == "" {
			w.tell(p.name, "asks everybody for votes")
		} else {
			w.tell(p.name, "asks%s first for votes", first)
		}
	}
	if n := m.Thrift.Hedged - p.thrift.Hedged; n > 0 {
		w.tell(p.name, "hedges: %d slots take too long and go to all", n)
	}
	if n := m.Thrift.Misses - p.thrift.Misses; n > 0 {
		w.tell(p.name, "needed the hedge for %d slots", n)
	}
	p.thrift = m.Thrift
	p.tellLeases(&m)
}

// tellLeases tells which leases are over at a master: those that it has given itself.
func (p *process) tellLeases(m *replica.Metrics) {
	if !p.role.Master || m.Epoch != p.leases.epoch {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(p.leases.until)) {
		until := p.leases.until[id]
		if p.running(p.w.now) < until || p.leases.told[id] == until {
			continue
		}
		p.leases.told[id] = until
		if s := p.w.history.sessions[id]; s != nil && !s.ended {
			p.w.tell(p.name, "has given session %s no lease beyond now", short(id))
		}
	}
}

func (w *World) namesOf(ids []paxos.ReplicaID) string {
	var s strings.Builder
	for _, id := range ids {
		s.WriteString(" " + w.processByID(id).name)
	}
	return s.String()
}

// repeated is a message that goes again and again while nothing happens.
type repeated struct {
	from, to, text string
	lines          int // of the story, without those of this kind, when it was told
	more           int
	last           int64
}

// again reports whether a message that is sent all the time says nothing new: it is
// the same as the last of its kind on its way, but for its number, and the story has
// told of nothing else since. It is counted, and the count is told ahead of the next
// one that is told.
func (s *story) again(w *World, from, to, kind, text string) bool {
	if kind == "" {
		return false
	}
	if s.repeated == nil {
		s.repeated = map[string]*repeated{}
	}
	key := from + " " + to + " " + kind
	r := s.repeated[key]
	if r == nil {
		r = &repeated{from: from, to: to}
		s.repeated[key] = r
	}
	if r.text == text && r.lines == s.lines {
		r.more++
		r.last = w.now
		return true
	}
	r.tell(w)
	s.lines-- // the line that follows
	r.text, r.lines = text, s.lines+1
	return false
}

// tell tells how often a message went again.
func (r *repeated) tell(w *World) {
	if r.more > 0 {
		w.tell(r.from, "-> %s %s: the same %d times more, the last at %s", r.to, r.text, r.more, tellTime(r.last))
		r.more = 0
		w.story.lines--
	}
}

// tellRepeated tells all counts at the end of a run.
func (w *World) tellRepeated() {
	for _, key := range slices.Sorted(maps.Keys(w.story.repeated)) {
		w.story.repeated[key].tell(w)
	}
}

// idlePeer returns the kind of a message that replicas send although nothing happens,
// and its text without what always differs; "" for another message.
func idlePeer(m *pb.PeerMessage) (kind, text string) {
	px := m.GetPaxos()
	switch paxos.MessageKind(px.GetKind()) {
	case paxos.MsgHeartbeat, paxos.MsgHeartbeatAck:
	default:
		return "", ""
	}
	text = tellPaxos(px)
	if i := strings.Index(text, " round "); i >= 0 {
		rest := text[i+len(" round "):]
		text = text[:i] + rest[len(rest)-len(strings.TrimLeft(rest, "0123456789")):]
	}
	return paxosName(px.GetKind()), text
}

// idleUp and idleDown do the same for a client's messages, and for those to clients.
func idleUp(m *wirepb.ClientMessage) (kind, text string) {
	if k := m.GetKeepAlive(); k != nil && !k.GetNow() {
		return "keep alive", "keep alive"
	}
	return "", ""
}

func idleDown(m *wirepb.ServerMessage) (kind, text string) {
	if k := m.GetKept(); k != nil && len(k.GetLeases()) > 0 && len(k.GetGone()) == 0 {
		return "kept", "kept"
	}
	return "", ""
}
