package e2e

import (
	"bufio"
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// longWatch has the counting watchers count 100,000 changes.
var longWatch = os.Getenv("LOCKD_LONG") != ""

// counted is what a watcher was told.
type counted struct {
	created, deleted, marked int
	sum                      uint64 // of all events, in their order
	took                     time.Duration
	err                      error
}

// count follows all changes below path until n have been told.
func count(ctx context.Context, r *client.Reader, path string, n int, ready func()) (c counted) {
	begin := time.Now()
	sum := fnv.New64a()
	there := map[string]bool{}
	last := uint64(0)
	for e, err := range r.Watch(ctx, path, client.Subtree(), client.WithoutData()) {
		switch {
		case err != nil:
			c.err = err
			return c
		case e.Kind == client.EventReady:
			ready()
			continue
		case e.Kind == client.EventPresent:
			continue
		case e.Revision <= last:
			c.err = fmt.Errorf("%v %s of revision %d comes behind revision %d", e.Kind, e.Path, e.Revision, last)
			return c
		}
		last = e.Revision
		if e.Missed {
			c.marked++
		}
		_, _ = fmt.Fprintln(sum, e.Kind, e.Path, e.Revision)
		switch e.Kind {
		case client.EventChanged:
			if there[e.Path] {
				c.err = fmt.Errorf("%s is created twice", e.Path)
				return c
			}
			there[e.Path] = true
			c.created++
		case client.EventDeleted:
			if !there[e.Path] || e.Reason != client.ReasonDeleted {
				c.err = fmt.Errorf("%s is deleted (%v), there: %v", e.Path, e.Reason, there[e.Path])
				return c
			}
			delete(there, e.Path)
			c.deleted++
		}
		if c.created+c.deleted >= n {
			break
		}
	}
	c.sum, c.took = sum.Sum64(), time.Since(begin)
	return c
}

// TestCountingWatchers has eight writers create and delete nodes, and four watchers
// count: each is told every change, in one order for all, none marked as missed.
func TestCountingWatchers(t *testing.T) {
	const writers, streams, watchers = 8, 16, 4
	each := 10 // creations and deletions of a stream
	switch {
	case longWatch:
		each = 391 // 100,096 in all
	case !testing.Short():
		each = 78 // 19,968
	}
	total := writers * streams * each * 2
	c := startCell(t, 3)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	s := c.dial()
	if _, err := s.Put(ctx, "/count", nil); err != nil {
		t.Fatal(err)
	}
	var ready, told sync.WaitGroup
	results := make([]counted, watchers)
	for i := range watchers {
		r, err := client.Connect(ctx, c.clients())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close() }()
		ready.Add(1)
		told.Go(func() {
			var once sync.Once
			results[i] = count(ctx, r, "/count", total, func() { once.Do(ready.Done) })
			once.Do(ready.Done)
		})
	}
	ready.Wait()
	begin := time.Now()
	var wrote sync.WaitGroup
	for w := range writers {
		s := c.dial()
		for stream := range streams {
			wrote.Go(func() {
				for k := range each {
					path := fmt.Sprintf("/count/%d-%d-%d", w, stream, k)
					_, err := s.Create(ctx, path, nil)
					if err == nil {
						err = s.Delete(ctx, path)
					}
					if err != nil {
						t.Errorf("%s: %v", path, err)
						cancel()
						return
					}
				}
			})
		}
	}
	wrote.Wait()
	written := time.Since(begin)
	told.Wait()
	t.Logf("%d creations and deletions in %v (%.0f a second)", total, written.Round(time.Millisecond), float64(total)/written.Seconds())
	for i, r := range results {
		t.Logf("watcher %d: %d creations, %d deletions, %d marked, order %016x, %v", i, r.created, r.deleted, r.marked, r.sum, r.took.Round(time.Millisecond))
		if r.err != nil || r.created != total/2 || r.deleted != total/2 || r.marked != 0 || r.sum != results[0].sum {
			t.Errorf("watcher %d: %+v; wrote %d", i, r, total)
		}
	}
}

// TestFrozenWatcher stops a watching process for longer than the service keeps
// changes for it: when it goes on it is told that it missed some.
func TestFrozenWatcher(t *testing.T) {
	const writes = 80
	c := startCell(t, 1)
	s := c.dial()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if _, err := s.Put(ctx, "/frozen", nil); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, program("lockctl"), "--endpoints", strings.Join(c.clients(), ","), "watch", "--content", "/frozen")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewReaderSize(out, 1<<20)
	line := func() string {
		l, err := lines.ReadString('\n')
		if err != nil && err != io.EOF {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal("the watch has ended")
		}
		return l
	}
	for !strings.HasPrefix(line(), "ready") {
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	big := strings.Repeat("x", 1<<20-32)
	for i := range writes {
		if _, err := s.Put(ctx, "/frozen", []byte(fmt.Sprintf("<%d>%s", i, big))); err != nil {
			t.Fatal(err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	told, marked := 0, 0
	for last := fmt.Sprintf("<%d>", writes-1); ; {
		l := line()
		told++
		if strings.HasSuffix(l, " missed\n") {
			marked++
		}
		if strings.Contains(l, last) {
			break
		}
	}
	if marked == 0 || told >= writes {
		t.Errorf("a process that was frozen was told %d of %d writes, %d marked", told, writes, marked)
	}
	t.Logf("%d of %d writes were told, %d of them marked", told, writes, marked)
}
