package sim

import (
	"fmt"
	"strings"

	"github.com/seed70370324/lockd/client/machine"
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// Every message is described twice: by a name and numbers for the trace, and
// by words for the story.

var paxosNames = [...]string{"none", "probe", "probe reply", "prepare", "promise", "accept", "accepted", "heartbeat",
	"heartbeat ack", "catch up", "catch-up reply", "handover", "fetch", "values"}

func paxosName(kind uint32) string {
	if int(kind) < len(paxosNames) {
		return paxosNames[kind]
	}
	return "unknown"
}

func describePeer(n []uint64, m *pb.PeerMessage) (string, []uint64) {
	switch b := m.Body.(type) {
	case *pb.PeerMessage_Paxos:
		p := b.Paxos
		ok := uint64(0)
		if p.GetOk() {
			ok = 1
		}
		return paxosName(p.GetKind()), append(n, p.GetBallot().GetRound(), p.GetBallot().GetReplica(), p.GetPromised().GetRound(),
			p.GetSlot(), p.GetChosen(), p.GetFirst(), p.GetSequence(), uint64(len(p.GetEntries())), ok)
	case *pb.PeerMessage_SnapshotRequest:
		return "snapshot request", append(n, b.SnapshotRequest.GetSlot(), b.SnapshotRequest.GetOffset())
	case *pb.PeerMessage_SnapshotChunk:
		return "snapshot chunk", append(n, b.SnapshotChunk.GetSlot(), b.SnapshotChunk.GetOffset())
	case *pb.PeerMessage_Founding:
		return "founding", append(n, b.Founding.GetIncarnation())
	case *pb.PeerMessage_Hello:
		return "hello", n
	case *pb.PeerMessage_Refusal:
		return "refusal", n
	}
	return "other", nil
}

func tellPeer(m *pb.PeerMessage) string {
	switch b := m.Body.(type) {
	case *pb.PeerMessage_Paxos:
		return tellPaxos(b.Paxos)
	case *pb.PeerMessage_SnapshotRequest:
		return fmt.Sprintf("snapshot request: slot %d, offset %d", b.SnapshotRequest.GetSlot(), b.SnapshotRequest.GetOffset())
	case *pb.PeerMessage_SnapshotChunk:
		c := b.SnapshotChunk
		return fmt.Sprintf("snapshot chunk: slot %d, offset %d, last %v, gone %v", c.GetSlot(), c.GetOffset(), c.GetLast(), c.GetGone())
	case *pb.PeerMessage_Refusal:
		return "refusal: " + b.Refusal.GetText()
	}
	name, _ := describePeer(nil, m)
	return name
}

func tellPaxos(p *pb.PaxosMessage) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s b%d.%d", paxosName(p.GetKind()), p.GetBallot().GetRound(), p.GetBallot().GetReplica())
	switch paxos.MessageKind(p.GetKind()) {
	case paxos.MsgProbeReply, paxos.MsgPromise, paxos.MsgAccepted, paxos.MsgHeartbeatAck, paxos.MsgValues:
		fmt.Fprintf(&s, " %s (promised b%d.%d)", map[bool]string{true: "yes", false: "no"}[p.GetOk()], p.GetPromised().GetRound(), p.GetPromised().GetReplica())
	}
	fmt.Fprintf(&s, " slot %d chosen %d", p.GetSlot(), p.GetChosen())
	if p.GetSequence() != 0 {
		fmt.Fprintf(&s, " round %d", p.GetSequence())
	}
	if p.GetFirst() != 0 {
		fmt.Fprintf(&s, " first %d", p.GetFirst())
	}
	if n := len(p.GetEntries()); n > 0 {
		fmt.Fprintf(&s, " entries")
		for i, e := range p.GetEntries() {
			if i == 8 {
				fmt.Fprintf(&s, " ... (%d)", n)
				break
			}
			fmt.Fprintf(&s, " %d@b%d.%d", e.GetSlot(), e.GetBallot().GetRound(), e.GetBallot().GetReplica())
			if !e.GetNamed() {
				fmt.Fprintf(&s, ":%v", paxos.ValueKind(e.GetValue().GetKind()))
			}
		}
	}
	return s.String()
}

func tellValue(v *paxos.Value) string {
	switch v.Kind {
	case paxos.NoOp:
		return "no-op"
	case paxos.Batch:
		return fmt.Sprintf("%d commands", len(v.Commands))
	case paxos.Lead:
		return fmt.Sprintf("lead of %v", v.Leader)
	case paxos.Config:
		return fmt.Sprintf("configuration of %d members", len(v.Config.Members))
	}
	return "unknown kind"
}

// short shows a revision or a session by its low part: the high part is the
// same in all of a run.
func short(revision uint64) string { return fmt.Sprintf("r%d", revision&(1<<31-1)) }

func tellTime(t int64) string { return fmt.Sprintf("%d.%06ds", t/second, t%second/microsecond) }

func describeUp(n []uint64, m *wirepb.ClientMessage) (string, []uint64) {
	switch b := m.Body.(type) {
	case *wirepb.ClientMessage_Hello:
		return "client hello", n
	case *wirepb.ClientMessage_Open:
		return "open", append(n, b.Open.GetId())
	case *wirepb.ClientMessage_Attach:
		return "attach", append(n, b.Attach.GetSession(), b.Attach.GetAckedEvent())
	case *wirepb.ClientMessage_KeepAlive:
		return "keep alive", append(n, b.KeepAlive.GetId())
	case *wirepb.ClientMessage_Request:
		c := b.Request.GetCommand()
		return "request", append(n, c.GetSession(), c.GetNumber(), c.GetLowestUnanswered())
	case *wirepb.ClientMessage_Read:
		return "read", append(n, b.Read.GetId())
	case *wirepb.ClientMessage_Watch:
		return "watch", append(n, b.Watch.GetId(), b.Watch.GetSince())
	case *wirepb.ClientMessage_Unwatch:
		return "unwatch", append(n, b.Unwatch.GetId())
	case *wirepb.ClientMessage_Ack:
		return "ack events", append(n, b.Ack.GetSession(), b.Ack.GetNumber())
	}
	return "other", nil
}

func tellUp(m *wirepb.ClientMessage) string {
	switch b := m.Body.(type) {
	case *wirepb.ClientMessage_Attach:
		return fmt.Sprintf("attach session %s, acked event %d", short(b.Attach.GetSession()), b.Attach.GetAckedEvent())
	case *wirepb.ClientMessage_Request:
		return "request " + tellCommand(b.Request.GetCommand())
	case *wirepb.ClientMessage_Ack:
		return fmt.Sprintf("ack events of %s up to %d", short(b.Ack.GetSession()), b.Ack.GetNumber())
	case *wirepb.ClientMessage_KeepAlive:
		return fmt.Sprintf("keep alive %d (now %v)", b.KeepAlive.GetId(), b.KeepAlive.GetNow())
	}
	name, numbers := describeUp(nil, m)
	return fmt.Sprintf("%s %v", name, numbers)
}

func describeDown(n []uint64, m *wirepb.ServerMessage) (string, []uint64) {
	switch b := m.Body.(type) {
	case *wirepb.ServerMessage_Hello:
		return "hello reply", append(n, b.Hello.GetEpoch())
	case *wirepb.ServerMessage_Opened:
		return "opened", append(n, b.Opened.GetSession(), uint64(b.Opened.GetHeldNs()))
	case *wirepb.ServerMessage_Attached:
		return "attached", append(n, b.Attached.GetSession(), uint64(b.Attached.GetCode()))
	case *wirepb.ServerMessage_Kept:
		return "kept", append(n, b.Kept.GetId(), uint64(b.Kept.GetHeldNs()), uint64(len(b.Kept.GetLeases())), uint64(len(b.Kept.GetGone())))
	case *wirepb.ServerMessage_Reply:
		r := b.Reply.GetResult()
		return "reply", append(n, b.Reply.GetSession(), r.GetNumber(), uint64(r.GetCode()), r.GetRevision())
	case *wirepb.ServerMessage_Read:
		return "read reply", append(n, b.Read.GetId(), uint64(b.Read.GetCode()), b.Read.GetRevision())
	case *wirepb.ServerMessage_Watch:
		return "watch update", append(n, b.Watch.GetId(), b.Watch.GetRevision(), uint64(len(b.Watch.GetItems())))
	case *wirepb.ServerMessage_Event:
		return "event", append(n, b.Event.GetSession(), b.Event.GetEvent().GetNumber(), uint64(b.Event.GetEvent().GetCode()))
	case *wirepb.ServerMessage_Leaving:
		return "leaving", n
	case *wirepb.ServerMessage_Error:
		return "error", append(n, uint64(b.Error.GetCode()), b.Error.GetId(), b.Error.GetSession(), b.Error.GetNumber())
	}
	return "other", nil
}

func tellDown(m *wirepb.ServerMessage) string {
	switch b := m.Body.(type) {
	case *wirepb.ServerMessage_Hello:
		return fmt.Sprintf("hello reply: master %v, knows %q", b.Hello.GetMaster(), b.Hello.GetMasterName())
	case *wirepb.ServerMessage_Opened:
		return fmt.Sprintf("opened session %s, held %dus", short(b.Opened.GetSession()), b.Opened.GetHeldNs()/microsecond)
	case *wirepb.ServerMessage_Attached:
		return fmt.Sprintf("attached session %s: %d", short(b.Attached.GetSession()), b.Attached.GetCode())
	case *wirepb.ServerMessage_Kept:
		return fmt.Sprintf("kept %d: %d leases, %d gone, held %dus", b.Kept.GetId(), len(b.Kept.GetLeases()), len(b.Kept.GetGone()), b.Kept.GetHeldNs()/microsecond)
	case *wirepb.ServerMessage_Reply:
		return "reply " + tellResult(b.Reply.GetResult())
	case *wirepb.ServerMessage_Event:
		e := b.Event.GetEvent()
		return fmt.Sprintf("event %d: %s ticket %d of %s", e.GetNumber(), codeName(e.GetCode()), e.GetTicket(), e.GetPath())
	case *wirepb.ServerMessage_Error:
		return fmt.Sprintf("error %d (%s)", b.Error.GetCode(), b.Error.GetText())
	}
	name, numbers := describeDown(nil, m)
	return fmt.Sprintf("%s %v", name, numbers)
}

func codeName(c storepb.Code) string { return storepb.Code_name[int32(c)] }

func tellCommand(m *storepb.Command) string {
	s := fmt.Sprintf("%s#%d ", short(m.GetSession()), m.GetNumber())
	switch op := m.Op.(type) {
	case *storepb.Command_Put:
		return s + fmt.Sprintf("put %s token %d if %d", op.Put.GetPath(), tokenOf(op.Put.GetData()), generationOf(op.Put))
	case *storepb.Command_Create:
		return s + fmt.Sprintf("create %s token %d", op.Create.GetPath(), tokenOf(op.Create.GetData()))
	case *storepb.Command_Delete:
		return s + "delete " + op.Delete.GetPath()
	case *storepb.Command_Acquire:
		a := op.Acquire
		return s + fmt.Sprintf("acquire %s %s wait %d delay %d", a.GetPath(), storepb.LockMode_name[int32(a.GetMode())], a.GetWaitMs(), a.GetLockDelayMs())
	case *storepb.Command_Release:
		return s + fmt.Sprintf("release ticket %d of %s", op.Release.GetTicket(), op.Release.GetPath())
	case *storepb.Command_ExpireSession:
		return s + "expire session " + short(op.ExpireSession.GetSession())
	case *storepb.Command_Timers:
		return s + fmt.Sprintf("%d timers", len(op.Timers.GetDue()))
	}
	return s + strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", m.Op), "*pb.Command_"))
}

func tellResult(r *storepb.Result) string {
	s := fmt.Sprintf("%s #%d %s", codeName(r.GetCode()), r.GetNumber(), short(r.GetRevision()))
	if r.GetPath() != "" {
		s += " " + r.GetPath()
	}
	if g := r.GetGrant(); g != nil {
		s += fmt.Sprintf(" fence %s ticket %d", short(g.GetFence()), g.GetTicket())
	}
	if r.GetDetail() != "" {
		s += " (" + r.GetDetail() + ")"
	}
	return s
}

var changeNames = [...]string{"none", "created", "content", "deleted", "lock", "opened", "closed", "event", "epoch"}

func tellChanges(changes []store.Change) string {
	var s strings.Builder
	for i := range changes {
		c := &changes[i]
		fmt.Fprintf(&s, "; %s", changeNames[c.Kind])
		if c.Path != "" {
			fmt.Fprintf(&s, " %s", c.Path)
		}
		if c.Session != 0 {
			fmt.Fprintf(&s, " %s", short(c.Session))
		}
		if c.Event != nil {
			fmt.Fprintf(&s, " %s ticket %d", codeName(c.Event.GetCode()), c.Event.GetTicket())
		}
	}
	return s.String()
}

func tellItems(m *wirepb.WatchUpdate) string {
	var s strings.Builder
	if m.GetState() {
		s.WriteString("state ")
	}
	for _, i := range m.GetItems() {
		if i.GetDeleted() {
			fmt.Fprintf(&s, "%s deleted; ", i.GetPath())
		} else {
			fmt.Fprintf(&s, "%s token %d generation %d; ", i.GetPath(), tokenOf(i.GetData()), i.GetStat().GetContentGeneration())
		}
	}
	return s.String()
}

func tellAnswer(d *machine.Done) string {
	switch {
	case d.Result != nil:
		return tellResult(d.Result)
	case d.Read != nil:
		return fmt.Sprintf("%s at %s, token %d, generation %d", codeName(d.Read.GetCode()), short(d.Read.GetRevision()),
			tokenOf(d.Read.GetNode().GetData()), d.Read.GetNode().GetStat().GetContentGeneration())
	}
	return fmt.Sprintf("error: %v", d.Err)
}

func (w *World) machineName(i int) string {
	if i < len(w.replicas) {
		return w.replicas[i].name
	}
	if i -= len(w.replicas); i < len(w.clients) {
		return w.clients[i].name
	}
	if i -= len(w.clients); i < len(w.strangers) {
		return w.strangers[i].p.name
	}
	return w.raws[i-len(w.strangers)].c.name
}

func (w *World) tellCuts(cuts [][2]int) string {
	var s strings.Builder
	for i, c := range cuts {
		if i == 12 {
			s.WriteString(" ...")
			break
		}
		fmt.Fprintf(&s, " %s>%s", w.machineName(c[0]), w.machineName(c[1]))
	}
	return s.String()
}
