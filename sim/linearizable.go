package sim

import (
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// The history of each register is given to porcupine, which knows nothing of
// the log: it looks for any order of the calls that a plain register would
// explain. A search that takes too long proves nothing and counts as passed;
// the checks against the log have no such limit.

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
	byPath := map[string][]porcupine.Operation{}
	for i, k := range h.calls {
		if !strings.HasPrefix(k.path, "/r/") && !strings.HasPrefix(k.path, "/c/") {
			continue
		}
		if op, ok := operation(i, k); ok {
			byPath[k.path] = append(byPath[k.path], op)
		}
	}
	paths := make([]string, 0, len(byPath))
	for p := range byPath {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	for _, p := range paths {
		switch porcupine.CheckOperationsTimeout(registerModel, byPath[p], limit) {
		case porcupine.Illegal:
			h.w.fail("linearizability", "no order explains the calls on %s", p)
			return
		case porcupine.Unknown:
			h.w.undecided++
		}
	}
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
		if k.read == nil || k.end == 0 {
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
