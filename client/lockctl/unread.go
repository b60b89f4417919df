package main

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// unreadLook is how often it is looked whether anybody still reads.
const unreadLook = 300 * time.Millisecond

// untilUnread returns a context that ends when stdout is a pipe or a terminal
// that nobody reads any more. A command that seldom writes would notice that
// only at its next write.
func untilUnread(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		look := time.NewTicker(unreadLook)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			fds := []unix.PollFd{{Fd: int32(os.Stdout.Fd())}}
			n, err := unix.Poll(fds, 0)
			if err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
				cancel()
				return
			}
		}
	}()
	return ctx, func() {
		cancel()
		<-done
	}
}
