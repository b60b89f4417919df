package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// A signal that comes at the moment of the grant either ends the wait or is
// left for the command.
func TestSignalAtTheGrantIsNotLost(t *testing.T) {
	for range 5000 {
		signals := make(chan os.Signal, 1)
		ctx, stop := untilSignal(signals)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			signals <- syscall.SIGTERM
		}()
		stop()
		<-sent
		var sig *signalError
		if ended := errors.As(context.Cause(ctx), &sig); ended == (len(signals) == 1) {
			t.Fatalf("the wait has ended: %v, signals for the command: %d", ended, len(signals))
		}
	}
}

// The longest --stop that is taken leaves a renewal, which the service answers
// after a third of the lease, an eighth of the lease to arrive.
func TestLongestStopOutlastsARenewal(t *testing.T) {
	for _, lease := range []time.Duration{time.Second, 3 * time.Second, 12 * time.Second, 10 * time.Minute} {
		for _, delay := range []time.Duration{0, time.Second, 15 * time.Second, time.Minute} {
			fl := lockFlags{lease: lease, delay: delay, wait: -1}
			if err := fl.check(); err != nil {
				t.Errorf("the defaults with lease %v, lock-delay %v: %v", lease, delay, err)
			}
			// The client takes twice the drift bound of 1 % off both.
			deadline := (lease+delay)*98/100 - fl.stopMax() - killMargin(delay+2*lease/3)
			if left := deadline - lease/3; left < lease/8 {
				t.Errorf("lease %v, lock-delay %v, --stop %v: the lock is lost %v behind a renewal", lease, delay, fl.stopMax(), left)
			}
		}
	}
}

// A signal is the whole story only of a command that has done nothing.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	if interrupted(ctx, context.Canceled) != nil {
		t.Error("no signal came")
	}
	cancel(&signalError{syscall.SIGINT})
	cancelled := &client.Error{Op: "txn", Err: context.Canceled}
	for _, x := range []struct {
		err  error
		want bool
	}{
		{cancelled, true},
		{&client.Error{Op: "connect", Err: fmt.Errorf("%w: %w", client.ErrUnavailable, context.Canceled)}, true},
		{fmt.Errorf("%w: %w", context.Canceled, client.ErrUnknownOutcome), false},
		{client.ErrNotFound, false},
		{partly(cancelled, 0), true},
		{partly(cancelled, 1), false},
	} {
		if got := interrupted(ctx, x.err); (got != nil) != x.want {
			t.Errorf("%v: %v", x.err, got)
		}
	}
	if err := partly(cancelled, 1); !strings.Contains(err.Error(), "a part of it is gone already") || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
