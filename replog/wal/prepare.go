package wal

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/vfs"
)

// preparation is the file of the next segment, in the making or ready under
// its temporary name.
type preparation struct {
	number   uint64
	hurry    chan struct{} // closed when there is no time left for rests
	hurried  bool          // it is; guarded by writing
	unwanted chan struct{} // closed when nobody will use it
	done     chan struct{} // closed when file and err are set
	file     vfs.File
	err      error
}

// prepareNext begins to prepare the next segment once half of the active one
// is used, and hurries that on once three quarters are: the flush that begins the
// next segment waits for what is missing then. writing is held.
func (w *Log) prepareNext() {
	s := w.active
	b, ok := w.fs.(vfs.Background)
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
func (w *Log) preallocated(p *preparation) (vfs.File, error) {
	f, err := w.fs.Create(segmentName(p.number) + ondisk.TempSuffix)
	if err != nil {
		return nil, err
	}
	if g, ok := f.(vfs.Gradual); ok {
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
func (w *Log) takeFile(number uint64) (vfs.File, error) {
	p := w.next
	if p == nil {
		return w.fs.Create(segmentName(number) + ondisk.TempSuffix)
	}
	w.awaitNext()
	switch {
	case p.err == nil && p.number != number:
		return nil, fmt.Errorf("segment %d was prepared, and %d is due", p.number, number)
	case noRoom(p.err):
		// That was when the present segment was half full, perhaps hours ago: what
		// counts is the room there is now.
		return vfs.CreateTemp(w.fs, segmentName(number)+ondisk.TempSuffix)
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
func (w *Log) awaitNext() {
	w.next.hasten()
	<-w.next.done
	w.next = nil
}

// dropNext waits for the preparation and takes its file away; writing is held.
func (w *Log) dropNext() error {
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
	case !errors.Is(p.err, vfs.ErrUnwanted):
		return nil // it was not needed
	}
	if err := w.stop.Check(); !errors.Is(err, ondisk.ErrClosed) {
		return nil // after a failure nothing is changed; the next start removes it
	}
	return w.fs.Remove(segmentName(p.number) + ondisk.TempSuffix)
}
