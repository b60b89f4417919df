package clock

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Alarm wakes its owner at an instant of this clock. Unlike Go's timers, which
// stand still while the machine is suspended, it rings as soon as the machine
// runs again if its time has come meanwhile. A nil Alarm never rings.
type Alarm struct {
	fd   int
	file *os.File
	rung chan struct{}
	set  time.Duration
}

// NewAlarm makes an Alarm, which must be closed.
func NewAlarm() (*Alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timer on CLOCK_BOOTTIME: %w", err)
	}
	a := &Alarm{fd: fd, file: os.NewFile(uintptr(fd), "timerfd"), rung: make(chan struct{}, 1)}
	go a.run()
	return a, nil
}

// run passes on that the timer has expired, until the Alarm is closed.
func (a *Alarm) run() {
	defer close(a.rung)
	var times [8]byte
	for {
		if _, err := a.file.Read(times[:]); err != nil {
			return
		}
		select {
		case a.rung <- struct{}{}:
		default:
		}
	}
}

// Set makes it ring at an instant, which may have passed, and forgets the one
// before; 0: not at all. It may still ring once for an earlier one.
func (a *Alarm) Set(at time.Duration) error {
	if a == nil || a.set == at {
		return nil
	}
	a.set = at
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(at))}
	if err := unix.TimerfdSettime(a.fd, unix.TFD_TIMER_ABSTIME, &spec, nil); err != nil {
		return fmt.Errorf("timer on CLOCK_BOOTTIME: %w", err)
	}
	return nil
}

// Rung delivers once it has rung; it is closed with the Alarm.
func (a *Alarm) Rung() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.rung
}

// Close ends the Alarm and waits until nothing of it runs any more.
func (a *Alarm) Close() {
	if a == nil {
		return
	}
	_ = a.file.Close() // of a timer: there is nothing to lose
	for range a.rung {
	}
}
