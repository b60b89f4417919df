package client

import (
	"context"
	"errors"
)

// Do runs work under the lock of path: it acquires the lock (by the same rules
// and options as Lock), calls work with a context that ends when ctx does or
// when the lock is lost, waits until work has returned, and only then releases
// the lock. So nobody else is granted the lock while work still runs, unless
// work goes on for longer than StopGrace after its context has ended: work must obey
// its context and must leave nothing running behind. For processes that are
// frozen there is the fence.
//
// The error is that of work. If the lock was lost before work returned, the
// error is ErrLost too, even if work returned nil: what it did last may have
// been done without the lock. Do waits for the release as Release does; if the
// session ended before the release was answered, the error says so.
func (s *Session) Do(ctx context.Context, path string, work func(context.Context, *Lock) error, options ...LockOption) (err error) {
	l, err := s.d.lock(ctx, "do", path, options, false)
	if err != nil {
		return err
	}
	// The release is deferred so that it comes after work also if work panics.
	defer func() {
		lost := l.Err()
		rerr := l.Release(ctx)
		switch {
		case l.releasedInTxn():
			// The service released it while it was held: nothing has been lost.
		case errors.Is(lost, ErrLost):
			// An error of work that comes from the loss already tells it.
			if !errors.Is(err, ErrLost) {
				err = errors.Join(err, lost)
			}
		case rerr != nil && (ctx.Err() == nil || !errors.Is(rerr, ctx.Err())):
			// Not if ctx has ended the wait: then the release goes on.
			err = errors.Join(err, rerr)
		}
	}()
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(l.Context(), func() { cancel(context.Cause(l.Context())) })
	defer stop()
	// Right before the work: whatever time has passed since the grant counts.
	if lost := l.Err(); lost != nil {
		return lost
	}
	return work(&holdContext{wctx, l, cancel}, l)
}
