package sim

import (
	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// crowd lets a session wait for one lock hundreds of times, all asked for in one
// segment: more than a message about the lock can name, and, since no answer has
// come by then that it could acknowledge, about as many bytes of results as a
// session may have kept.
func (r *raw) crowd(x *rawSession) {
	s := r.s
	path := pick(s, rawPaths[:4])
	for n := s.between(80, 600); n > 0; n-- {
		m := &storepb.Command{Op: &storepb.Command_Acquire{Acquire: &storepb.Acquire{Path: path, Create: true,
			Mode: storepb.LockMode_EXCLUSIVE, WaitMs: uint64(s.between(500, 3000))}}}
		if n%16 == 0 {
			m = &storepb.Command{Op: &storepb.Command_Multi{Multi: r.multi(x, s.below(4))}}
		}
		r.request(x, x.next, m)
	}
	for _, subtree := range []bool{false, true} {
		m := &wirepb.Read{Id: r.id(), Op: &wirepb.Read_Locks{Locks: &wirepb.ReadLocks{Path: path, Subtree: subtree}}}
		r.send(&wirepb.ClientMessage{Body: &wirepb.ClientMessage_Read{Read: m}}, &asked{kind: "read", id: m.Id, read: m})
	}
}
