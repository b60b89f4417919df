package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A call that the end of the time cuts off is no error, unless it had waited for
// so long that no answer would have come: a dead cell is no cell without errors.
func TestBenchCountsWhatIsNotAnswered(t *testing.T) {
	for _, c := range []struct {
		name        string
		answers     time.Duration // each call takes so long
		dies        time.Duration // from then on no call is answered
		calls, errs int
	}{
		{"all are answered", 300 * time.Millisecond, time.Hour, 33, 0},
		{"the last is cut off", 999 * time.Millisecond, time.Hour, 10, 0},
		{"dead from the start", time.Millisecond, 0, 0, 1},
		{"dead in the end", 500 * time.Millisecond, 9 * time.Second, 18, 1},
		{"dead for a moment", 500 * time.Millisecond, 9500 * time.Millisecond, 19, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				start, errs := time.Now(), &benchErrors{}
				took := repeatOp(ctx, errs, unansweredTime, func() (time.Duration, error) {
					wait := c.answers
					if time.Since(start) >= c.dies {
						wait = time.Hour
					}
					select {
					case <-time.After(wait):
						return c.answers, nil
					case <-ctx.Done():
						return 0, ctx.Err()
					}
				})
				if len(took) != c.calls || errs.count() != c.errs {
					t.Errorf("%d calls and %d errors, expected %d and %d", len(took), errs.count(), c.calls, c.errs)
				}
				if c.errs > 0 && !errors.Is(errs.first, context.DeadlineExceeded) {
					t.Errorf("error %v", errs.first)
				}
			})
		})
	}
}
