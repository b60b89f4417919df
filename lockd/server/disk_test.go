package server

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/pb"
	"github.com/seed70370324/lockd/replog/storage"
)

// history is what happened, in order, as the disk's neighbours see it.
type history struct {
	mu    sync.Mutex
	lines []string
}

func (h *history) add(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *history) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return strings.Join(h.lines, "; ")
}

// scriptedStorage writes what it is asked into a history. A Sync waits for the
// gate, if there is one.
type scriptedStorage struct {
	storage.API // nil: what is not scripted must not be called
	h           *history
	gate        chan error
}

func (s *scriptedStorage) Append(records []*paxos.Record) error {
	s.h.add("append %d", len(records))
	return nil
}

func (s *scriptedStorage) Sync() error {
	s.h.add("sync")
	if s.gate != nil {
		return <-s.gate
	}
	return nil
}

func (s *scriptedStorage) SetFounded(id uint64) error { s.h.add("founded %d", id); return nil }
func (s *scriptedStorage) Trim(slot paxos.Slot) error { s.h.add("trim %d", slot); return nil }
func (s *scriptedStorage) InstallSnapshot(m *pb.SnapshotMeta, _ paxos.Ballot, _ []paxos.Entry) error {
	s.h.add("install %d", m.GetSlot())
	return nil
}

func (s *scriptedStorage) SaveSnapshot(_ *pb.SnapshotMeta, snapshot replog.Snapshot) error {
	return snapshot.WriteSnapshot(io.Discard)
}

// asyncStorage is a scriptedStorage whose flushes are begun and finished.
type asyncStorage struct {
	*scriptedStorage
	begin error
}

func (s asyncStorage) StartSync() (bool, error) {
	s.h.add("start")
	return false, s.begin
}

func (s asyncStorage) AwaitSync() bool { return false }

func (s asyncStorage) WakeSync() {}

func (s asyncStorage) FinishSync() error {
	s.h.add("finish")
	if s.gate != nil {
		return <-s.gate
	}
	return nil
}

func scriptedDisk(s *scriptedStorage) *disk { return diskOn(s, s) }

func diskOn(st storage.API, s *scriptedStorage) *disk {
	d := newDisk(st)
	d.metrics = newShellMetrics()
	d.post = func(ev replica.Event, _ bool) {
		switch ev := ev.(type) {
		case replog.AppendDone:
			s.h.add("done %d", ev.Sequence)
		case replog.SnapshotInstalled:
			s.h.add("installed %d", ev.Meta.GetSlot())
		}
	}
	d.send = func(sends []replog.Send) {
		for _, m := range sends {
			s.h.add("send to %d", m.To)
		}
	}
	d.fail = func(err error) { s.h.add("fail: %v", err) }
	return d
}

func record(sequence uint64) replog.Append {
	return replog.Append{Sequence: sequence, Record: &paxos.Record{}}
}

func after(sequence uint64, to paxos.ReplicaID) replog.SendAfter {
	return replog.SendAfter{Sequence: sequence, Send: replog.Send{To: to}}
}

func TestDiskGathersAndKeepsOrder(t *testing.T) {
	s := &scriptedStorage{h: &history{}}
	d := scriptedDisk(s)
	// Everything below is queued before the goroutine starts: one flush.
	d.put(diskWork{appends: []replog.Append{record(1)}, after: []replog.SendAfter{after(1, 2)}})
	d.put(diskWork{appends: []replog.Append{record(2)}, after: []replog.SendAfter{after(2, 3)}})
	d.put(diskWork{after: []replog.SendAfter{after(3, 2)}})
	go d.run()
	d.close()
	want := "append 2; sync; send to 2; send to 3; send to 2; done 3"
	if got := s.h.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDiskNeedsNoFlushForNothing(t *testing.T) {
	s := &scriptedStorage{h: &history{}}
	d := scriptedDisk(s)
	d.put(diskWork{after: []replog.SendAfter{after(7, 2)}})
	go d.run()
	d.close()
	if got, want := s.h.String(), "send to 2; done 7"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDiskDoesTheRestInOrder(t *testing.T) {
	s := &scriptedStorage{h: &history{}}
	d := scriptedDisk(s)
	d.put(diskWork{appends: []replog.Append{record(1)}})
	d.put(diskWork{
		install: &replog.InstallSnapshot{Meta: &pb.SnapshotMeta{Slot: 9}}, founded: 5,
		appends: []replog.Append{record(2)}, trim: 4,
	})
	go d.run()
	d.close()
	want := "append 1; sync; done 1; founded 5; install 9; installed 9; append 1; sync; done 2; trim 4"
	if got := s.h.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDiskFailureLetsNothingOut(t *testing.T) {
	s := &scriptedStorage{h: &history{}, gate: make(chan error, 1)}
	s.gate <- errors.New("no more disk")
	d := scriptedDisk(s)
	d.put(diskWork{appends: []replog.Append{record(1)}, after: []replog.SendAfter{after(1, 2)}})
	go d.run()
	<-d.done
	d.put(diskWork{appends: []replog.Append{record(2)}, after: []replog.SendAfter{after(2, 2)}})
	d.close()
	want := "append 1; sync; fail: flush the log: no more disk"
	if got := s.h.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The first flush is begun by who asks for it, and the goroutine finishes it;
// what comes meanwhile is one flush of the goroutine's.
func TestDiskFlushIsBegunAtOnce(t *testing.T) {
	s := &scriptedStorage{h: &history{}, gate: make(chan error)}
	d := diskOn(asyncStorage{s, nil}, s)
	d.put(diskWork{appends: []replog.Append{record(1)}, after: []replog.SendAfter{after(1, 2)}})
	if got, want := s.h.String(), "append 1; start"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	d.put(diskWork{appends: []replog.Append{record(2)}, after: []replog.SendAfter{after(2, 3)}})
	d.put(diskWork{after: []replog.SendAfter{after(3, 2)}, founded: 5})
	go d.run()
	s.gate <- nil // the flush begun
	s.gate <- nil // the goroutine's own
	d.close()
	want := "append 1; start; finish; send to 2; done 1; append 1; sync; send to 3; done 2; founded 5; send to 2; done 3"
	if got := s.h.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// awaitingStorage is one whose flushes are begun for good, and wake who waits
// when they end.
type awaitingStorage struct {
	*scriptedStorage
	wakes  chan string
	inside chan struct{} // an AwaitSync is under way
}

func (s awaitingStorage) StartSync() (bool, error) {
	s.h.add("start")
	return true, nil
}

func (s awaitingStorage) FinishSync() error {
	s.h.add("finish")
	return nil
}

func (s awaitingStorage) AwaitSync() bool {
	s.inside <- struct{}{}
	s.h.add("%s", <-s.wakes)
	return true
}

func (s awaitingStorage) WakeSync() { s.wakes <- "woken" }

// To begin a flush wakes nobody: the goroutine waits for its end already. For
// everything else it is woken there.
func TestDiskWaitsForTheEndBeforehand(t *testing.T) {
	s := &scriptedStorage{h: &history{}}
	storage := awaitingStorage{s, make(chan string, 8), make(chan struct{}, 8)}
	d := diskOn(storage, s)
	go d.run()
	<-storage.inside
	d.put(diskWork{appends: []replog.Append{record(1)}, after: []replog.SendAfter{after(1, 2)}})
	d.put(diskWork{after: []replog.SendAfter{after(2, 3)}}) // meanwhile
	storage.wakes <- "ended"
	<-storage.inside
	d.put(diskWork{founded: 5})
	<-storage.inside
	d.close()
	want := "append 1; start; ended; finish; send to 2; done 1; send to 3; done 2; woken; founded 5; woken"
	if got := s.h.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A turn of the loop that a report causes may begin the next flush at once.
func TestDiskFlushIsBegunByTheReportOfTheLast(t *testing.T) {
	s := &scriptedStorage{h: &history{}}
	d := diskOn(asyncStorage{s, nil}, s)
	again := make(chan struct{})
	d.post = func(ev replica.Event, aside bool) {
		done := ev.(replog.AppendDone).Sequence
		s.h.add("done %d %v", done, aside)
		if done < 3 {
			d.put(diskWork{appends: []replog.Append{record(done + 1)}})
			s.h.add("turn over")
			return
		}
		close(again)
	}
	go d.run()
	d.put(diskWork{appends: []replog.Append{record(1)}})
	<-again
	d.close()
	want := "append 1; start; finish; done 1 false; append 1; start; turn over; finish; done 2 false; append 1; start; turn over; finish; done 3 false"
	if got := s.h.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestDiskFailureOfWhatWasBegunLetsNothingOut(t *testing.T) {
	broken := errors.New("no more disk")
	for _, tc := range []struct {
		begin, finish error
		want          string
	}{
		{broken, nil, "append 1; start; fail: flush the log: no more disk"},
		{nil, broken, "append 1; start; finish; fail: flush the log: no more disk"},
	} {
		s := &scriptedStorage{h: &history{}, gate: make(chan error, 1)}
		s.gate <- tc.finish
		d := diskOn(asyncStorage{s, tc.begin}, s)
		d.put(diskWork{appends: []replog.Append{record(1)}, after: []replog.SendAfter{after(1, 2)}})
		go d.run()
		<-d.done
		d.put(diskWork{appends: []replog.Append{record(2)}, after: []replog.SendAfter{after(2, 2)}})
		d.close()
		if got := s.h.String(); got != tc.want {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// endless is a snapshot that is never finished.
type endless struct{ begun chan struct{} }

func (e endless) WriteSnapshot(w io.Writer) error {
	close(e.begun)
	for {
		if _, err := w.Write(make([]byte, 10)); err != nil {
			return err
		}
	}
}

func TestSnapshotIsGivenUpAtStop(t *testing.T) {
	var events []replica.Event
	sl := newSlow(&scriptedStorage{h: &history{}})
	sl.post = func(ev replica.Event) { events = append(events, ev) }
	go sl.reads.run()
	go sl.saves.run()
	e := endless{make(chan struct{})}
	sl.save(&replog.SaveSnapshot{Meta: &pb.SnapshotMeta{Slot: 3}, Snapshot: e})
	<-e.begun
	sl.close()
	if len(events) != 1 {
		t.Fatalf("events: %v", events)
	}
	if ev, ok := events[0].(replog.SnapshotSaved); !ok || ev.Slot != 3 || !errors.Is(ev.Err, errStopping) {
		t.Errorf("got %#v", events[0])
	}
}

// brokenStorage fails at snapshots.
type brokenStorage struct {
	storage.API
	err error
}

func (s brokenStorage) ReceiveSnapshot(*pb.SnapshotChunk) (*pb.SnapshotMeta, any, error) {
	return nil, nil, s.err
}
func (s brokenStorage) SaveSnapshot(*pb.SnapshotMeta, replog.Snapshot) error { return s.err }

// TestStoppedStorageEndsTheReplica: a failure at a snapshot's file is borne, unless
// the storage writes nothing any more since.
func TestStoppedStorageEndsTheReplica(t *testing.T) {
	for _, test := range []struct {
		err  error
		ends bool
	}{
		{io.ErrUnexpectedEOF, false},
		{fmt.Errorf("saving: %w", &ondisk.StoppedError{Doing: "naming a file", Err: io.ErrUnexpectedEOF}), true},
	} {
		sl := newSlow(brokenStorage{err: test.err})
		var events []replica.Event
		var ended []error
		var mu sync.Mutex
		sl.post = func(ev replica.Event) { mu.Lock(); events = append(events, ev); mu.Unlock() }
		sl.fail = func(err error) { mu.Lock(); ended = append(ended, err); mu.Unlock() }
		sl.receive(&pb.SnapshotChunk{})
		sl.save(&replog.SaveSnapshot{Meta: &pb.SnapshotMeta{Slot: 3}})
		var jobs sync.WaitGroup
		jobs.Add(2)
		sl.reads.put(jobs.Done)
		sl.saves.put(jobs.Done)
		go sl.reads.run()
		go sl.saves.run()
		jobs.Wait()
		sl.close()
		if len(ended) == 2 != test.ends || len(events) == 2 == test.ends {
			t.Errorf("%v: %d events, and it has failed %d times", test.err, len(events), len(ended))
		}
		for _, err := range ended {
			if !errors.Is(err, test.err) {
				t.Errorf("it fails with %v", err)
			}
		}
	}
}

func TestWorkerIsBounded(t *testing.T) {
	w := newWorker()
	var ran []int
	for i := range maxJobs + 10 {
		if ok := w.put(func() { ran = append(ran, i) }); ok != (i < maxJobs) {
			t.Fatalf("job %d: taken %v", i, ok)
		}
	}
	last := make(chan struct{})
	go w.run()
	for !w.put(func() { close(last) }) {
	}
	<-last
	w.close()
	want := make([]int, maxJobs)
	for i := range want {
		want[i] = i
	}
	if !slices.Equal(ran, want) {
		t.Errorf("ran %d jobs: %v", len(ran), ran)
	}
	if w.put(func() {}) {
		t.Error("a closed worker took a job")
	}
}
