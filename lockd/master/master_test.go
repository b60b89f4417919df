package master

import (
	"testing"

	storepb "github.com/seed70370324/lockd/store/pb"
	"pgregory.net/rapid"
)

// The header is what decoding the whole command gives.
func TestHeaderIsTheCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &storepb.Command{
			Session: rapid.Uint64().Draw(t, "session"), Number: rapid.Uint64().Draw(t, "number"),
			Epoch: rapid.Uint64().Draw(t, "epoch"), AckedEvent: rapid.Uint64().Draw(t, "acked"),
			CellTime: rapid.Int64().Draw(t, "cell time"), WallMs: rapid.Int64().Draw(t, "wall"),
		}
		nonce := rapid.SliceOfN(rapid.Byte(), 8, 64).Draw(t, "nonce")
		expire := rapid.Uint64().Draw(t, "expire")
		want := rapid.SampledFrom([]int{0, int(opOpen), int(opExpire), int(opTimers), int(opBreak), int(opAcquire)}).Draw(t, "op")
		switch want {
		case int(opOpen):
			c.Op = &storepb.Command_OpenSession{OpenSession: &storepb.OpenSession{Nonce: nonce, LeaseMs: 7}}
		case int(opExpire):
			c.Op = &storepb.Command_ExpireSession{ExpireSession: &storepb.ExpireSession{Session: expire, LastChange: 9}}
		case int(opTimers):
			c.Op = &storepb.Command_Timers{Timers: &storepb.Timers{}}
		case int(opBreak):
			c.Op = &storepb.Command_BreakLock{BreakLock: &storepb.Break{Path: "/a"}}
		case int(opAcquire):
			c.Op = &storepb.Command_Acquire{Acquire: &storepb.Acquire{Path: "/a"}}
		}
		h := parseHeader(encode(c))
		if h.session != c.Session || h.number != c.Number || h.epoch != c.Epoch || int(h.op) != want {
			t.Fatalf("header %+v of %v", h, c)
		}
		if _, got := field(h.body, openNonce); want == int(opOpen) && string(got) != string(nonce) {
			t.Fatalf("nonce %x, want %x", got, nonce)
		}
		if got, _ := field(h.body, expireSession); want == int(opExpire) && got != expire {
			t.Fatalf("session %d, want %d", got, expire)
		}
	})
}
