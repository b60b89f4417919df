package client

import (
	"context"
	"fmt"
	"iter"

	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// Reader reads and watches what a cell holds. It has no session: it owns
// nothing, and the service remembers nothing of it. All its reads are
// linearizable: they see every write that was acknowledged before they began.
//
// A read is repeated over reconnects until its context ends or, without a
// master for the grace period (WithGrace), fails with ErrUnavailable.
type Reader struct {
	d *driver
}

// Connect looks for the cell's master among the addresses and makes a Reader.
// It fails with ErrUnavailable, which names the addresses tried and why each
// failed, if there is none within WithOpenTimeout, and with ctx. Options about
// leases have no meaning here.
func Connect(ctx context.Context, addresses []string, options ...Option) (*Reader, error) {
	d, err := open(ctx, "connect", addresses, options, true)
	if err != nil {
		return nil, err
	}
	return &Reader{d: d}, nil
}

// Close ends the connection and every call under way, with ErrClosed. It waits
// until nothing of the Reader runs any more, and may be called several times.
func (r *Reader) Close() error { return r.d.close() }

// Cell is the name of the cell that the connection was made to.
func (r *Reader) Cell() string { return r.d.cellName() }

// CellIdentity returns the identity of that cell, for WithCellIdentity; 0 if the
// service names none.
func (r *Reader) CellIdentity() uint64 { return r.d.cell.Load().identity }

// Get reads a node. It fails with ErrNotFound if there is none.
func (r *Reader) Get(ctx context.Context, path string) (Node, error) {
	return r.node(ctx, "get", path, false)
}

// Stat reads what the service knows about a node, without its content.
func (r *Reader) Stat(ctx context.Context, path string) (Stat, error) {
	n, err := r.node(ctx, "stat", path, true)
	return n.Stat, err
}

func (r *Reader) node(ctx context.Context, op, path string, noData bool) (Node, error) {
	path, err := r.d.path(op, path)
	if err != nil {
		return Node{}, err
	}
	q := &struct { // in one piece
		read pb.Read
		op   pb.Read_Node
		node pb.ReadNode
	}{}
	q.node.Path, q.node.NoData = path, noData
	q.op.Node = &q.node
	q.read.Op = &q.op
	reply, err := r.d.read(ctx, op, path, &q.read)
	if err != nil {
		return Node{}, err
	}
	n := reply.GetNode()
	if n == nil {
		return Node{}, badReply(op, path)
	}
	return Node{Path: path, Data: content(n.Data, n.HasData), Stat: statOf(n.Stat)}, nil
}

// content is nil for null content and never nil otherwise.
func content(data []byte, has bool) []byte {
	switch {
	case !has:
		return nil
	case data == nil:
		return []byte{}
	default:
		return data
	}
}

func badReply(op, path string) error {
	return &Error{Op: op, Path: path, Err: fmt.Errorf("%w: the service's answer lacks what was asked for", ErrUnavailable)}
}

// List yields the children of a node in the order of their names. Large
// listings are read in pages, each of them current when it was read. After an
// error, which is yielded, nothing follows.
func (r *Reader) List(ctx context.Context, path string) iter.Seq2[Child, error] {
	return func(yield func(Child, error) bool) {
		path, err := r.d.path("list", path)
		if err != nil {
			yield(Child{}, err)
			return
		}
		after := ""
		for {
			reply, err := r.d.read(ctx, "list", path, &pb.Read{Op: &pb.Read_Children{
				Children: &pb.ReadChildren{Path: path, After: after, Stats: true}}})
			if err != nil {
				yield(Child{}, err)
				return
			}
			page := reply.GetChildren()
			for _, c := range page.GetChildren() {
				if !yield(Child{Name: c.GetName(), Stat: statOf(c.GetStat())}, nil) {
					return
				}
				after = c.GetName()
			}
			if !page.GetMore() || len(page.GetChildren()) == 0 {
				return
			}
		}
	}
}

// Locks yields the locks at and below prefix ("/" for all) that are held,
// waited for, or in their lock-delay, in the order of their paths.
func (r *Reader) Locks(ctx context.Context, prefix string) iter.Seq2[LockInfo, error] {
	return func(yield func(LockInfo, error) bool) {
		path, err := r.d.path("locks", prefix)
		if err != nil {
			yield(LockInfo{}, err)
			return
		}
		after := ""
		for {
			reply, err := r.d.read(ctx, "locks", path, &pb.Read{Op: &pb.Read_Locks{
				Locks: &pb.ReadLocks{Path: path, Subtree: true, After: after}}})
			if err != nil {
				yield(LockInfo{}, err)
				return
			}
			page := reply.GetLocks()
			for _, l := range page.GetLocks() {
				if !yield(lockInfo(l, serviceTime{page.GetCellTime(), page.GetWallMs()}), nil) {
					return
				}
				after = l.GetPath()
			}
			if !page.GetMore() || len(page.GetLocks()) == 0 {
				return
			}
		}
	}
}

// Why tells who holds the lock of path and who waits for it. A lock that
// nobody holds or waits for has neither; that is no error.
func (r *Reader) Why(ctx context.Context, path string) (LockInfo, error) {
	path, err := r.d.path("why", path)
	if err != nil {
		return LockInfo{}, err
	}
	reply, err := r.d.read(ctx, "why", path, &pb.Read{Op: &pb.Read_Locks{Locks: &pb.ReadLocks{Path: path}}})
	if err != nil {
		return LockInfo{}, err
	}
	for _, l := range reply.GetLocks().GetLocks() {
		if l.GetPath() == path {
			return lockInfo(l, serviceTime{reply.GetLocks().GetCellTime(), reply.GetLocks().GetWallMs()}), nil
		}
	}
	return LockInfo{Path: path}, nil
}

// Sessions yields the cell's sessions in the order of their numbers.
func (r *Reader) Sessions(ctx context.Context) iter.Seq2[SessionInfo, error] {
	return func(yield func(SessionInfo, error) bool) {
		after := uint64(0)
		for {
			reply, err := r.d.read(ctx, "sessions", "", &pb.Read{Op: &pb.Read_Sessions{
				Sessions: &pb.ReadSessions{After: after}}})
			if err != nil {
				yield(SessionInfo{}, err)
				return
			}
			page := reply.GetSessions()
			for _, s := range page.GetSessions() {
				if !yield(sessionInfo(s), nil) {
					return
				}
				after = s.GetId()
			}
			if !page.GetMore() || len(page.GetSessions()) == 0 {
				return
			}
		}
	}
}

// Status is how the master sees itself and the cell. The function Status asks
// any replica.
func (r *Reader) Status(ctx context.Context) (ReplicaStatus, error) {
	reply, err := r.d.read(ctx, "status", "", &pb.Read{Op: &pb.Read_Status{Status: &pb.ReadStatus{}}})
	if err != nil {
		return ReplicaStatus{}, err
	}
	if reply.GetStatus() == nil {
		return ReplicaStatus{}, badReply("status", "")
	}
	return replicaStatus(reply.GetStatus()), nil
}

// Check asks whether a sequencer (Lock.Sequencer) is valid: whether the lock
// is still held by the one it was made for. If it is not, the error is ErrLost
// with the reason. The answer tells of the moment at which it was given; a
// store that compares fences needs no call and is safer.
func (r *Reader) Check(ctx context.Context, sequencer string) error {
	if sequencer == "" || len(sequencer) > maxSequencer {
		return &Error{Op: "check", Err: ErrInvalid, Detail: fmt.Sprintf("a sequencer has 1 to %d bytes", maxSequencer)}
	}
	if err := checkText("sequencer", sequencer); err != nil {
		return &Error{Op: "check", Err: ErrInvalid, Detail: err.Error()}
	}
	reply, err := r.d.read(ctx, "check", "", &pb.Read{Op: &pb.Read_Check{Check: &pb.CheckSequencer{Sequencer: sequencer}}})
	if err != nil {
		return err
	}
	c := reply.GetCheck()
	if c == nil {
		return badReply("check", "")
	}
	if !c.GetValid() {
		return &Error{Op: "check", Err: ErrLost, Detail: c.GetReason()}
	}
	return nil
}

// maxSequencer is far above what a sequencer with the longest path needs.
const maxSequencer = 2048

// readError turns a refused read into an error; nil if it was answered.
func readError(op, path string, r *pb.ReadReply) error {
	if r.GetCode() == storepb.Code_OK {
		return nil
	}
	if err := codeError(r.GetCode()); err != nil {
		return &Error{Op: op, Path: path, Err: err, Detail: r.GetDetail()}
	}
	return nil
}
