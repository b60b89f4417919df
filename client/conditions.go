package client

import (
	"fmt"

	storepb "github.com/seed70370324/lockd/store/pb"
)

// The options of the calls about nodes. Each call takes those that make sense
// for it; the compiler refuses others.
type (
	// PutOption is an option of Put.
	PutOption interface {
		nodeOption
		putOption()
	}
	// CreateOption is an option of Create.
	CreateOption interface {
		nodeOption
		createOption()
	}
	// DeleteOption is an option of Delete.
	DeleteOption interface {
		nodeOption
		deleteOption()
	}
	// CheckOption is a condition of Txn.Check.
	CheckOption interface {
		nodeOption
		checkOption()
	}
)

type (
	// ConditionOption is a condition of Put, Delete and Txn.Check: it is about
	// the node that the call names.
	ConditionOption interface {
		PutOption
		DeleteOption
		CheckOption
	}
	// HoldOption is a condition of every call that writes, and of Txn.Check: it
	// is about a lock, whatever node the call names.
	HoldOption interface {
		PutOption
		CreateOption
		DeleteOption
		CheckOption
	}
	// AbsentOption is a condition of Put, Create and Txn.Check.
	AbsentOption interface {
		PutOption
		CreateOption
		CheckOption
	}
	// ExistOption is an option of Put, Delete, Txn.Check and Lock.
	ExistOption interface {
		PutOption
		DeleteOption
		CheckOption
		LockOption
	}
	// ParentsOption is an option of Put and Create.
	ParentsOption interface {
		PutOption
		CreateOption
	}
)

// nodeOption changes what a call about a node asks for.
type nodeOption interface{ nodeOption(*nodeOptions) }

// nodeOptions gathers the options of one call about a node.
//
// Invariant: all conditions must hold; none is dropped, weakened or replaced by
// another.
type nodeOptions struct {
	given
	conditions []*storepb.Condition
	holds      []Hold // those of conditions
	kind       storepb.NodeKind
	lost       error // HeldBy of a lock that is not held any more
}

func (o *nodeOptions) require(c *storepb.Condition) { o.conditions = append(o.conditions, c) }

// aboutNode are the conditions on the node itself that imply that it exists.
const aboutNode = optionSet(1<<optIfGeneration | 1<<optIfRevision | 1<<optIfInstance | 1<<optIfUnchanged | 1<<optHeldFence)

// finish ends the options of an operation on path; the error says what is wrong
// with them. fresh: path is but the beginning of the node's name.
func (o *nodeOptions) finish(d *driver, op, path string, absent, fresh bool) error {
	cell := d.cell.Load().identity
	for _, h := range o.holds {
		switch {
		case h.Cell != 0 && cell != 0 && h.Cell != cell:
			o.refuse("the Hold %v is of another cell, this one is %x", h, cell)
		case h.Path == path && absent && !fresh:
			o.refuse("the node must be absent, and its lock must be held: that cannot be both")
		}
	}
	if err := o.given.err(op, path); err != nil {
		return err
	}
	if o.lost != nil {
		return &Error{Op: op, Path: path, Err: fmt.Errorf("%w: %w", ErrConflict, o.lost), Detail: "nothing was sent"}
	}
	return nil
}

// demand is a condition on the node's number of one kind.
type demand struct {
	name   optionName
	number uint64
	make   func(n uint64) *storepb.Condition
}

func (demand) putOption()    {}
func (demand) deleteOption() {}
func (demand) checkOption()  {}

func (c demand) nodeOption(o *nodeOptions) {
	o.once(c.name)
	if c.number == 0 {
		o.refuse("%v(0) is no condition: the number was never set", c.name)
	}
	o.require(c.make(c.number))
}

// IfGeneration demands that the node's content generation (Stat) is n. It
// starts at 1 again when a node is deleted and created anew, so it does not
// notice that; IfUnchanged does. If the condition does not hold, the call fails
// with ErrConflict, or ErrNotFound if there is no such node; for a node that
// must not exist there is IfAbsent.
func IfGeneration(n uint64) ConditionOption {
	return demand{optIfGeneration, n, func(n uint64) *storepb.Condition {
		return &storepb.Condition{Demand: &storepb.Condition_Generation{Generation: n}}
	}}
}

// IfRevision demands that the last write of the node was the one of this
// revision (Stat.ModifyRevision). No two writes have the same.
func IfRevision(revision uint64) ConditionOption {
	return demand{optIfRevision, revision, revisionIs}
}

func revisionIs(n uint64) *storepb.Condition {
	return &storepb.Condition{Demand: &storepb.Condition_Revision{Revision: n}}
}

// IfInstance demands that the node is the one that was created at this revision
// (Stat.Instance), and not one that was created later under the same path.
func IfInstance(n uint64) ConditionOption { return demand{optIfInstance, n, instanceIs} }

func instanceIs(n uint64) *storepb.Condition {
	return &storepb.Condition{Demand: &storepb.Condition_Instance{Instance: n}}
}

// HeldFence demands that the node's lock is held under exactly this fence, by
// whichever session: of a shared lock several hold it under the same. HeldBy
// and WhileHeld name one holding.
func HeldFence(fence uint64) ConditionOption {
	return demand{optHeldFence, fence, func(n uint64) *storepb.Condition {
		return &storepb.Condition{Demand: &storepb.Condition_Fence{Fence: n}}
	}}
}

type ifUnchanged struct{ stat Stat }

func (ifUnchanged) putOption()    {}
func (ifUnchanged) deleteOption() {}
func (ifUnchanged) checkOption()  {}

func (c ifUnchanged) nodeOption(o *nodeOptions) {
	o.once(optIfUnchanged)
	if c.stat.Instance == 0 || c.stat.ModifyRevision == 0 {
		o.refuse("IfUnchanged has a Stat that was never filled in: take it from Get, Stat, Put or Create")
	}
	o.require(instanceIs(c.stat.Instance))
	o.require(revisionIs(c.stat.ModifyRevision))
}

// IfUnchanged demands that the node is as it was when the service gave stat:
// neither written since nor deleted and created anew (IfInstance and
// IfRevision). It is the condition to read, decide and write with:
//
//	n, err := s.Get(ctx, path)
//	...
//	_, err = s.Put(ctx, path, changed, client.IfUnchanged(n.Stat))
//
// If the node has changed the call fails with ErrConflict, or ErrNotFound if it
// is gone: read again. A Stat that was never filled in is refused.
func IfUnchanged(stat Stat) ConditionOption { return ifUnchanged{stat} }

type ifAbsent struct{}

func (ifAbsent) putOption()    {}
func (ifAbsent) createOption() {}
func (ifAbsent) checkOption()  {}

func (ifAbsent) nodeOption(o *nodeOptions) {
	o.once(optIfAbsent)
	o.require(exists(false))
}

func exists(yes bool) *storepb.Condition {
	return &storepb.Condition{Demand: &storepb.Condition_Exists{Exists: yes}}
}

// IfAbsent demands that the node does not exist: Put says ErrConflict if it
// does, Check ErrExists, and so does Create, which demands it anyway.
func IfAbsent() AbsentOption { return ifAbsent{} }

type mustExist struct{}

func (mustExist) putOption()                {}
func (mustExist) deleteOption()             {}
func (mustExist) checkOption()              {}
func (mustExist) nodeOption(o *nodeOptions) { o.once(optMustExist) }
func (mustExist) lockOption(c *lockConfig)  { c.once(optMustExist) }

// MustExist keeps Put and Lock from creating a node that does not exist: they
// fail with ErrNotFound, as Delete and Check do anyway.
func MustExist() ExistOption { return mustExist{} }

type holdOption struct {
	hold Hold
	lost error
	nil  bool
}

func (holdOption) putOption()    {}
func (holdOption) createOption() {}
func (holdOption) deleteOption() {}
func (holdOption) checkOption()  {}

func (c holdOption) nodeOption(o *nodeOptions) {
	o.add(optHold)
	if c.nil {
		o.refuse("HeldBy has no lock: it is nil")
		return
	}
	if fault := c.hold.fault(); fault != "" {
		o.refuse("the Hold names no holding of a lock: %s", fault)
	}
	for _, h := range o.holds {
		switch {
		case h.Session != c.hold.Session || h.Ticket != c.hold.Ticket:
		case h.Path == c.hold.Path:
			o.refuse("the holding %v is demanded twice", h)
		default:
			o.refuse("the holdings %v and %v contradict each other: a ticket is for one lock", h, c.hold)
		}
	}
	o.holds = append(o.holds, c.hold)
	if o.lost == nil {
		o.lost = c.lost
	}
	o.require(&storepb.Condition{Demand: &storepb.Condition_HeldBy{HeldBy: c.hold.proto()}})
}

// HeldBy demands that l is still held at the instant at which the service
// executes the call: what was sent under a lock that has been lost meanwhile is
// not done, however late it arrives. It fails with ErrConflict then, at once if
// l is known to be lost or released. l.Txn() begins a transaction with it.
func HeldBy(l *Lock) HoldOption {
	if l == nil {
		return holdOption{nil: true}
	}
	return holdOption{hold: l.Hold(), lost: l.Err()}
}

// WhileHeld is HeldBy for a lock that another program holds, which has passed
// on its Hold.
func WhileHeld(h Hold) HoldOption { return holdOption{hold: h} }

type withParents struct{}

func (withParents) putOption()                {}
func (withParents) createOption()             {}
func (withParents) nodeOption(o *nodeOptions) { o.once(optWithParents) }

// WithParents creates missing parents as container nodes, which go away when
// they have become empty again.
func WithParents() ParentsOption { return withParents{} }

// createKind is a kind of node to create.
type createKind struct {
	name optionName
	kind storepb.NodeKind
}

func (createKind) createOption() {}

func (c createKind) nodeOption(o *nodeOptions) {
	o.once(c.name)
	o.kind = c.kind
}

// Ephemeral makes the node go away with this session. It cannot have children.
func Ephemeral() CreateOption { return createKind{optEphemeral, storepb.NodeKind_EPHEMERAL} }

// Container makes the node go away once it has been used and has neither
// children nor a lock any more.
func Container() CreateOption { return createKind{optContainer, storepb.NodeKind_CONTAINER} }

type sequential struct{}

func (sequential) createOption()             {}
func (sequential) nodeOption(o *nodeOptions) { o.once(optSequential) }

// Sequential appends the parent's next sequence number, ten digits, to the
// path; the path may end in a slash then, for an empty base name. Node.Path
// tells what it has become.
func Sequential() CreateOption { return sequential{} }

// deleteHow says how to delete.
type deleteHow struct{ name optionName }

func (deleteHow) deleteOption()               {}
func (c deleteHow) nodeOption(o *nodeOptions) { o.once(c.name) }

// Recursive deletes everything below the node too, all or nothing.
func Recursive() DeleteOption { return deleteHow{optRecursive} }

// Force deletes the node in spite of those who hold its lock or wait for it:
// they lose it.
func Force() DeleteOption { return deleteHow{optForce} }
