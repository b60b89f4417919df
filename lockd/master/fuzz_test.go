package master

import (
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/internal/nodepath"
	"github.com/seed70370324/lockd/store"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// FuzzHeader: the log may hold what a later version made, or anything. Of a
// command that can be decoded the header says what the whole command says.
func FuzzHeader(f *testing.F) {
	for name, c := range map[string]*storepb.Command{
		"clock":   {Session: 1, Number: 2, Epoch: 3, Op: &storepb.Command_Clock{Clock: &storepb.Clock{}}},
		"open":    {Op: &storepb.Command_OpenSession{OpenSession: &storepb.OpenSession{Nonce: []byte("0123456789abcdef"), LeaseMs: 12000}}},
		"expire":  {Epoch: 4, CellTime: 99, Op: &storepb.Command_ExpireSession{ExpireSession: &storepb.ExpireSession{Session: 7, LastChange: 5}}},
		"acquire": {Session: 1 << 40, Number: 9, WallMs: -1, Op: &storepb.Command_Acquire{Acquire: &storepb.Acquire{Path: "/a"}}},
	} {
		b, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		fuzzing.Seed(f, name, b)
	}
	fuzzing.Seed(f, "cut-short", []byte{0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		h := parseHeader(b)
		_, nonce := field(h.body, openNonce)
		session, _ := field(h.body, expireSession)
		c := new(storepb.Command)
		if proto.Unmarshal(b, c) != nil {
			return
		}
		// Only what a master encodes reads alike: each field once.
		if b, err := proto.Marshal(c); err == nil {
			h = parseHeader(b)
			_, nonce = field(h.body, openNonce)
			session, _ = field(h.body, expireSession)
		}
		if h.session != c.Session || h.number != c.Number || h.epoch != c.Epoch {
			t.Fatalf("header %+v of %v", h, c)
		}
		if want := c.GetOpenSession().GetNonce(); h.op == opOpen && string(nonce) != string(want) {
			t.Fatalf("nonce %x of %v", nonce, c)
		}
		if want := c.GetExpireSession().GetSession(); h.op == opExpire && session != want {
			t.Fatalf("session %d of %v", session, c)
		}
		if (h.op == opOpen) != (c.GetOpenSession() != nil) && len(c.ProtoReflect().GetUnknown()) == 0 {
			t.Fatalf("op %d of %v", h.op, c)
		}
	})
}

// FuzzPathsAgree: the client's word on what is a path is the store's.
func FuzzPathsAgree(f *testing.F) {
	for name, p := range map[string]string{"root": "/", "two": "/a/b", "dots": "/a/../b", "slash": "/a/", "control": "/a\u0085", "bytes": "/\xc3\x28", "accent": "/\u00e9"} {
		fuzzing.Seed(f, name, p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if c, s := nodepath.Check(p), store.CheckPath(p); (c == nil) != (s == nil) {
			t.Fatalf("%q: the client says %v, the store %v", p, c, s)
		}
	})
}
