package main

import (
	"os/exec"
	"runtime"
)

// launcher starts every child from one operating-system thread that lives as
// long as this process needs them: the signal that ends a child with its
// parent is tied to the thread that started it.
type launcher struct {
	requests chan launch
	done     chan struct{}
}

type launch struct {
	cmd    *exec.Cmd
	result chan<- error
}

func newLauncher() *launcher {
	l := &launcher{requests: make(chan launch), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		// Never unlocked: the thread ends with this goroutine, when no child is
		// left.
		runtime.LockOSThread()
		for r := range l.requests {
			r.result <- r.cmd.Start()
		}
	}()
	return l
}

func (l *launcher) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	l.requests <- launch{cmd, result}
	return <-result
}

// close ends the thread; every child must have ended.
func (l *launcher) close() {
	close(l.requests)
	<-l.done
}
