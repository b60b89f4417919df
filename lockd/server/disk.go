package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/storage"
)

// diskWork is what one batch of the loop owes to the log, in its order.
type diskWork struct {
	install *replog.InstallSnapshot
	founded uint64
	appends []replog.Append
	after   []replog.SendAfter
	trim    paxos.Slot
}

func (w *diskWork) empty() bool {
	return w.install == nil && w.founded == 0 && len(w.appends) == 0 && len(w.after) == 0 && w.trim == 0
}

// disk owns the log's writing side: one goroutine writes all that has queued
// up while the last flush ran, flushes once, reports, and only then lets the
// messages go that depend on it. If it has nothing to do, the loop begins the
// flush itself (see put) and leaves to the goroutine what comes after: so the
// disk works at once, while the loop goes on with its turn.
//
// Its queue is bounded by the protocol: a leader has a window of slots in
// flight, a follower gets no more than its leader's window, and everything else
// is one item an event.
type disk struct {
	storage storage.API
	async   storage.Async // storage, if it is one
	// post reports to the loop, and may take its turn, unless aside; send sends
	// messages to peers; fail stops the replica. None of them waits for anybody.
	post    func(ev replica.Event, aside bool)
	send    func([]replog.Send)
	fail    func(error)
	metrics *shellMetrics

	mu      sync.Mutex
	queue   []diskWork
	busy    bool // somebody works: the goroutine, or the loop on its behalf
	begun   bool // the loop has begun a flush: the goroutine is to finish it
	parked  bool // the goroutine waits in AwaitSync, or is about to
	failed  bool
	closing bool
	wake    chan struct{}
	done    chan struct{}

	// Of who is busy: what is gathered for the next flush.
	records  []*paxos.Record
	after    []replog.SendAfter
	sends    []replog.Send // of after, once it is durable
	sequence uint64        // highest gathered
	start    time.Time     // of the flush
}

func newDisk(st storage.API) *disk {
	async, _ := st.(storage.Async)
	return &disk{storage: st, async: async, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// put takes a batch's work; the loop alone calls it. It begins the flush if
// nobody is busy, there is nothing else to do first, and the storage lets it.
func (d *disk) put(w diskWork) {
	d.mu.Lock()
	inline := d.async != nil && !d.busy && !d.failed && !d.closing && len(d.queue) == 0 &&
		len(w.appends) > 0 && w.install == nil && w.founded == 0 && w.trim == 0
	var err error
	var told bool // the goroutine comes by itself: who is busy looks into the queue at the end
	if inline {
		told, err = d.begin(&w)
		told = told && d.parked
	} else {
		told = d.busy
		d.queue = append(d.queue, w)
	}
	d.mu.Unlock()
	if err != nil {
		d.fail(err)
	}
	if !told {
		d.signal()
	}
}

// begin begins a flush for the goroutine to finish; true: its end will wake who is
// parked. mu is held, since the flush may end before the call that begins it.
func (d *disk) begin(w *diskWork) (begun bool, err error) {
	d.busy = true
	d.start = time.Now()
	d.gather(w)
	if err = d.write(); err == nil {
		if begun, err = d.async.StartSync(); err != nil {
			err = fmt.Errorf("flush the log: %w", err)
		}
	}
	d.begun, d.failed = err == nil, err != nil
	return begun, err
}

// signal wakes the goroutine.
func (d *disk) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.parked {
		// Under mu: while it is parked no flush is under way for which this would
		// wait, and none that it would disturb.
		d.async.WakeSync()
	}
}

// wait waits for a signal, or for the end of a flush that the loop begins.
func (d *disk) wait() {
	if d.async != nil {
		if d.async.AwaitSync() {
			return
		}
		d.mu.Lock()
		d.parked = false
		begun := d.begun
		d.mu.Unlock()
		if begun {
			return // by who believed that its end would wake this goroutine
		}
	}
	<-d.wake
}

// close lets the goroutine finish what is queued and waits for it.
func (d *disk) close() {
	d.mu.Lock()
	d.closing = true
	d.mu.Unlock()
	d.signal()
	<-d.done
}

// run is the goroutine. It ends when closed, or at the first error: after a
// failed write or flush nothing about the file may be believed, so nothing is
// retried, reported or sent any more.
func (d *disk) run() {
	defer close(d.done)
	var works []diskWork
	mine := false // it is this goroutine that is busy
	for {
		d.mu.Lock()
		begun := d.begun
		d.begun = false
		if !begun && (mine || !d.busy) {
			works, d.queue = d.queue, works[:0]
			d.busy = len(works) > 0
		}
		idle := !begun && len(works) == 0
		end := d.failed || idle && d.closing && !d.busy
		d.parked = idle && !end && d.async != nil
		d.mu.Unlock()
		switch {
		case end:
			return
		case idle:
			mine = false
			d.wait()
			continue
		}
		var err error
		if mine, err = d.work(begun, works); err != nil {
			d.mu.Lock()
			d.failed = true
			d.mu.Unlock()
			d.fail(err)
			return
		}
		clear(works)
		works = works[:0]
		if cap(works) > keepLetters {
			works = nil
		}
	}
}

// work finishes the flush that the loop has begun, or does all of works; more:
// more has come meanwhile, and the goroutine is still busy.
func (d *disk) work(begun bool, works []diskWork) (more bool, err error) {
	if begun {
		if err := d.async.FinishSync(); err != nil {
			return false, fmt.Errorf("flush the log: %w", err)
		}
		d.measure()
		return d.report(true), nil
	}
	for i := range works {
		w := &works[i]
		if w.install != nil || w.founded != 0 {
			// These keep their place behind what was appended before.
			if err := d.flush(); err != nil {
				return false, err
			}
			d.report(false)
			if err := d.inOrder(w); err != nil {
				return false, err
			}
		}
		d.gather(w)
		if w.trim != 0 {
			if err := d.flush(); err != nil {
				return false, err
			}
			d.report(false)
			if err := d.storage.Trim(w.trim); err != nil {
				return false, fmt.Errorf("drop old log segments: %w", err)
			}
		}
	}
	if err := d.flush(); err != nil {
		return false, err
	}
	return d.report(true), nil
}

// gather adds a batch's records and messages to the next flush.
func (d *disk) gather(w *diskWork) {
	for _, a := range w.appends {
		d.records = append(d.records, a.Record)
		d.sequence = max(d.sequence, a.Sequence)
	}
	for _, a := range w.after {
		d.after = append(d.after, a)
		d.sequence = max(d.sequence, a.Sequence)
	}
}

// flush makes durable what is gathered.
func (d *disk) flush() error {
	if len(d.records) == 0 {
		return nil
	}
	d.start = time.Now()
	if err := d.write(); err != nil {
		return err
	}
	if err := d.storage.Sync(); err != nil {
		return fmt.Errorf("flush the log: %w", err)
	}
	d.measure()
	return nil
}

func (d *disk) write() error {
	if err := d.storage.Append(d.records); err != nil {
		return fmt.Errorf("write to the log: %w", err)
	}
	return nil
}

func (d *disk) measure() {
	d.metrics.flush.Observe(time.Since(d.start).Seconds())
	d.metrics.flushRecords.Observe(float64(len(d.records)))
}

// report tells what is durable now, having sent what waited for it. With the
// last report the goroutine is not busy any more, and whoever wants may begin
// the next flush, unless more has come meanwhile.
func (d *disk) report(last bool) (more bool) {
	done := d.sequence
	for i := range d.after {
		// Durable before visible: nothing leaves before its record is on disk.
		if d.after[i].Sequence > done {
			invariant.Assert(false, "a message that waits for record %d would leave at %d", d.after[i].Sequence, done)
		}
		d.sends = append(d.sends, d.after[i].Send)
	}
	// The messages first: their receivers work while the loop here does.
	if len(d.sends) > 0 {
		d.send(d.sends)
	}
	clear(d.records)
	clear(d.after)
	clear(d.sends)
	d.records, d.after, d.sends, d.sequence = d.records[:0], d.after[:0], d.sends[:0], 0
	if last {
		d.mu.Lock()
		more = len(d.queue) > 0
		d.busy = more
		d.mu.Unlock()
	}
	if done > 0 {
		// The loop's turn is taken here if there is nothing else to do.
		d.post(replog.AppendDone{Sequence: done}, !last || more)
	}
	return more
}

// inOrder does what must come behind all earlier appends and before the
// batch's own: the batch's record holds what is true at its end.
func (d *disk) inOrder(w *diskWork) error {
	if w.founded != 0 {
		if err := d.storage.SetFounded(w.founded); err != nil {
			return fmt.Errorf("write the identity file: %w", err)
		}
	}
	if w.install == nil {
		return nil
	}
	if err := d.storage.InstallSnapshot(w.install.Meta, w.install.Promised, w.install.Entries); err != nil {
		return fmt.Errorf("install a snapshot: %w", err)
	}
	d.post(replog.SnapshotInstalled{Meta: w.install.Meta}, true)
	return nil
}
