package server

import (
	"fmt"
	"sync"
	"time"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
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
// messages go that depend on it.
//
// Its queue is bounded by the protocol: a leader has a window of slots in
// flight, a follower gets no more than its leader's window, and everything else
// is one item an event.
type disk struct {
	storage replog.StorageAPI
	// post reports to the loop; send sends messages to peers; fail stops the
	// replica. None of them blocks.
	post    func(replica.Event)
	send    func([]replog.Send)
	fail    func(error)
	metrics *shellMetrics

	mu      sync.Mutex
	queue   []diskWork
	closing bool
	wake    chan struct{}
	done    chan struct{}

	// Of the goroutine alone: what is gathered for the next flush.
	records  []*paxos.Record
	after    []replog.SendAfter
	sends    []replog.Send // of after, once it is durable
	sequence uint64        // highest gathered
}

func newDisk(storage replog.StorageAPI) *disk {
	return &disk{storage: storage, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// put queues a batch's work; the loop alone calls it.
func (d *disk) put(w diskWork) {
	d.mu.Lock()
	d.queue = append(d.queue, w)
	d.mu.Unlock()
	d.signal()
}

func (d *disk) signal() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
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
	for {
		d.mu.Lock()
		works, d.queue = d.queue, works[:0]
		closing := d.closing
		d.mu.Unlock()
		if len(works) == 0 {
			if closing {
				return
			}
			<-d.wake
			continue
		}
		err := d.perform(works)
		if err != nil {
			d.fail(err)
			return
		}
		clear(works)
		if cap(works) > keepLetters {
			works = nil
		}
	}
}

func (d *disk) perform(works []diskWork) error {
	for i := range works {
		w := &works[i]
		if w.install != nil || w.founded != 0 {
			// These keep their place behind what was appended before.
			if err := d.flush(); err != nil {
				return err
			}
			if err := d.inOrder(w); err != nil {
				return err
			}
		}
		for _, a := range w.appends {
			d.records = append(d.records, a.Record)
			d.sequence = max(d.sequence, a.Sequence)
		}
		for _, a := range w.after {
			d.after = append(d.after, a)
			d.sequence = max(d.sequence, a.Sequence)
		}
		if w.trim != 0 {
			if err := d.flush(); err != nil {
				return err
			}
			if err := d.storage.Trim(w.trim); err != nil {
				return fmt.Errorf("drop old log segments: %w", err)
			}
		}
	}
	return d.flush()
}

// flush makes durable what is gathered, reports it, and then sends what waited
// for it.
func (d *disk) flush() error {
	if len(d.records) > 0 {
		start := time.Now()
		if err := d.storage.Append(d.records); err != nil {
			return fmt.Errorf("write to the log: %w", err)
		}
		if err := d.storage.Sync(); err != nil {
			return fmt.Errorf("flush the log: %w", err)
		}
		d.metrics.flush.Observe(time.Since(start).Seconds())
		d.metrics.flushRecords.Observe(float64(len(d.records)))
	}
	if d.sequence == 0 {
		return nil
	}
	// The messages first: their receivers work while the loop here does.
	done := d.sequence
	for i := range d.after {
		// Durable before visible: nothing leaves before its record is on disk.
		invariant.Assert(d.after[i].Sequence <= done, "a message that waits for record %d would leave at %d", d.after[i].Sequence, done)
		d.sends = append(d.sends, d.after[i].Send)
	}
	if len(d.sends) > 0 {
		d.send(d.sends)
	}
	d.post(replog.AppendDone{Sequence: done})
	clear(d.records)
	clear(d.after)
	clear(d.sends)
	d.records, d.after, d.sends, d.sequence = d.records[:0], d.after[:0], d.sends[:0], 0
	return nil
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
	d.post(replog.SnapshotInstalled{Meta: w.install.Meta})
	return nil
}
