package sim

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// For the history of each register there must be an order of the calls that a
// plain register explains and that true time allows. The order of the log is
// tried first: it is one, or it is not, which takes one pass. Only if it is not,
// porcupine, which knows nothing of the log, looks for any other. A search that
// takes too long proves nothing and counts as passed; the checks against the log
// have no such limit.

type registerInput struct {
	kind  opKind
	token uint64
	ifGen uint64
}

type registerOutput struct {
	unknown    bool // no answer, or none that tells
	code       storepb.Code
	exists     bool
	token      uint64
	generation uint64
}

type registerState struct {
	exists            bool
	token, generation uint64
}

var registerModel = porcupine.Model{
	Init: func() any { return registerState{} },
	Step: func(state, input, output any) (bool, any) {
		before := state.(registerState)
		ok, after := registerStep(before, input.(registerInput), output.(registerOutput))
		if !ok || after == before {
			return ok, state // as it is: to make a new one costs memory each time
		}
		return ok, after
	},
}

// registerStep is a register with generations, in so many words.
func registerStep(s registerState, in registerInput, out registerOutput) (bool, registerState) {
	next, code := s, storepb.Code_OK
	written := registerState{exists: true, token: in.token, generation: s.generation + 1}
	switch in.kind {
	case opGet:
		ok := out.unknown || (out.exists == s.exists && (!s.exists || (out.token == s.token && out.generation == s.generation)))
		return ok, s
	case opPut:
		next = written
	case opSwap, opCount:
		switch {
		case in.ifGen == s.generation:
			next = written
		case !s.exists:
			code = storepb.Code_NOT_FOUND
		default:
			code = storepb.Code_CONFLICT
		}
	case opCreate:
		if s.exists {
			code = storepb.Code_EXISTS
		} else {
			next = written
		}
	case opDelete:
		if s.exists {
			next = registerState{}
		} else {
			code = storepb.Code_NOT_FOUND
		}
	}
	if out.unknown {
		return true, next
	}
	same := code == out.code || (in.kind == opSwap || in.kind == opCount) && code != storepb.Code_OK &&
		(out.code == storepb.Code_CONFLICT || out.code == storepb.Code_NOT_FOUND || out.code == storepb.Code_EXISTS)
	return same, next
}

// checkLinearizable searches an order for each path's calls.
func (h *history) checkLinearizable(limit time.Duration) {
	byPath := map[string][]placedOperation{}
	for i, k := range h.calls {
		if !strings.HasPrefix(k.path, "/r/") && !strings.HasPrefix(k.path, "/c/") {
			continue
		}
		if op, ok := operation(i, k); ok {
			byPath[k.path] = append(byPath[k.path], placedOperation{op, h.placeOf(k)})
		}
	}
	paths := make([]string, 0, len(byPath))
	for p := range byPath {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	for _, p := range paths {
		h.placeDeletes(p, byPath[p])
		if explains(byPath[p]) {
			continue
		}
		ops := make([]porcupine.Operation, 0, len(byPath[p]))
		for i := range byPath[p] {
			ops = append(ops, byPath[p][i].Operation)
		}
		switch porcupine.CheckOperationsTimeout(registerModel, ops, limit) {
		case porcupine.Illegal:
			h.w.fail("linearizability", "no order explains the calls on %s", p)
			return
		case porcupine.Unknown:
			h.w.undecided++
		}
	}
}

// placedOperation is a call with its place in the order that is tried first.
type placedOperation struct {
	porcupine.Operation
	place uint64 // a revision
}

// notPlaced is the place of calls that nobody saw to have done anything: at the
// end they explain themselves.
const notPlaced = ^uint64(0)

// placeOf proposes a place for a call. A wrong one does no harm but that
// porcupine is asked.
func (h *history) placeOf(k *call) uint64 {
	switch {
	case k.read != nil:
		return k.read.GetRevision()
	case k.end != 0 && k.result != nil:
		return k.result.GetRevision()
	}
	for _, v := range h.nodes[k.path] {
		if v.exists && v.token == k.token && k.token != 0 {
			return v.revision
		}
	}
	return notPlaced
}

// placeDeletes proposes places for deletes of which nobody knows the outcome:
// where the node was deleted and no answer tells by which call.
func (h *history) placeDeletes(path string, ops []placedOperation) {
	taken := map[uint64]bool{}
	for i := range ops {
		if ops[i].Input.(registerInput).kind == opDelete {
			taken[ops[i].place] = true
		}
	}
	for _, v := range h.nodes[path] {
		if v.exists || taken[v.revision] {
			continue
		}
		for i := range ops {
			if ops[i].Input.(registerInput).kind == opDelete && ops[i].place == notPlaced {
				ops[i].place = v.revision
				break
			}
		}
	}
}

// explains reports whether the operations, in the order of their places, are
// what a register does, and none had ended before one ahead of it began.
func explains(ops []placedOperation) bool {
	slices.SortStableFunc(ops, func(a, b placedOperation) int {
		return cmp.Or(cmp.Compare(a.place, b.place), cmp.Compare(rankOf(&a), rankOf(&b)), cmp.Compare(a.Call, b.Call))
	})
	ended := int64(math.MaxInt64) // the first end of those behind
	for i := len(ops) - 1; i >= 0; i-- {
		if ended <= ops[i].Call {
			return false
		}
		ended = min(ended, ops[i].Return)
	}
	state := registerState{}
	for i := range ops {
		var ok bool
		if ok, state = registerStep(state, ops[i].Input.(registerInput), ops[i].Output.(registerOutput)); !ok {
			return false
		}
	}
	return true
}

// rankOf puts what has made a revision ahead of what has only seen it.
func rankOf(o *placedOperation) int {
	if out := o.Output.(registerOutput); o.Input.(registerInput).kind == opGet || out.code != storepb.Code_OK {
		return 1
	}
	return 0
}

// operation turns a call into porcupine's form. Calls that certainly did
// nothing, and reads without an answer, say nothing.
func operation(i int, k *call) (porcupine.Operation, bool) {
	op := porcupine.Operation{ClientId: i, Call: k.start, Return: k.end}
	in := registerInput{kind: k.kind, token: k.token, ifGen: k.ifGen}
	if k.kind == opCount && k.token == 0 {
		in.kind = opGet // the read before
	}
	if in.kind == opGet {
		if k.read == nil || k.end == 0 || (k.read.GetCode() != storepb.Code_OK && k.read.GetCode() != storepb.Code_NOT_FOUND) {
			return op, false
		}
		n := k.read.GetNode()
		op.Input = in
		op.Output = registerOutput{exists: k.read.GetCode() == storepb.Code_OK, token: tokenOf(n.GetData()), generation: n.GetStat().GetContentGeneration()}
		return op, true
	}
	switch in.kind {
	case opPut, opSwap, opCount, opCreate, opDelete:
	default:
		return op, false
	}
	out := registerOutput{unknown: k.end == 0 || k.result == nil}
	if out.unknown {
		if !mayHaveHappened(k) {
			return op, false
		}
		op.Return = int64(1) << 62
	} else {
		out.code = k.result.GetCode()
	}
	op.Input, op.Output = in, out
	return op, true
}
