package sim

import (
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/client/machine"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// answer holds what a client was told against the log, and thereby shows that
// answers are linearizable: the log's order is the order, a call's place in it
// lies between its start and its end in true time, and what it was told is what
// the log made of it. (The checker in linearizable.go finds the same out
// without the log.)
func (h *history) answer(k *call) {
	h.calls = append(h.calls, k)
	h.w.counts.answers++
	switch {
	case k.result != nil:
		h.answerResult(k)
	case k.read != nil:
		h.answerRead(k)
	default:
		h.w.counts.unknown++
	}
}

// unanswered takes a call whose program has gone before the answer came.
func (h *history) unanswered(k *call) {
	k.session = k.c.session
	h.calls = append(h.calls, k)
}

func (h *history) answerResult(k *call) {
	w, r := h.w, k.result
	switch r.GetCode() {
	case storepb.Code_UNKNOWN_SESSION, storepb.Code_VOIDED, storepb.Code_FORGOTTEN, storepb.Code_RETRY:
		return
	}
	switch k.kind {
	case opLock, opShared, opTry, opRelease:
		h.checkWaited(k)
		h.know(r.GetRevision())
		return // the answer may be an event's; locks have checks of their own
	}
	did := h.requests[request{k.session, r.GetNumber()}]
	if did == nil {
		w.fail("durability", "%s was told %s for call %d, but request %d of session %s is not in the log",
			k.c.name, tellResult(r), k.id, r.GetNumber(), short(k.session))
		return
	}
	if did.at < k.start || did.token != tokenOfCall(k) {
		w.fail("exactly-once", "%s was told for call %d (token %d) what belongs to another request (token %d)",
			k.c.name, k.id, k.token, did.token)
		return
	}
	if made := did.result(); made.GetCode() != r.GetCode() || made.GetRevision() != r.GetRevision() || !proto.Equal(made.GetStat(), r.GetStat()) {
		w.fail("answers", "%s was told %s for call %d, but the log made of it %s", k.c.name, tellResult(r), k.id, tellResult(made))
		return
	}
	if r.GetRevision() < k.floor {
		w.fail("linearizability", "call %d of %s has revision %d, but revision %d had been answered before it began",
			k.id, k.c.name, r.GetRevision(), k.floor)
	}
	h.know(r.GetRevision())
}

func tokenOfCall(k *call) uint64 {
	if k.kind == opDelete || k.kind == opMulti {
		return 0
	}
	return k.token
}

func (h *history) know(revision uint64) { h.answered = max(h.answered, revision) }

func (h *history) answerRead(k *call) {
	w, r := h.w, k.read
	if r.GetCode() != storepb.Code_OK && r.GetCode() != storepb.Code_NOT_FOUND {
		h.judgeNoRead(k)
		return
	}
	if r.GetRevision() > h.revisionNow() {
		w.fail("answers", "call %d of %s read revision %d, which the cell has not reached", k.id, k.c.name, r.GetRevision())
		return
	}
	if k.kind == opCheck {
		h.know(r.GetRevision())
		h.judgeSequencer(k)
		return
	}
	v := h.versionAt(k.path, r.GetRevision())
	node := r.GetNode()
	exists := r.GetCode() == storepb.Code_OK
	if exists != v.exists || (exists && (tokenOf(node.GetData()) != v.token || node.GetStat().GetContentGeneration() != v.generation ||
		node.GetStat().GetInstance() != v.instance)) {
		w.fail("answers", "call %d of %s read %s at revision %d as (%v, token %d, generation %d); it was (%v, token %d, generation %d)",
			k.id, k.c.name, k.path, r.GetRevision(), exists, tokenOf(node.GetData()), node.GetStat().GetContentGeneration(),
			v.exists, v.token, v.generation)
		return
	}
	if k.kind == opStale {
		return
	}
	if r.GetRevision() < k.floor {
		w.fail("linearizability", "call %d of %s read revision %d, but revision %d had been answered before it began",
			k.id, k.c.name, r.GetRevision(), k.floor)
	}
	h.know(r.GetRevision())
}

// revisionNow is the highest revision that any replica may have: commands are
// taken down before their entry is complete.
func (h *history) revisionNow() uint64 { return max(h.revision, h.highest) }

// checkSeen holds what a watch shows against the log.
func (h *history) checkSeen(a *watch, path string, n seen) {
	if len(path) < 3 || path[1] != 'r' {
		return
	}
	v := h.versionAt(path, n.modified)
	if !v.exists || v.revision != n.modified || v.generation != n.generation || v.token != n.token {
		h.w.fail("watches", "%s: watch %d shows %s with generation %d, token %d, modified at %d; the log has generation %d, token %d, at %d",
			a.c.name, a.id, path, n.generation, n.token, n.modified, v.generation, v.token, v.revision)
	}
}

// checkOutcomes: what a client was told was not done was not done. An error
// that leaves it open is ErrUnknownOutcome.
func (h *history) checkOutcomes() {
	for _, k := range h.calls {
		switch k.kind {
		case opPut, opSwap, opCreate, opSequential, opEphemeral:
			if !mayHaveHappened(k) && k.result == nil && h.written[k.token] {
				h.w.fail("exactly-once", "%s was told that its call %d (token %d) was not done (%v), but it was", k.c.name, k.id, k.token, k.failure)
				return
			}
		}
	}
}

// mayHaveHappened tells of a call with an error or without an answer: whether
// it may have been executed.
func mayHaveHappened(k *call) bool {
	if k.end == 0 {
		return true
	}
	return k.failure != nil && errors.Is(k.failure, machine.ErrUnknownOutcome)
}
