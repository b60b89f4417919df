package replog

import (
	"errors"
	"fmt"
)

// Background is offered by an FS on which work may go on beside the caller's:
// then the next segment is preallocated while the present one fills, and
// nobody waits for 64 MiB of zeros. Without it everything happens in the calls
// themselves, in one order (the simulator's disks).
type Background interface {
	// Background runs work in a goroutine of its own.
	Background(work func())
}

// gradual is offered by a File that can be preallocated while flushes of another
// one go on: it is written in small parts, with a rest after each, so that a
// flush waits for little. Once hurry is closed it does not rest any more.
type gradual interface {
	PreallocateGradually(size int64, hurry <-chan struct{}) error
}

// preparation is the file of the next segment, in the making or ready under
// its temporary name.
type preparation struct {
	number uint64
	hurry  chan struct{} // closed when somebody waits for it
	done   chan struct{} // closed when file and err are set
	file   File
	err    error
}

// prepareNext begins to prepare the next segment once half of the active one
// is used; writing is held.
func (w *wal) prepareNext() {
	s := w.active
	b, ok := w.fs.(Background)
	if !ok || w.next != nil || s.end < s.size/2 {
		return
	}
	p := &preparation{number: s.number + 1, hurry: make(chan struct{}), done: make(chan struct{})}
	w.next = p
	b.Background(func() {
		defer close(p.done)
		p.file, p.err = w.preallocated(p)
	})
}

// preallocated makes the file of a segment, durable but for its name.
func (w *wal) preallocated(p *preparation) (File, error) {
	f, err := w.fs.Create(segmentName(p.number) + tempSuffix)
	if err != nil {
		return nil, err
	}
	if g, ok := f.(gradual); ok {
		err = g.PreallocateGradually(w.segmentBytes, p.hurry)
	} else {
		err = f.Preallocate(w.segmentBytes)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := f.Sync(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// takeFile gives the file for a new segment: the prepared one, which it waits
// for, or one that is made now. writing is held.
func (w *wal) takeFile(number uint64) (File, error) {
	p := w.next
	if p == nil {
		return w.fs.Create(segmentName(number) + tempSuffix)
	}
	w.awaitNext()
	if p.err == nil && p.number != number {
		p.err = fmt.Errorf("segment %d was prepared, and %d is due", p.number, number)
	}
	return p.file, p.err
}

// awaitNext ends the preparation, as soon as that can be.
func (w *wal) awaitNext() {
	close(w.next.hurry)
	<-w.next.done
	w.next = nil
}

// dropNext waits for the preparation and takes its file away; writing is held.
func (w *wal) dropNext() error {
	p := w.next
	if p == nil {
		return nil
	}
	w.awaitNext()
	if p.err != nil {
		return nil // it was not needed
	}
	if err := p.file.Close(); err != nil {
		return err
	}
	if err := w.stop.check(); !errors.Is(err, errClosed) {
		return nil // after a failure nothing is changed; the next start removes it
	}
	return w.fs.Remove(segmentName(p.number) + tempSuffix)
}
