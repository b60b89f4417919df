// Package codec translates between what package paxos knows and the messages (pb)
// that go to disk and to peers. Byte slices are shared, not copied: values are
// never changed once made. Decoding takes nothing on trust: a kind that it does not
// know, or a field that must be there and is not, is an error.
package codec

import (
	"fmt"
	"math"
	"time"

	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
)

// FormatVersion is the version of the identity file, of segments and of snapshots.
const FormatVersion = 4

// EncodeBallot gives nil for the zero ballot.
func EncodeBallot(b paxos.Ballot) *pb.Ballot {
	if b.IsZero() {
		return nil
	}
	return &pb.Ballot{Round: b.Round, Replica: uint64(b.Replica)}
}

// DecodeBallot is the inverse of EncodeBallot.
func DecodeBallot(b *pb.Ballot) paxos.Ballot {
	return paxos.Ballot{Round: b.GetRound(), Replica: paxos.ReplicaID(b.GetReplica())}
}

// EncodeConfiguration gives nil for nil.
func EncodeConfiguration(c *paxos.Configuration) *pb.Config {
	if c == nil {
		return nil
	}
	out := &pb.Config{
		Cell:          c.Cell,
		CellIdentity:  c.CellIdentity,
		RevisionFloor: c.RevisionFloor,
		Members:       make([]*pb.Member, len(c.Members)),
	}
	for i, m := range c.Members {
		out.Members[i] = &pb.Member{
			Replica:       uint64(m.ID),
			Name:          m.Name,
			Incarnation:   m.Incarnation,
			PeerAddress:   m.PeerAddress,
			ClientAddress: m.ClientAddress,
			Voter:         m.Voter,
		}
	}
	return out
}

// DecodeConfiguration gives nil for nil. Members must have an ID and come by
// ascending ID.
func DecodeConfiguration(c *pb.Config) (*paxos.Configuration, error) {
	if c == nil {
		return nil, nil
	}
	out := &paxos.Configuration{
		Cell:          c.Cell,
		CellIdentity:  c.CellIdentity,
		RevisionFloor: c.RevisionFloor,
	}
	if len(c.Members) > 0 {
		out.Members = make([]paxos.Member, len(c.Members))
	}
	var last paxos.ReplicaID
	for i, m := range c.Members {
		id := paxos.ReplicaID(m.GetReplica())
		if id <= last {
			return nil, fmt.Errorf("configuration: member %d has ID %d, which does not come after %d", i, id, last)
		}
		last = id
		out.Members[i] = paxos.Member{
			ID:            id,
			Name:          m.Name,
			Incarnation:   m.Incarnation,
			PeerAddress:   m.PeerAddress,
			ClientAddress: m.ClientAddress,
			Voter:         m.Voter,
		}
	}
	return out, nil
}

// encodedEntry holds what one entry needs, so that a list of them is one
// allocation.
type encodedEntry struct {
	entry  pb.Entry
	value  pb.Value
	ballot pb.Ballot
	leader pb.Ballot
}

// EncodeEntries gives nil for an empty list.
func EncodeEntries(entries []paxos.Entry) []*pb.Entry {
	if len(entries) == 0 {
		return nil
	}
	room := make([]encodedEntry, len(entries))
	out := make([]*pb.Entry, len(entries))
	for i := range entries {
		e, r := &entries[i], &room[i]
		r.entry.Slot = uint64(e.Slot)
		r.entry.Chosen, r.entry.Named = e.Chosen, e.Named
		if !e.Ballot.IsZero() {
			r.ballot.Round, r.ballot.Replica = e.Ballot.Round, uint64(e.Ballot.Replica)
			r.entry.Ballot = &r.ballot
		}
		out[i] = &r.entry
		if e.Named {
			continue
		}
		r.value.Kind = pb.ValueKind(e.Value.Kind)
		switch e.Value.Kind {
		case paxos.Batch:
			r.value.Commands = e.Value.Commands
		case paxos.Lead:
			r.leader.Round, r.leader.Replica = e.Value.Leader.Round, uint64(e.Value.Leader.Replica)
			r.value.Leader = &r.leader
			r.value.WallSeconds, r.value.CellTime, r.value.CellEpoch = e.Value.WallSeconds, e.Value.CellTime, e.Value.CellEpoch
		case paxos.Config:
			r.value.Config = EncodeConfiguration(e.Value.Config)
		}
		r.entry.Value = &r.value
	}
	return out
}

// DecodeEntries is the inverse of EncodeEntries. It wants a slot and a value
// of a known kind in every entry, and no value in one that is only named; the
// order is the caller's matter.
func DecodeEntries(entries []*pb.Entry) ([]paxos.Entry, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	out := make([]paxos.Entry, len(entries))
	for i, e := range entries {
		if e.GetSlot() == 0 {
			return nil, fmt.Errorf("entry %d of %d has no slot", i, len(entries))
		}
		var v paxos.Value
		if e.Named {
			if e.Value != nil {
				return nil, fmt.Errorf("entry of slot %d is named only, and has a value", e.Slot)
			}
		} else {
			var err error
			if v, err = decodeValue(e.Value); err != nil {
				return nil, fmt.Errorf("entry of slot %d: %w", e.Slot, err)
			}
		}
		out[i] = paxos.Entry{
			Slot:   paxos.Slot(e.Slot),
			Ballot: DecodeBallot(e.Ballot),
			Chosen: e.Chosen,
			Named:  e.Named,
			Value:  v,
		}
	}
	return out, nil
}

func decodeValue(v *pb.Value) (paxos.Value, error) {
	if v == nil {
		return paxos.Value{}, fmt.Errorf("no value")
	}
	switch v.Kind {
	case pb.ValueKind_NOOP:
		return paxos.Value{Kind: paxos.NoOp}, nil
	case pb.ValueKind_BATCH:
		return paxos.Value{Kind: paxos.Batch, Commands: v.Commands}, nil
	case pb.ValueKind_LEAD:
		if v.Leader == nil {
			return paxos.Value{}, fmt.Errorf("a lead value without its ballot")
		}
		return paxos.Value{Kind: paxos.Lead, Leader: DecodeBallot(v.Leader), WallSeconds: v.WallSeconds, CellTime: v.CellTime, CellEpoch: v.CellEpoch}, nil
	case pb.ValueKind_CONFIG:
		c, err := DecodeConfiguration(v.Config)
		if err != nil {
			return paxos.Value{}, err
		}
		if c == nil {
			return paxos.Value{}, fmt.Errorf("a configuration value without configuration")
		}
		return paxos.Value{Kind: paxos.Config, Config: c}, nil
	}
	return paxos.Value{}, fmt.Errorf("value of kind %d, which this version does not know", v.Kind)
}

// EncodeRecord makes the payload of a log record.
func EncodeRecord(r *paxos.Record) *pb.LogRecord {
	return &pb.LogRecord{
		Promised: EncodeBallot(r.Promised),
		Chosen:   uint64(r.Chosen),
		Entries:  EncodeEntries(r.Entries),
	}
}

// DecodeRecord is the inverse of EncodeRecord.
func DecodeRecord(r *pb.LogRecord) (*paxos.Record, error) {
	entries, err := DecodeEntries(r.GetEntries())
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if entries[i].Named {
			return nil, fmt.Errorf("entry of slot %d has no value in a record", entries[i].Slot)
		}
	}
	return &paxos.Record{
		Promised: DecodeBallot(r.GetPromised()),
		Chosen:   paxos.Slot(r.GetChosen()),
		Entries:  entries,
	}, nil
}

// EncodeMessage makes the protocol's form of a message. From and To are not in
// it: the connection it goes by says who is at its ends.
func EncodeMessage(m *paxos.Message) *pb.PaxosMessage {
	return &pb.PaxosMessage{
		Kind:     uint32(m.Kind),
		Ballot:   EncodeBallot(m.Ballot),
		Promised: EncodeBallot(m.Promised),
		Slot:     uint64(m.Slot),
		Chosen:   uint64(m.Chosen),
		First:    uint64(m.First),
		Sequence: m.Sequence,
		Ok:       m.OK,
		Limit:    m.Limit,
		Entries:  EncodeEntries(m.Entries),

		WallSeconds: m.WallSeconds,
		RoundTrip:   int64(m.RoundTrip),
	}
}

// DecodeMessage is the inverse of EncodeMessage; from is the authenticated
// sender, to the receiver.
func DecodeMessage(p *pb.PaxosMessage, from, to paxos.ReplicaID) (paxos.Message, error) {
	if p == nil {
		return paxos.Message{}, fmt.Errorf("no message")
	}
	if p.Kind > math.MaxUint8 || !paxos.MessageKind(p.Kind).Known() {
		return paxos.Message{}, fmt.Errorf("message of kind %d, which this version does not know", p.Kind)
	}
	entries, err := DecodeEntries(p.Entries)
	if err != nil {
		return paxos.Message{}, fmt.Errorf("message of kind %d: %w", p.Kind, err)
	}
	return paxos.Message{
		Kind:     paxos.MessageKind(p.Kind),
		From:     from,
		To:       to,
		Ballot:   DecodeBallot(p.Ballot),
		Promised: DecodeBallot(p.Promised),
		Slot:     paxos.Slot(p.Slot),
		Chosen:   paxos.Slot(p.Chosen),
		First:    paxos.Slot(p.First),
		Sequence: p.Sequence,
		OK:       p.Ok,
		Limit:    p.Limit,
		Entries:  entries,

		WallSeconds: p.WallSeconds,
		RoundTrip:   time.Duration(p.RoundTrip),
	}, nil
}
