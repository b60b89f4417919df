package server

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
)

// worker runs jobs one after the other on a goroutine of its own, so that
// neither the loop nor the log's flushes wait for them.
type worker struct {
	mu      sync.Mutex
	jobs    []func()
	closing bool
	wake    chan struct{}
	done    chan struct{}
}

// maxJobs bounds what a worker has queued. Peers ask one thing at a time, so a
// longer queue is some peer's fault, and it repeats what is refused.
const maxJobs = 256

var errBusy = errors.New("too much slow disk work is queued")

func newWorker() *worker {
	w := &worker{wake: make(chan struct{}, 1), done: make(chan struct{})}
	return w
}

// put queues a job; false: too many are queued, or the worker is closing.
func (w *worker) put(job func()) bool {
	w.mu.Lock()
	ok := !w.closing && len(w.jobs) < maxJobs
	if ok {
		w.jobs = append(w.jobs, job)
	}
	w.mu.Unlock()
	if ok {
		w.signal()
	}
	return ok
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// close drops what has not begun and waits for what has.
func (w *worker) close() {
	w.mu.Lock()
	w.closing, w.jobs = true, nil
	w.mu.Unlock()
	w.signal()
	<-w.done
}

func (w *worker) run() {
	defer close(w.done)
	for {
		w.mu.Lock()
		var job func()
		if len(w.jobs) > 0 {
			job = w.jobs[0]
			w.jobs[0] = nil
			w.jobs = w.jobs[1:]
		}
		closing := w.closing
		w.mu.Unlock()
		switch {
		case job != nil:
			job()
		case closing:
			return
		default:
			<-w.wake
		}
	}
}

// slow is the disk work beside the log: reads for peers that lag on one
// goroutine, the writing of snapshots, which may take long, on another. What it
// cannot do it reports as failed; the replica asks again.
type slow struct {
	storage storage.API
	post    func(replica.Event)
	fail    func(error)
	reads   *worker
	saves   *worker
	stop    atomic.Bool // a snapshot being written is given up
}

func newSlow(storage storage.API) *slow {
	return &slow{storage: storage, reads: newWorker(), saves: newWorker()}
}

func (s *slow) close() {
	s.stop.Store(true)
	s.reads.close()
	s.saves.close()
}

// readLog reads chosen entries for a peer.
func (s *slow) readLog(r paxos.ReadLog) {
	ok := s.reads.put(func() {
		entries, trimmed, err := s.storage.Read(r.From, int(r.Limit), r.UpTo)
		if err != nil {
			// What was durable cannot be read back: this disk is not to be
			// trusted any more.
			s.fail(fmt.Errorf("read the log from slot %d: %w", r.From, err))
			return
		}
		s.post(replog.ReadDone{To: r.To, Entries: entries, Trimmed: trimmed})
	})
	if !ok {
		s.post(replog.ReadDone{To: r.To})
	}
}

// readSnapshot reads a piece of a snapshot for a peer.
func (s *slow) readSnapshot(r replog.SnapshotRead) {
	ok := s.reads.put(func() {
		chunk, err := s.storage.ReadSnapshot(r.Slot, r.Offset, r.Limit)
		s.post(replog.SnapshotReadDone{To: r.To, Chunk: chunk, Err: err})
	})
	if !ok {
		s.post(replog.SnapshotReadDone{To: r.To, Err: errBusy})
	}
}

// receive adds a piece to the snapshot that a peer sends.
func (s *slow) receive(c *pb.SnapshotChunk) {
	ok := s.reads.put(func() {
		meta, state, err := s.storage.ReceiveSnapshot(c)
		if s.stopped("receive a snapshot", err) {
			return
		}
		s.post(replog.SnapshotReceived{Meta: meta, State: state, Err: err})
	})
	if !ok {
		s.post(replog.SnapshotReceived{Err: errBusy})
	}
}

// save writes a snapshot of our own.
func (s *slow) save(o *replog.SaveSnapshot) {
	slot := paxos.Slot(o.Meta.GetSlot())
	ok := s.saves.put(func() {
		err := s.storage.SaveSnapshot(o.Meta, stoppable{o.Snapshot, &s.stop})
		if s.stopped("save a snapshot", err) {
			return
		}
		s.post(replog.SnapshotSaved{Slot: slot, Err: err})
	})
	if !ok {
		s.post(replog.SnapshotSaved{Slot: slot, Err: errBusy})
	}
}

// stopped reports whether an error has ended all writing, and fails if so: a replica
// that has nothing to append would not notice otherwise, and stay behind for good.
func (s *slow) stopped(doing string, err error) bool {
	var stopped *ondisk.StoppedError
	if !errors.As(err, &stopped) {
		return false
	}
	s.fail(fmt.Errorf("%s: %w", doing, err))
	return true
}

// stoppable makes the writing of a snapshot end early when the replica stops;
// what was written of it is left behind and ignored.
type stoppable struct {
	replog.Snapshot
	stop *atomic.Bool
}

func (s stoppable) WriteSnapshot(w io.Writer) error {
	return s.Snapshot.WriteSnapshot(stoppableWriter{w, s.stop})
}

type stoppableWriter struct {
	w    io.Writer
	stop *atomic.Bool
}

func (w stoppableWriter) Write(b []byte) (int, error) {
	if w.stop.Load() {
		return 0, errStopping
	}
	return w.w.Write(b)
}
