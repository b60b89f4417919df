package child

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// The command is gone in time even if the message that it is being stopped
// cannot be written.
func TestBlockedMessageDoesNotHoldUpTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	block := make(chan struct{})
	defer close(block)
	time.AfterFunc(50*time.Millisecond, cancel)
	ended := make(chan error, 1)
	go func() {
		res, err := Run(ctx, Options{
			Args:     []string{"sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"},
			Kill:     100 * time.Millisecond,
			Stopping: func(error) { <-block },
		})
		if err == nil && (!res.Stopped || res.Code != 128+9) {
			err = errors.New("it was not killed")
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the command outlives the lock")
	}
}

func TestCommandIsNotStartedWithoutTheLock(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	file := filepath.Join(t.TempDir(), "started")
	res, err := Run(ctx, Options{Args: []string{"touch", file}, Kill: time.Second})
	if err != nil || !res.Stopped {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Fatal("started although the lock was lost")
	}
}
