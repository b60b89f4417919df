package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
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
