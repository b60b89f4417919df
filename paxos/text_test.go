package paxos_test

import (
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/seed70370324/lockd/paxos"
)

// How messages, entries and records read in transcripts and failures. Of a
// heartbeat's number, which begins anywhere, the last two digits are enough.

func valueText(v *paxos.Value) string {
	switch v.Kind {
	case paxos.NoOp:
		return "no-op"
	case paxos.Lead:
		return "lead " + v.Leader.String()
	case paxos.Config:
		if v.Config == nil {
			return "configuration?"
		}
		var b strings.Builder
		b.WriteString("members")
		for _, m := range v.Config.Members {
			fmt.Fprintf(&b, " %d", m.ID)
		}
		return b.String()
	case paxos.Batch:
		words := make([]string, len(v.Commands))
		for i, c := range v.Commands {
			words[i] = string(c)
			if len(c) > 100 {
				h := fnv.New64a()
				h.Write(c)
				words[i] = fmt.Sprintf("%.10s... (%d bytes, %x)", c, len(c), h.Sum64())
			}
		}
		return "[" + strings.Join(words, " ") + "]"
	}
	return fmt.Sprintf("kind %d", v.Kind)
}

// entriesText names the ballot only where it is another than the message's.
func entriesText(entries []paxos.Entry, ballot paxos.Ballot) string {
	var b strings.Builder
	for _, e := range entries {
		text := valueText(&e.Value)
		if e.Named {
			text = "?"
		}
		fmt.Fprintf(&b, " %d=%s", e.Slot, text)
		switch {
		case e.Chosen:
			b.WriteString("!")
		case e.Ballot != ballot:
			fmt.Fprintf(&b, "@%v", e.Ballot)
		}
	}
	return b.String()
}

func messageText(m *paxos.Message) string {
	yes := func() string {
		if m.OK {
			return "yes"
		}
		return fmt.Sprintf("no, promised %v", m.Promised)
	}
	var s string
	switch m.Kind {
	case paxos.MsgProbe:
		s = fmt.Sprintf("probe chosen %d", m.Chosen)
	case paxos.MsgProbeReply:
		s = "probe-reply no"
		if m.OK {
			s = "probe-reply yes"
		}
	case paxos.MsgPrepare:
		s = fmt.Sprintf("prepare %v from slot %d", m.Ballot, m.Slot)
	case paxos.MsgPromise:
		s = fmt.Sprintf("promise %v %s chosen %d", m.Ballot, yes(), m.Chosen)
	case paxos.MsgAccept:
		s = fmt.Sprintf("accept %v chosen %d", m.Ballot, m.Chosen)
	case paxos.MsgAccepted:
		s = fmt.Sprintf("accepted %v %s up to %d", m.Ballot, yes(), m.Slot)
	case paxos.MsgHeartbeat:
		s = fmt.Sprintf("heartbeat %v #%d chosen %d sent %d", m.Ballot, m.Sequence%100, m.Chosen, m.Slot)
	case paxos.MsgHeartbeatAck:
		s = fmt.Sprintf("heartbeat-ack %v #%d %s up to %d", m.Ballot, m.Sequence%100, yes(), m.Slot)
	case paxos.MsgCatchUp:
		s = fmt.Sprintf("catch-up from slot %d", m.Slot)
	case paxos.MsgCatchUpReply:
		s = fmt.Sprintf("catch-up-reply chosen %d", m.Chosen)
		if len(m.Entries) == 0 {
			s += fmt.Sprintf(" first %d", m.First)
		}
	case paxos.MsgHandover:
		s = fmt.Sprintf("handover %v", m.Ballot)
	case paxos.MsgFetch:
		s = fmt.Sprintf("fetch for %v", m.Ballot)
	case paxos.MsgValues:
		s = fmt.Sprintf("values for %v %s chosen %d", m.Ballot, yes(), m.Chosen)
	default:
		s = fmt.Sprintf("kind %d", m.Kind)
	}
	return fmt.Sprintf("%d>%d %s%s", m.From, m.To, s, entriesText(m.Entries, m.Ballot))
}

func recordText(r *paxos.Record) string {
	return fmt.Sprintf("promised %v chosen %d%s", r.Promised, r.Chosen, entriesText(r.Entries, r.Promised))
}
