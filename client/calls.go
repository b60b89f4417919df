package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/nodepath"
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
	if !d.post(message{event: ev, call: c}) {
		return d.err
	}
	return nil
}

// await waits for the end of a call that was begun. When ctx ends the call is
// cancelled, which the machine answers at once; so there is one answer.
func (d *driver) await(ctx context.Context, c *call) machine.Done {
	select {
	case r := <-c.done:
		return r
	case <-d.stopped:
		return d.last(c)
	case <-ctx.Done():
		return d.giveUp(c)
	}
}

func (d *driver) giveUp(c *call) machine.Done {
	d.post(message{event: machine.Cancel{ID: c.id}})
	select {
	case r := <-c.done:
		return r
	case <-d.stopped:
		return d.last(c)
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

// last is the answer once nothing is stepped any more.
func (d *driver) last(c *call) machine.Done {
	select {
	case r := <-c.done:
		return r
	default:
		return machine.Done{ID: c.id, Err: d.err} // came too late to be begun
	}
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
	if n := cmd.SizeVT(); n > commandMax {
		return nil, &Error{Op: op, Path: path, Err: ErrTooLarge,
			Detail: fmt.Sprintf("%d bytes in one request, the limit is %d", n, commandMax)}
	}
	c := newCall(d.newID())
	if err := d.begin(ctx, c, machine.Call{ID: c.id, Command: cmd}); err != nil {
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
	c.waiting = make(chan *storepb.Result, 1)
	c.lock = &lockRequest{ctx: ctx, path: a.GetPath(), mode: lc.mode}
	start := time.Now()
	if err := d.begin(ctx, c, machine.Acquire{ID: c.id, Acquire: a, Stop: lc.stop}); err != nil {
		return nil, opError(op, a.Path, err)
	}
	// The service ends the wait; if it cannot be reached, the client does.
	var late <-chan time.Time
	if lc.waitSet && lc.wait > 0 {
		t := time.NewTimer(lc.wait + waitSlack)
		defer t.Stop()
		late = t.C
	}
	held := &HeldError{Path: a.Path, Mode: lc.mode}
	var r machine.Done
wait:
	for {
		select {
		case r = <-c.done:
			break wait
		case w := <-c.waiting:
			held.Holders, held.Waiters = blockers(w.GetBlockers(), serviceTime{})
			held.Position = int(w.GetPosition())
			if lc.onWait != nil {
				told := *held
				lc.onWait(&told)
			}
		case <-ctx.Done():
			r = d.withdraw(c)
			break wait
		case <-late:
			r = d.withdraw(c)
			break wait
		case <-d.stopped:
			r = d.last(c)
			break wait
		}
	}
	held.Waited = time.Since(start)
	return lockOutcome(ctx, op, c, r, held)
}

// lockOutcome turns the end of an Acquire into a Lock or an error. held has
// what was said when the request was queued.
func lockOutcome(ctx context.Context, op string, c *call, r machine.Done, held *HeldError) (*Lock, error) {
	if c.lock.lock != nil {
		return c.lock.lock, nil
	}
	switch {
	case errors.Is(r.Err, machine.ErrCanceled) && held.Position == 0:
		err := ctx.Err()
		if err == nil {
			err = fmt.Errorf("%w: no answer within the time to wait", ErrUnavailable)
		}
		return nil, &Error{Op: op, Path: held.Path, Err: err, Detail: "the request was withdrawn"}
	case errors.Is(r.Err, machine.ErrCanceled):
		held.Cause = ctx.Err()
		return nil, held
	case r.Err != nil:
		return nil, &Error{Op: op, Path: held.Path, Err: r.Err}
	}
	switch r.Result.GetCode() {
	case storepb.Code_HELD, storepb.Code_TIMED_OUT:
		if r.Result.GetCode() == storepb.Code_HELD {
			held.Waited = 0
		}
		if len(r.Result.GetBlockers()) > 0 {
			held.Holders, held.Waiters = blockers(r.Result.GetBlockers(), serviceTime{})
		}
		return nil, held
	case storepb.Code_WITHDRAWN:
		return nil, &Error{Op: op, Path: held.Path, Err: ErrNotFound,
			Detail: "the node was deleted while the request waited"}
	}
	if err := resultError(op, held.Path, r.Result); err != nil {
		return nil, err
	}
	return nil, badReply(op, held.Path)
}

// release gives a lock back; the answer goes to its releaseDone, unless the
// loop stops before.
func (d *driver) release(l *Lock) {
	d.guard.remove(l)
	c := &call{id: d.newID(), then: func(r machine.Done) { l.releaseDone(r.Result, r.Err) }}
	d.post(message{event: machine.Release{ID: c.id, Lock: l.id}, call: c})
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
