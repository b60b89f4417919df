package client_test

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

const (
	forever   = time.Duration(math.MaxInt64)
	backwards = time.Duration(math.MinInt64)
)

// The longest durations mean for ever, or are refused; none wraps around.
func TestExtremesOfOptions(t *testing.T) {
	c := newCell(t)
	ctx := within(t)
	addresses := []string{c.address}
	long := []client.Option{client.WithOpenTimeout(forever), client.WithGrace(forever)}
	s := must(client.Dial(ctx, addresses, long...))(t)
	defer s.Close()
	r := must(client.Connect(ctx, addresses, long...))(t)
	defer r.Close()
	for name, o := range map[string]client.Option{
		"longest lease": client.WithLease(forever), "negative lease": client.WithLease(backwards), "no grace": client.WithGrace(0),
		"negative grace": client.WithGrace(backwards), "negative open timeout": client.WithOpenTimeout(backwards),
		"largest drift": client.WithMaxClockDrift(math.MaxInt), "negative drift": client.WithMaxClockDrift(math.MinInt),
	} {
		if s, err := client.Dial(ctx, addresses, o); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	for name, o := range map[string]client.LockOption{
		"longest lock-delay": client.LockDelay(forever), "negative lock-delay": client.LockDelay(backwards),
		"longest time to stop": client.StopGrace(forever), "negative time to stop": client.StopGrace(backwards), "negative wait": client.Wait(backwards),
	} {
		if l, err := s.Lock(ctx, "/l", o); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
	other := must(client.Dial(ctx, addresses))(t)
	defer other.Close()
	for _, wait := range []time.Duration{forever, forever - 1, forever - time.Second, 200 * 365 * 24 * time.Hour, 99 * 365 * 24 * time.Hour} {
		held := must(other.Lock(ctx, "/l"))(t)
		waited := false
		l, err := s.Lock(ctx, "/l", client.Wait(wait), client.OnWait(func(*client.HeldError) {
			waited = true
			if err := held.Release(ctx); err != nil {
				t.Error(err)
			}
		}))
		if err != nil || !waited {
			t.Fatalf("Wait(%d): %v, waited %v", wait, err, waited)
		}
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
	}
	// An outage ends neither of them.
	n := newNetwork()
	cut := must(client.Dial(ctx, addresses, append(long, n.option(), client.WithLease(time.Second))...))(t)
	defer cut.Close()
	cutReader := must(client.Connect(ctx, addresses, append(long, n.option())...))(t)
	defer cutReader.Close()
	n.set(false)
	eventually(t, "jeopardy", func() error {
		if cut.State() == client.Jeopardy {
			return nil
		}
		return errors.New(cut.State().String())
	})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err := cutReader.Get(short, "/l")
	wantErr(t, err, context.DeadlineExceeded)
	if cut.State() != client.Jeopardy {
		t.Errorf("state %v: %v", cut.State(), cut.Err())
	}
}
