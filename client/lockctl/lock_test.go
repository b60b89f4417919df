package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
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
