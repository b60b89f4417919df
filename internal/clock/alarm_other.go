//go:build !linux

package clock

import "time"

// Alarm wakes its owner at an instant of this clock; here there is none, and
// timers must do.
type Alarm struct{}

// NewAlarm returns nil, which never rings.
func NewAlarm() (*Alarm, error) { return nil, nil }

// Set does nothing here.
func (a *Alarm) Set(time.Duration) error { return nil }

// Rung returns nil, which never delivers.
func (a *Alarm) Rung() <-chan struct{} { return nil }

// Close does nothing here.
func (a *Alarm) Close() {}
