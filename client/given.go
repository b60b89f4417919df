package client

import "fmt"

// optionName names an option in the error that says that it is given twice or
// contradicts another.
type optionName uint8

const (
	optIfAbsent optionName = iota
	optMustExist
	optIfGeneration
	optIfRevision
	optIfInstance
	optIfUnchanged
	optHeldFence
	optHold // HeldBy and WhileHeld: any number of different holdings
	optWithParents
	optEphemeral
	optContainer
	optSequential
	optRecursive
	optForce
	optShared
	optWait
	optLockDelay
	optStopGrace
	optOnWait
	optWithName
	optWithCell
	optWithCellIdentity
	optWithLease
	optWithGrace
	optWithOpenTimeout
	optWithMaxClockDrift
	optWithLogger
	optWithStateHandler
	optWithDialer
	optChildren
	optSubtree
	optWithoutData
	optWatchLocks
	optionNames
)

var optionTexts = [optionNames]string{
	optIfAbsent: "IfAbsent", optMustExist: "MustExist", optIfGeneration: "IfGeneration", optIfRevision: "IfRevision",
	optIfInstance: "IfInstance", optIfUnchanged: "IfUnchanged", optHeldFence: "HeldFence", optHold: "HeldBy",
	optWithParents: "WithParents", optEphemeral: "Ephemeral", optContainer: "Container", optSequential: "Sequential",
	optRecursive: "Recursive", optForce: "Force", optShared: "Shared", optWait: "Wait", optLockDelay: "LockDelay",
	optStopGrace: "StopGrace", optOnWait: "OnWait", optWithName: "WithName", optWithCell: "WithCell",
	optWithCellIdentity: "WithCellIdentity",
	optWithLease:        "WithLease", optWithGrace: "WithGrace", optWithOpenTimeout: "WithOpenTimeout",
	optWithMaxClockDrift: "WithMaxClockDrift", optWithLogger: "WithLogger", optWithStateHandler: "WithStateHandler",
	optWithDialer: "WithDialer", optChildren: "Children", optSubtree: "Subtree", optWithoutData: "WithoutData", optWatchLocks: "WatchLocks",
}

// String returns the option's name in Go.
func (o optionName) String() string { return optionTexts[o] }

// optionSet is a set of options.
type optionSet uint64

const _ = uint(64 - optionNames) // one bit for each

func options(names ...optionName) (s optionSet) {
	for _, o := range names {
		s |= 1 << o
	}
	return s
}

func (s optionSet) has(o optionName) bool { return s&(1<<o) != 0 }

// clashes lists the pairs of options that contradict each other, and why.
// Options that no call takes together are kept apart by their types.
var clashes = []struct {
	one  optionName
	with optionSet
	why  string
}{
	{optIfAbsent, options(optMustExist, optIfGeneration, optIfRevision, optIfInstance, optIfUnchanged),
		"the node cannot both be absent and exist"},
	{optIfAbsent, options(optHeldFence), "a node whose lock is held is not absent"},
	{optIfAbsent, options(optSequential), "a sequential node gets a name of its own, which is always free"},
	{optWithParents, options(optMustExist, optIfGeneration, optIfRevision, optIfInstance, optIfUnchanged, optHeldFence),
		"the parents of a node that exists are there"},
	{optIfUnchanged, options(optIfRevision, optIfInstance), "IfUnchanged has that condition already"},
	{optEphemeral, options(optContainer), "a node has one kind"},
	{optSubtree, options(optChildren), "the children are part of the subtree"},
}

// given notes which options a call was given, and what is wrong with them. The
// first fault stays.
//
// Invariant: no option replaces another. An option that is given twice, that
// means nothing or that contradicts another is refused before anything is sent:
// a caller that made a mistake must not get a call without its condition.
type given struct {
	seen  optionSet
	fault string
}

// once notes an option, which may be given once.
func (g *given) once(o optionName) {
	if g.seen.has(o) {
		g.refuse("%v is given twice", o)
		return
	}
	g.add(o)
}

// add notes an option, unless it contradicts one that is there.
func (g *given) add(o optionName) {
	g.seen |= 1 << o
	for i := range clashes {
		c := &clashes[i]
		if !g.seen.has(c.one) || g.seen&c.with == 0 || o != c.one && !c.with.has(o) {
			continue
		}
		for other := range optionNames {
			if c.with.has(other) && g.seen.has(other) {
				g.refuse("%v and %v contradict each other: %s", c.one, other, c.why)
				return
			}
		}
	}
}

func (g *given) refuse(format string, args ...any) {
	if g.fault == "" {
		g.fault = fmt.Sprintf(format, args...)
	}
}

// err returns what is wrong with the options of a call.
func (g *given) err(op, path string) error {
	if g.fault == "" {
		return nil
	}
	return &Error{Op: op, Path: path, Err: ErrInvalid, Detail: g.fault}
}
