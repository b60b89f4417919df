package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/internal/nodepath"
	"github.com/seed70370324/lockd/internal/span"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// commandMax is the largest command that fits the service's frame limit, with
// what goes around it. A frame over the limit would end the connection, and
// come again on the next.
const commandMax = 2<<20 - 1<<10

// begin brings a call to the machine. An error means that it was not begun.
func (d *driver) begin(ctx context.Context, c *call, ev machine.Event) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !d.post(ev, origin{call: c}) {
		return d.err
	}
	return nil
}

// await waits for the end of a call that was begun. When ctx ends the call is
// cancelled, which the machine answers at once; so there is one answer. The call
// is over then.
func (d *driver) await(ctx context.Context, c *call) machine.Done {
	var r machine.Done
	d.readFor(c)
	select {
	case a := <-c.answers:
		r = a.Done
	case <-ctx.Done():
		r = d.giveUp(c)
	}
	c.free()
	return r
}

func (d *driver) giveUp(c *call) machine.Done {
	d.post(machine.Cancel{ID: c.id}, origin{})
	for {
		if a := <-c.answers; !a.waiting {
			return a.Done
		}
	}
}

// withdraw is giveUp for an Acquire. It may have been granted just before: then
// the machine gives the lock back, so nobody may have it here either.
func (d *driver) withdraw(c *call) machine.Done {
	r := d.giveUp(c)
	l := c.lock.lock
	if l == nil {
		return r
	}
	c.lock.lock = nil
	d.guard.remove(l)
	l.end(ErrReleased)
	return machine.Done{ID: c.id, Err: machine.ErrCanceled}
}

// callError is the error of a call that has no result: if ctx ended it, it
// wraps that.
func callError(ctx context.Context, op, path string, err error) error {
	cerr := ctx.Err()
	switch {
	case errors.Is(err, machine.ErrCanceled) && cerr != nil:
		err = cerr
	case cerr != nil && err == machine.ErrUnknownOutcome:
		err = fmt.Errorf("%w: %w", cerr, err)
	}
	return &Error{Op: op, Path: path, Err: err}
}

// call executes a command; a refusal is an error.
func (d *driver) call(ctx context.Context, op, path string, cmd *storepb.Command) (*storepb.Result, error) {
	r, err := d.callResult(ctx, op, path, cmd)
	if err == nil {
		err = resultError(op, path, r)
	}
	return r, err
}

// callResult executes a command; a refusal is a result.
func (d *driver) callResult(ctx context.Context, op, path string, cmd *storepb.Command) (*storepb.Result, error) {
	return d.callReleasing(ctx, op, path, cmd, nil)
}

// callReleasing is callResult for a command that releases locks if it is done.
func (d *driver) callReleasing(ctx context.Context, op, path string, cmd *storepb.Command, locks []txnRelease) (*storepb.Result, error) {
	if n := cmd.SizeVT(); n > commandMax {
		return nil, &Error{Op: op, Path: path, Err: ErrTooLarge,
			Detail: fmt.Sprintf("%d bytes in one request, the limit is %d", n, commandMax)}
	}
	c := newCall(d.newID())
	c.releases = locks
	var ids []machine.CallID
	for _, r := range locks {
		ids = append(ids, r.lock.id)
	}
	if err := d.begin(ctx, c, machine.Call{ID: c.id, Command: cmd, Releases: ids}); err != nil {
		return nil, opError(op, path, err)
	}
	r := d.await(ctx, c)
	if r.Err != nil {
		return nil, callError(ctx, op, path, r.Err)
	}
	return r.Result, nil
}

// read executes a read; a refusal is an error.
func (d *driver) read(ctx context.Context, op, path string, msg *pb.Read) (*pb.ReadReply, error) {
	c := newCall(d.newID())
	if err := d.begin(ctx, c, machine.Read{ID: c.id, Read: msg}); err != nil {
		return nil, opError(op, path, err)
	}
	r := d.await(ctx, c)
	if r.Err != nil {
		return nil, callError(ctx, op, path, r.Err)
	}
	if err := readError(op, path, r.Read); err != nil {
		return nil, err
	}
	return r.Read, nil
}

// acquire asks for a lock and waits for the outcome.
func (d *driver) acquire(ctx context.Context, op string, a *storepb.Acquire, lc lockConfig) (*Lock, error) {
	c := newCall(d.newID())
	c.lock = lockRequest{ctx: ctx, path: a.GetPath(), mode: lc.mode}
	start := clock.Now()
	if err := d.begin(ctx, c, machine.Acquire{ID: c.id, Acquire: a, Stop: lc.stop}); err != nil {
		return nil, opError(op, a.Path, err)
	}
	d.readFor(c)
	// The service ends the wait; if it cannot be reached, the client does. What
	// has been asked for is withdrawn then, also if the service hears of it later.
	var late <-chan time.Time
	if lc.seen.has(optWait) {
		t := time.NewTimer(span.Add(lc.wait, waitSlack) - (clock.Now() - start))
		defer t.Stop()
		late = t.C
	}
	var queued *storepb.Result
	var r machine.Done
	for over := false; !over; {
		select {
		case a := <-c.answers:
			if r, over = a.Done, !a.waiting; over {
				break
			}
			if queued = a.Result; lc.onWait != nil {
				d.onWait(c, lc.onWait, heldError(c, queued))
			}
		case <-ctx.Done():
			r, over = d.withdraw(c), true
		case <-late:
			r, over = d.withdraw(c), true
		}
	}
	l := c.lock.lock
	if l != nil {
		c.free()
		return handOver(op, l)
	}
	held := heldError(c, queued)
	c.free()
	held.Waited = clock.Now() - start
	return nil, notGranted(ctx, op, r, held)
}

// onWait runs the program's function. If that does not return, neither does Lock:
// it panics, or ends its goroutine. Then the request is withdrawn.
func (d *driver) onWait(c *call, f func(*HeldError), held *HeldError) {
	returned := false
	defer func() {
		if !returned {
			d.withdraw(c)
		}
	}()
	f(held)
	returned = true
}

// handOver gives a lock that was granted to its caller.
//
// Invariant: a lock that is lost is never handed over. The caller may not have
// run for as long as it likes since the grant: OnWait took its time, the process
// was descheduled, the machine suspended.
func handOver(op string, l *Lock) (*Lock, error) {
	lost := l.Err()
	if lost == nil {
		return l, nil
	}
	l.startRelease() // nothing has been done under it
	return nil, &Error{Op: op, Path: l.path, Err: lost,
		Detail: "it was granted, and lost before this program got to run; nothing was done under it: try again"}
}

// heldError tells what was said when a request was queued; queued is nil if it
// was not.
func heldError(c *call, queued *storepb.Result) *HeldError {
	held := &HeldError{Path: c.lock.path, Mode: c.lock.mode}
	if queued != nil {
		held.Holders, held.Waiters = blockers(queued.GetBlockers(), serviceTime{})
		held.Position = int(queued.GetPosition())
	}
	return held
}

// notGranted turns the end of an Acquire into an error. held has what was said
// when the request was queued.
func notGranted(ctx context.Context, op string, r machine.Done, held *HeldError) error {
	switch {
	case errors.Is(r.Err, machine.ErrCanceled) && held.Position == 0:
		err := ctx.Err()
		if err == nil {
			err = fmt.Errorf("%w: no answer within the time to wait", ErrUnavailable)
		}
		return &Error{Op: op, Path: held.Path, Err: err, Detail: "the request was withdrawn"}
	case errors.Is(r.Err, machine.ErrCanceled):
		held.Cause = ctx.Err()
		return held
	case r.Err != nil:
		return &Error{Op: op, Path: held.Path, Err: r.Err}
	}
	switch r.Result.GetCode() {
	case storepb.Code_HELD, storepb.Code_TIMED_OUT:
		if r.Result.GetCode() == storepb.Code_HELD {
			held.Waited = 0
		}
		if len(r.Result.GetBlockers()) > 0 {
			held.Holders, held.Waiters = blockers(r.Result.GetBlockers(), serviceTime{})
		}
		return held
	case storepb.Code_WITHDRAWN:
		return &Error{Op: op, Path: held.Path, Err: ErrNotFound,
			Detail: "the node was deleted while the request waited"}
	}
	if err := resultError(op, held.Path, r.Result); err != nil {
		return err
	}
	return badReply(op, held.Path)
}

// release gives a lock back; the answer goes to its releaseDone.
func (d *driver) release(l *Lock) {
	d.guard.remove(l)
	c := &l.releasing
	c.id, c.release = d.newID(), l
	if !d.post(machine.Release{ID: c.id, Lock: l.id}, origin{call: c}) {
		l.releaseDone(nil, d.err)
	}
}

// path checks the path of an operation.
func (d *driver) path(op, path string) (string, error) {
	if err := nodepath.Check(path); err != nil {
		return "", &Error{Op: op, Path: fmt.Sprintf("%q", path), Err: ErrBadPath, Detail: err.Error()}
	}
	return path, nil
}

// createPath checks the path of a Create.
func (d *driver) createPath(op, path string, sequential bool) (string, error) {
	if !sequential {
		return d.path(op, path)
	}
	if err := nodepath.CheckSequential(path); err != nil {
		return "", &Error{Op: op, Path: fmt.Sprintf("%q", path), Err: ErrBadPath, Detail: err.Error()}
	}
	return path, nil
}
