package replog

import (
	"errors"
	"fmt"
	"syscall"
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
// flush waits for little. Once hurry is closed it does not rest any more; once
// unwanted is, it gives up with an error.
type gradual interface {
	PreallocateGradually(size int64, hurry, unwanted <-chan struct{}) error
}

var errUnwanted = errors.New("the file is not wanted any more")

// preparation is the file of the next segment, in the making or ready under
// its temporary name.
type preparation struct {
	number   uint64
	hurry    chan struct{} // closed when there is no time left for rests
	hurried  bool          // it is; guarded by writing
	unwanted chan struct{} // closed when nobody will use it
	done     chan struct{} // closed when file and err are set
	file     File
	err      error
}

// prepareNext begins to prepare the next segment once half of the active one
// is used, and hurries that on once three quarters are: the flush that begins the
// next segment waits for what is missing then. writing is held.
func (w *wal) prepareNext() {
	s := w.active
	b, ok := w.fs.(Background)
	switch {
	case !ok || s.end < s.size/2:
		return
	case w.next != nil:
		if s.end >= s.size/4*3 {
			w.next.hasten()
		}
		return
	}
	p := &preparation{number: s.number + 1, hurry: make(chan struct{}), unwanted: make(chan struct{}), done: make(chan struct{})}
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
		err = g.PreallocateGradually(w.segmentBytes, p.hurry, p.unwanted)
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

// takeFile returns the file for a new segment: the prepared one, which it waits
// for, or one that is made now. writing is held.
func (w *wal) takeFile(number uint64) (File, error) {
	p := w.next
	if p == nil {
		return w.fs.Create(segmentName(number) + tempSuffix)
	}
	w.awaitNext()
	switch {
	case p.err == nil && p.number != number:
		return nil, fmt.Errorf("segment %d was prepared, and %d is due", p.number, number)
	case noRoom(p.err):
		// That was when the present segment was half full, perhaps hours ago: what
		// counts is the room there is now.
		return createTemp(w.fs, segmentName(number)+tempSuffix)
	}
	return p.file, p.err
}

// noRoom reports whether the disk, or what this user may use of it, was full.
func noRoom(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// hasten ends the rests; whoever calls it holds writing.
func (p *preparation) hasten() {
	if !p.hurried {
		p.hurried = true
		close(p.hurry)
	}
}

// awaitNext waits for the end of the preparation.
func (w *wal) awaitNext() {
	w.next.hasten()
	<-w.next.done
	w.next = nil
}

// dropNext waits for the preparation and takes its file away; writing is held.
func (w *wal) dropNext() error {
	p := w.next
	if p == nil {
		return nil
	}
	close(p.unwanted)
	w.awaitNext()
	switch {
	case p.err == nil:
		if err := p.file.Close(); err != nil {
			return err
		}
	case !errors.Is(p.err, errUnwanted):
		return nil // it was not needed
	}
	if err := w.stop.check(); !errors.Is(err, errClosed) {
		return nil // after a failure nothing is changed; the next start removes it
	}
	return w.fs.Remove(segmentName(p.number) + tempSuffix)
}
