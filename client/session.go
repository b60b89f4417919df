package client

import (
	"context"
	"fmt"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// DataMax is the largest content of a node, in bytes. Contents up to 256 KiB
// are recommended.
const DataMax = 1 << 20

// Session is what a program holds in a cell: its locks and ephemeral nodes
// live as long as it does. Its writes are executed once each and in the order
// in which they were called, over reconnects and failovers.
//
// A call ends when its context does: with an error that wraps the context's
// and, if it may have been executed, ErrUnknownOutcome.
type Session struct {
	Reader
}

// Dial looks for the cell's master among the addresses and opens a session. If
// they belong to different cells, the one that more than half of those name that
// answer within a second is meant (else WithCellIdentity says which): the others
// are skipped, which the logger is warned of. It
// fails with ErrUnavailable, which names the addresses tried and why each
// failed, if there is none within WithOpenTimeout, and with ctx. After that ctx
// has no meaning for the session: Close ends it.
func Dial(ctx context.Context, addresses []string, options ...Option) (*Session, error) {
	d, err := open(ctx, "dial", addresses, options, false)
	if err != nil {
		return nil, err
	}
	return &Session{Reader: Reader{d: d}}, nil
}

// ID is the session's number in the cell, as Sessions shows it.
func (s *Session) ID() uint64 { return s.d.sessionID() }

// Close ends the session: its ephemeral nodes go, its waiting lock requests
// are withdrawn, its locks are freed. The contexts of locks that are held end
// now, and for a second at most Close waits for the work under them to end and
// to call Release. Locks that have not been released by then go on only after
// lease and lock-delay, since the work may still be going on. Calls under way
// end with ErrClosed.
//
// Close waits a few seconds at most. An error says that the service could not
// be told; then the session ends there when its lease has run out. Closing a
// session again does nothing.
func (s *Session) Close() error { return s.d.close() }

// Done is closed when the session has ended: by Close, or because it expired.
func (s *Session) Done() <-chan struct{} { return s.d.done }

// Err is nil while the session lives, then ErrExpired or ErrClosed with the
// reason.
func (s *Session) Err() error { return s.d.ended() }

// State of the session, as it is now.
func (s *Session) State() State { return s.d.currentState() }

// Put writes the whole content of a node, creating a permanent one if there is
// none (not with MustExist or a condition on the node itself). nil writes null
// content. Options: IfUnchanged and the other conditions, all of which must
// hold; IfAbsent, MustExist, HeldBy, WhileHeld, WithParents. It returns the
// node's new Stat.
func (s *Session) Put(ctx context.Context, path string, data []byte, options ...PutOption) (Stat, error) {
	path, err := s.d.path("put", path)
	if err != nil {
		return Stat{}, err
	}
	c := &struct { // in one piece
		command storepb.Command
		op      storepb.Command_Put
		put     putCall
	}{}
	if err := s.d.putOp("put", &c.put, path, data, options); err != nil {
		return Stat{}, err
	}
	c.op.Put = &c.put.op
	c.command.Op = &c.op
	r, err := s.d.call(ctx, "put", path, &c.command)
	return statOf(r.GetStat()), err
}

// putCall is a Put with its options, in one piece.
type putCall struct {
	op      storepb.Put
	options nodeOptions
}

// putOp fills in an empty Put.
func (d *driver) putOp(op string, c *putCall, path string, data []byte, options []PutOption) error {
	if err := checkData(op, path, data); err != nil {
		return err
	}
	o := &c.options
	for _, option := range options {
		option.nodeOption(o)
	}
	if err := o.finish(d, op, path, o.seen.has(optIfAbsent), false); err != nil {
		return err
	}
	put := &c.op
	put.Path, put.Data, put.HasData, put.Conditions = path, data, data != nil, o.conditions
	put.Create = !o.seen.has(optMustExist) && o.seen&aboutNode == 0
	put.Parents = o.seen.has(optWithParents)
	return nil
}

func checkData(op, path string, data []byte) error {
	if len(data) > DataMax {
		return &Error{Op: op, Path: path, Err: ErrTooLarge,
			Detail: fmt.Sprintf("%d bytes, the limit is %d", len(data), DataMax)}
	}
	return nil
}

// Create makes a node, permanent by default. It fails with ErrExists if there
// is one and with ErrNotFound if the parent is missing. Options: Ephemeral,
// Container, Sequential, WithParents, HeldBy, WhileHeld. The Node returned has
// the path that was created and its Stat, and data as given.
func (s *Session) Create(ctx context.Context, path string, data []byte, options ...CreateOption) (Node, error) {
	create, err := s.d.createOp("create", path, data, options)
	if err != nil {
		return Node{}, err
	}
	r, err := s.d.call(ctx, "create", create.Path, &storepb.Command{Op: &storepb.Command_Create{Create: create}})
	if err != nil {
		return Node{}, err
	}
	n := Node{Path: r.GetPath(), Data: data, Stat: statOf(r.GetStat())}
	if n.Path == "" {
		n.Path = create.Path
	}
	return n, nil
}

func (d *driver) createOp(op, path string, data []byte, options []CreateOption) (*storepb.Create, error) {
	var o nodeOptions
	o.kind = storepb.NodeKind_PERMANENT
	for _, option := range options {
		option.nodeOption(&o)
	}
	sequential := o.seen.has(optSequential)
	path, err := d.createPath(op, path, sequential)
	if err != nil {
		return nil, err
	}
	if err := checkData(op, path, data); err != nil {
		return nil, err
	}
	if err := o.finish(d, op, path, true, sequential); err != nil {
		return nil, err
	}
	return &storepb.Create{Path: path, Kind: o.kind, Sequential: sequential, Data: data, HasData: data != nil,
		Parents: o.seen.has(optWithParents), Conditions: o.conditions}, nil
}

// Delete removes a node. It fails with ErrNotEmpty if it has children, and
// with ErrLocked while its lock is held or waited for. Options: IfUnchanged and
// the other conditions, HeldBy, WhileHeld, Recursive, Force.
func (s *Session) Delete(ctx context.Context, path string, options ...DeleteOption) error {
	path, err := s.d.path("delete", path)
	if err != nil {
		return err
	}
	del, err := s.d.deleteOp("delete", path, options)
	if err != nil {
		return err
	}
	_, err = s.d.call(ctx, "delete", path, &storepb.Command{Op: &storepb.Command_Delete{Delete: del}})
	return err
}

func (d *driver) deleteOp(op, path string, options []DeleteOption) (*storepb.Delete, error) {
	var o nodeOptions
	for _, option := range options {
		option.nodeOption(&o)
	}
	if err := o.finish(d, op, path, false, false); err != nil {
		return nil, err
	}
	return &storepb.Delete{Path: path, Recursive: o.seen.has(optRecursive), Force: o.seen.has(optForce),
		Conditions: o.conditions}, nil
}

// Break takes a lock away from its holder, whoever it is: for operators. The
// fence says which grant is meant (from Why), so that nobody else is hit. The
// holder is told; the lock is granted on only when the holder says that its
// work has ended, or when its lease and lock-delay have run out.
func (s *Session) Break(ctx context.Context, path string, fence uint64) error {
	path, err := s.d.path("break", path)
	if err != nil {
		return err
	}
	_, err = s.d.call(ctx, "break", path, &storepb.Command{Op: &storepb.Command_BreakLock{
		BreakLock: &storepb.Break{Path: path, Fence: fence}}})
	return err
}
