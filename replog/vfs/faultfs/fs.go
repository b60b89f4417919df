package faultfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/seed70370324/lockd/replog/vfs"
)

// Errors that injected faults give.
var (
	// ErrStopped: the power is gone (StopAfter); only Crash and Kill go on.
	ErrStopped = errors.New("faultfs: the machine has stopped")
	// ErrNoSpace is the error of a full disk.
	ErrNoSpace error = syscall.ENOSPC
	errBusy          = errors.New("faultfs: locked already")
)

// Op is a kind of operation that changes something.
type Op uint8

// The operations that are counted and can be made to fail.
const (
	Write Op = iota
	Sync
	Create
	Rename
	Remove
	Resize // Preallocate and Truncate
	SyncDir
	Mkdir
	kinds
)

func (o Op) String() string {
	return [...]string{"write", "sync", "create", "rename", "remove", "resize", "syncdir", "mkdir"}[o]
}

// FS implements vfs.FS. It may be used by several goroutines.
type FS struct {
	mu     sync.Mutex
	root   *dir
	locked bool

	ops       int
	stopAfter int // operations left; -1 no end
	faults    [kinds]fault
	spaceLeft int64 // bytes that files may still grow; -1 no limit
	trace     func(op Op, name string)
}

type fault struct {
	in    int // fails when it reaches 0 by counting down; 0 none
	err   error
	stays bool // and each one after that
}

var (
	_ vfs.FS     = (*FS)(nil)
	_ vfs.Locker = (*FS)(nil)
)

// dir is a directory: its names, each a *inode or a *dir.
type dir struct {
	seen    map[string]any
	durable map[string]any
	pending []renaming
}

// renaming is a change of names that was not synced: nil takes a name away.
type renaming struct {
	names []string
	nodes []any
}

func newDir() *dir { return &dir{seen: map[string]any{}, durable: map[string]any{}} }

// New gives an empty file system.
func New() *FS { return &FS{root: newDir(), stopAfter: -1, spaceLeft: -1} }

func (d *dir) change(r renaming) {
	apply(d.seen, r)
	d.pending = append(d.pending, r)
}

func apply(names map[string]any, r renaming) {
	for i, name := range r.names {
		if r.nodes[i] == nil {
			delete(names, name)
		} else {
			names[name] = r.nodes[i]
		}
	}
}

// begin counts an operation and says whether it fails.
func (f *FS) begin(op Op, name string) error {
	if f.stopAfter == 0 {
		return ErrStopped
	}
	if f.stopAfter > 0 {
		f.stopAfter--
	}
	f.ops++
	if f.trace != nil {
		f.trace(op, name)
	}
	if t := &f.faults[op]; t.in > 0 {
		if t.in--; t.in == 0 {
			if t.stays {
				t.in = 1
			}
			return fmt.Errorf("%s %s: %w", op, name, t.err)
		}
	}
	return nil
}

func split(name string) []string {
	if name == "" || name == "." {
		return nil
	}
	return strings.Split(name, "/")
}

// find gives the directory a name is in, and its last part.
func (f *FS) find(name string) (*dir, string, error) {
	parts := split(name)
	if len(parts) == 0 || slices.Contains(parts, "..") || slices.Contains(parts, "") {
		return nil, "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	d, err := f.dir(parts[:len(parts)-1], name)
	return d, parts[len(parts)-1], err
}

func (f *FS) dir(parts []string, name string) (*dir, error) {
	d := f.root
	for _, p := range parts {
		next, ok := d.seen[p].(*dir)
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		}
		d = next
	}
	return d, nil
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, last, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if _, ok := d.seen[last]; ok {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	if err := f.begin(Create, name); err != nil {
		return nil, err
	}
	n := newInode()
	d.change(renaming{[]string{last}, []any{n}})
	return &file{fs: f, name: name, n: n}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookUp(name)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, name: name, n: n}, nil
}

func (f *FS) lookUp(name string) (*inode, error) {
	d, last, err := f.find(name)
	if err != nil {
		return nil, err
	}
	n, ok := d.seen[last].(*inode)
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return n, nil
}

// Rename implements vfs.FS, within one directory.
func (f *FS) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, a, err := f.find(from)
	if err != nil {
		return err
	}
	e, b, err := f.find(to)
	if err != nil {
		return err
	}
	node := d.seen[a]
	switch {
	case node == nil:
		return &fs.PathError{Op: "rename", Path: from, Err: fs.ErrNotExist}
	case d != e:
		return &fs.PathError{Op: "rename", Path: to, Err: fs.ErrInvalid}
	}
	if err := f.begin(Rename, from); err != nil {
		return err
	}
	if a != b {
		d.change(renaming{[]string{a, b}, []any{nil, node}})
	}
	return nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, last, err := f.find(name)
	if err != nil {
		return err
	}
	if d.seen[last] == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	if err := f.begin(Remove, name); err != nil {
		return err
	}
	if n, ok := d.seen[last].(*inode); ok && f.spaceLeft >= 0 {
		f.spaceLeft += n.seen.size
	}
	d.change(renaming{[]string{last}, []any{nil}})
	return nil
}

// List implements vfs.FS.
func (f *FS) List(name string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.dir(split(name), name)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(d.seen)), nil
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.root
	for _, p := range split(name) {
		next, ok := d.seen[p].(*dir)
		if !ok {
			if d.seen[p] != nil {
				return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
			}
			if err := f.begin(Mkdir, name); err != nil {
				return err
			}
			next = newDir()
			d.change(renaming{[]string{p}, []any{next}})
		}
		d = next
	}
	return nil
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	d, err := f.dir(split(name), name)
	if err != nil {
		return err
	}
	if err := f.begin(SyncDir, name); err != nil {
		if !errors.Is(err, ErrStopped) {
			d.pending = nil
		}
		return err
	}
	for _, r := range d.pending {
		apply(d.durable, r)
	}
	d.pending = nil
	return nil
}

// Lock implements vfs.Locker.
func (f *FS) Lock() (release func() error, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.locked {
		return nil, errors.Join(&vfs.InUseError{Dir: "faultfs"}, errBusy)
	}
	f.locked = true
	return func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.locked = false
		return nil
	}, nil
}

type mode uint8

const (
	anything mode = iota
	ordered
	lost
	chosen
)

// loss says what a power cut takes.
type loss struct {
	mode mode
	rng  *rand.Rand
	keep func(name string, offset int64) bool // for chosen
}

// Crash gives a file system as it may be after a power cut: each unsynced
// sector and name is kept or lost at random, in any combination. The original
// is not changed; faults that were set are not taken over, and nobody holds the
// lock.
func (f *FS) Crash(rng *rand.Rand) *FS { return f.after(loss{mode: anything, rng: rng}) }

// CrashOrdered is a milder power cut, one that keeps the order of what was
// done: of each file and each directory some first part of what was not synced
// is kept, the last write perhaps torn.
func (f *FS) CrashOrdered(rng *rand.Rand) *FS { return f.after(loss{mode: ordered, rng: rng}) }

// CrashLost is a power cut that leaves nothing of what was not synced.
func (f *FS) CrashLost() *FS { return f.after(loss{mode: lost}) }

// CrashKeep is a power cut that keeps, of what was not synced, exactly the
// sectors that keep names (by the file and the offset at which the sector
// begins), with the newest content, and all names.
func (f *FS) CrashKeep(keep func(name string, offset int64) bool) *FS {
	return f.after(loss{mode: chosen, keep: keep})
}

func (f *FS) after(l loss) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := New()
	out.root = f.root.crash(l, "", map[*inode]*inode{})
	return out
}

// Unsynced counts the changes of files and names that a power cut may take.
func (f *FS) Unsynced() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.root.unsynced()
}

func (d *dir) unsynced() int {
	n := len(d.pending)
	for _, node := range d.seen {
		switch x := node.(type) {
		case *dir:
			n += x.unsynced()
		case *inode:
			n += len(x.pending)
		}
	}
	return n
}

func (d *dir) crash(l loss, path string, done map[*inode]*inode) *dir {
	rng, mode := l.rng, l.mode
	names := maps.Clone(d.durable)
	count := len(d.pending)
	if count > 0 && mode == ordered {
		count = rng.IntN(count + 1)
	}
	for _, r := range d.pending[:count] {
		if mode == ordered || mode == chosen || mode == anything && rng.IntN(2) == 0 {
			apply(names, r)
		}
	}
	out := newDir()
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch n := names[name].(type) {
		case *dir:
			out.durable[name] = n.crash(l, path+name+"/", done)
		case *inode:
			if done[n] == nil {
				done[n] = n.crash(l, path+name)
			}
			out.durable[name] = done[n]
		}
	}
	out.seen = maps.Clone(out.durable)
	return out
}

// Kill gives the file system that the next process finds after this one was
// killed while the power stayed: everything is there, synced or not. The
// original is not changed.
func (f *FS) Kill() *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := New()
	out.root = f.root.same(map[any]any{})
	return out
}

func (d *dir) same(done map[any]any) *dir {
	out := newDir()
	copied := func(node any) any {
		if node == nil || done[node] != nil {
			return done[node]
		}
		switch n := node.(type) {
		case *dir:
			done[node] = n.same(done)
		case *inode:
			done[node] = n.same()
		}
		return done[node]
	}
	for name, node := range d.seen {
		out.seen[name] = copied(node)
	}
	for name, node := range d.durable {
		out.durable[name] = copied(node)
	}
	for _, r := range d.pending {
		c := renaming{names: r.names, nodes: make([]any, len(r.nodes))}
		for i, node := range r.nodes {
			c.nodes[i] = copied(node)
		}
		out.pending = append(out.pending, c)
	}
	return out
}
