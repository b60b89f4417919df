package paxos

import "time"

// readRound is a heartbeat round by which reads prove that this replica still
// led when they arrived.
type readRound struct {
	beat  uint64
	since time.Duration
	ids   []uint64
}

// confirmRead queues a read. It joins the next round, never one that is under
// way: that one may have begun before the read arrived.
func (r *Replica) confirmRead(id uint64) {
	if r.lead == nil || r.lead.retiring != nil {
		return // Effects.Role has told, or will tell, that leadership is gone
	}
	r.lead.reads = append(r.lead.reads, id)
}

// startReadRound begins a round for all reads that wait, if none is under way.
func (r *Replica) startReadRound() {
	l := r.lead
	if l.round != nil || len(l.reads) == 0 || r.role != Leader {
		return
	}
	r.heartbeat()
	l.round = &readRound{beat: l.beat, since: r.now, ids: l.reads}
	l.reads = nil
	r.readStep()
}

// readStep ends the round when a majority, this replica included, has answered
// it: none of them had promised a higher ballot at an instant after since, so
// no other leader had anything chosen by then. The slot is the chosen index
// now, which covers all that was chosen when the read arrived since every slot
// found open in phase 1 is chosen (role Leader).
func (r *Replica) readStep() {
	l := r.lead
	for l.round != nil {
		votes := 0
		if r.isVoter() {
			votes++
		}
		for _, p := range l.peers {
			if p.voter && p.beat >= l.round.beat {
				votes++
			}
		}
		if votes < r.quorum() {
			return
		}
		for _, id := range l.round.ids {
			r.out.Confirmed = append(r.out.Confirmed, Confirm{ID: id, Since: l.round.since, Slot: r.chosen})
		}
		l.round = nil
	}
}
