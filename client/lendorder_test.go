package client

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client/machine"
	"github.com/seed70370324/lockd/internal/wire"
)

// These tests stop the hand-over of a lent connection where one step more or less
// would leave a call that nobody reads for.

// long is when something is taken not to happen any more.
const long = 5 * time.Second

// lentLink is a link and what lends it: to be lent for ever, but for a recall.
func lentLink(t *testing.T) (*driver, *link) {
	d := &driver{cfg: config{lentTick: time.Hour}, calls: map[machine.CallID]*call{}, watches: map[machine.CallID]*watchQueue{}}
	l := &link{lending: lending{recall: make(chan struct{}, 1)}}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	t.Cleanup(l.cancel)
	d.link = l
	return d, l
}

// startLend lends the link; the channel is closed when it is taken back.
func startLend(d *driver, l *link) <-chan struct{} {
	l.reading.Lock()
	d.startLending(l)
	back := make(chan struct{})
	go func() {
		defer close(back)
		d.lend(l)
		l.reading.Unlock()
	}()
	return back
}

// lockSoon locks l.reading when it is free.
func lockSoon(l *link) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.After(long)
	for !l.reading.TryLock() {
		select {
		case <-tick.C:
		case <-end:
			return false
		}
	}
	return true
}

// A call that was begun just before the connection was lent, too early to read
// for itself, is read for.
func TestLendSeesWhoCameBefore(t *testing.T) {
	d, l := lentLink(t)
	d.calls[1] = &call{}
	back := startLend(d, l)
	select {
	case <-back:
	case <-time.After(long):
		t.Error("the connection is lent, and nobody reads for a call that waits")
		l.cancel()
		<-back
	}
}

// looked is a waiter who is answered, and tells when he was asked.
type looked chan struct{}

func (w looked) answered() bool {
	close(w)
	return true
}

// Who has read looks for others who wait after he has let the connection go: one
// who came before that could not read.
func TestReaderLooksAroundAfterwards(t *testing.T) {
	d, l := lentLink(t)
	d.lent.Store(l)
	w := make(looked)
	d.mu.Lock() // he cannot look yet
	end := make(chan struct{})
	go func() {
		defer close(end)
		d.readFor(w)
	}()
	<-w
	if lockSoon(l) {
		l.reading.Unlock()
	} else {
		t.Error("he looks around while he still reads")
	}
	d.calls[1] = &call{}
	d.mu.Unlock()
	<-end
	if len(l.recall) != 1 {
		t.Error("the connection is not recalled for the call that waits")
	}
}

// A caller who reads when the connection is recalled lets it go.
func TestReaderIsInterrupted(t *testing.T) {
	d, l := lentLink(t)
	near, far := net.Pipe()
	l.conn = wire.NewConn(near, wire.Options{})
	defer l.conn.Close()
	defer far.Close()
	back := startLend(d, l)
	if !lockSoon(l) {
		t.Fatal("a lent connection is read by its goroutine")
	}
	read := make(chan bool, 1)
	go func() {
		read <- d.readNext(l)
		l.reading.Unlock()
	}()
	l.recallNow()
	select {
	case <-back:
	case <-time.After(long):
		t.Error("the caller reads on")
		_ = far.Close()
		<-back
	}
	if <-read || l.over {
		t.Error("the interrupted read is not told from a message, or from the end")
	}
}

// Who saw the connection lent, and finds it free when it has been taken back
// meanwhile, leaves it alone: nobody would interrupt him.
func TestNobodyReadsWhatWasTakenBack(t *testing.T) {
	d, l := lentLink(t)
	d.readLent(l, closing(make(chan struct{}))) // a read would panic: there is no connection
	if !l.reading.TryLock() {
		t.Error("it is not let go")
	}
}

// A recall of an earlier time, or a call that was answered without the network,
// does not decide how long the connection is lent.
func TestOldRecallsAndAnswersDoNotCount(t *testing.T) {
	d, l := lentLink(t)
	l.recallNow()
	back := startLend(d, l)
	if !lockSoon(l) {
		t.Fatal("a lent connection is read by its goroutine")
	}
	l.reading.Unlock()
	d.readFor(closing(closedChan))
	if n := l.reads.Load(); n != 0 {
		t.Errorf("%d reads are counted, none was made", n)
	}
	select {
	case <-back:
		t.Error("it was not lent, for a recall of before")
	case <-time.After(100 * time.Millisecond): // as if for ever
	}
	l.cancel()
	<-back
}

// What may be lent: a connection that is the present one and not over, after
// enough quick calls, when nothing is awaited.
func TestMayLend(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(d *driver, l *link)
		want   bool
	}{
		{"quick calls", func(*driver, *link) {}, true},
		{"too few", func(d *driver, l *link) { d.quick-- }, false},
		{"a call", func(d *driver, l *link) { d.calls[1] = &call{} }, false},
		{"a watch", func(d *driver, l *link) { d.watches[1] = &watchQueue{} }, false},
		{"a Close", func(d *driver, l *link) { d.closing = true }, false},
		{"over", func(d *driver, l *link) { l.over = true }, false},
		{"another link", func(d *driver, l *link) { d.link = &link{} }, false},
	} {
		d, l := lentLink(t)
		d.quick = quickCalls
		c.change(d, l)
		if got := d.mayLend(l); got != c.want || (d.lent.Load() == l) != c.want {
			t.Errorf("%s: %v, lent %v", c.name, got, d.lent.Load() == l)
		}
	}
}
