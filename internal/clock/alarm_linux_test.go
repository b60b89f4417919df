package clock

import (
	"testing"
	"time"
)

// An alarm rings at its instant on CLOCK_BOOTTIME and not before, at once if
// that has passed, and can be moved.
func TestAlarm(t *testing.T) {
	a, err := NewAlarm()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	set := func(at time.Duration) {
		t.Helper()
		if err := a.Set(at); err != nil {
			t.Fatal(err)
		}
	}
	at := bootTime(t) + 20*time.Millisecond
	set(at)
	<-a.Rung()
	if now := bootTime(t); now < at {
		t.Fatalf("rang at %v, was set to %v", now, at)
	}
	set(bootTime(t) - time.Second)
	<-a.Rung()
	set(bootTime(t) + time.Hour)
	set(bootTime(t) + time.Millisecond)
	<-a.Rung()
	set(0)
	select {
	case <-a.Rung():
		t.Fatal("rings although it is not set")
	default:
	}
	var none *Alarm
	if err := none.Set(1); err != nil || none.Rung() != nil {
		t.Fatal("no alarm")
	}
	none.Close()
}
