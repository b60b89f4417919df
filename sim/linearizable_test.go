package sim

import (
	"testing"

	"github.com/anishathalye/porcupine"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// TestOrderOfTheLog: the order that is tried first must be one that a register
// explains, and that true time allows; else porcupine is to decide.
func TestOrderOfTheLog(t *testing.T) {
	put := func(from, to int64, token, place uint64) placedOperation {
		return placedOperation{porcupine.Operation{Call: from, Return: to,
			Input: registerInput{kind: opPut, token: token}, Output: registerOutput{code: storepb.Code_OK}}, place}
	}
	get := func(from, to int64, token, generation, place uint64) placedOperation {
		return placedOperation{porcupine.Operation{Call: from, Return: to,
			Input: registerInput{kind: opGet}, Output: registerOutput{exists: true, token: token, generation: generation}}, place}
	}
	lost := put(6, int64(1)<<62, 9, notPlaced)
	lost.Output = registerOutput{unknown: true}
	for _, c := range []struct {
		name string
		ops  []placedOperation
		want bool
	}{
		{"one after the other", []placedOperation{get(30, 40, 2, 2, 7), put(1, 5, 1, 3), put(10, 20, 2, 7), lost}, true},
		{"at the same time, the other way round", []placedOperation{put(1, 20, 1, 7), put(10, 15, 2, 3), get(30, 40, 1, 2, 7)}, true},
		{"a read of what is not there", []placedOperation{put(1, 5, 1, 3), get(10, 20, 2, 1, 3)}, false},
		{"a read of what was replaced before", []placedOperation{put(1, 5, 1, 3), put(10, 20, 2, 7), get(30, 40, 1, 1, 3)}, false},
		{"a read of what comes later", []placedOperation{get(1, 5, 1, 1, 3), put(10, 20, 1, 3)}, false},
		{"a lost write in a place that nobody saw", []placedOperation{put(1, 5, 1, 3), {lost.Operation, 4}, get(10, 20, 1, 1, 5)}, false},
	} {
		if got := explains(c.ops); got != c.want {
			t.Errorf("%s: explained %v", c.name, got)
		}
	}
}
