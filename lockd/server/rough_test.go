package server

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/replog/vfs"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// Garbage on every port is cut off, and the cell goes on.
func TestGarbageOnEveryPort(t *testing.T) {
	c := newTestCell(t, 3)
	c.startAll()
	master := c.master()
	a := c.dial(master)
	a.open()
	a.put("/x", "before")
	garbage := []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		strings.Repeat("\x00", 1000),
		strings.Repeat("\xff", 1000),
		wire.Preface,
		wire.Preface + "\xff\xff\xff\xff\x01\x01\x00\x00",
		wire.Preface + "\x00\x00\x00\x04\x01\x01\x00\x00\xff\xff\xff\xff",
		wire.Preface + "\x00\x00\x00\x04\x03\x01\x00\x00\xff\xff\xff\xff",
		wire.Preface + "\x00\x00\x00\x00\x03\x01\x00\x00\x00\x00\x00\x00\x03\x01\x00\x00",
		wire.Preface + "\x00\x00\x00\x00\x63\x07\x07\x07",
		"",
	}
	for _, m := range c.members {
		s := c.running[m.Name].s
		for _, address := range []string{s.ClientAddress(), s.PeerAddress(), s.HTTPAddress()} {
			for _, g := range garbage {
				nc, err := net.Dial("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				// The replica may hang up before all of it is written, or answer.
				_, _ = io.WriteString(nc, g)
				if err := nc.(*net.TCPConn).CloseWrite(); err == nil {
					if err := nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
						t.Fatal(err)
					}
					_, err = io.Copy(io.Discard, nc)
					var timeout net.Error
					if errors.As(err, &timeout) && timeout.Timeout() {
						t.Errorf("%s kept a connection that sent %.20q", address, g)
					}
				}
				_ = nc.Close()
			}
		}
	}
	a.put("/x", "after")
	if got := a.get("/x"); got != "after" {
		t.Errorf("/x is %q", got)
	}
	if now := c.master(); now != master {
		t.Errorf("garbage changed the master from %s to %s", master, now)
	}
}

func TestOversizedFrame(t *testing.T) {
	c := newTestCell(t, 1)
	c.startAll()
	a := c.dial(c.master())
	a.open()
	a.send(&pb.ClientMessage{Body: &pb.ClientMessage_Hello{Hello: &pb.Hello{Client: strings.Repeat("x", 3<<20)}}})
	wantFatal(t, a.w, pb.ErrorCode_FRAME_TOO_LARGE, "limit")
	b := c.dial("n1")
	b.attach(a)
	b.put("/x", "still there")
}

// A client that asks for much at once and reads what it gets is not cut off.
func TestMuchAtOnce(t *testing.T) {
	c := newTestCell(t, 1)
	c.startAll()
	a := c.dial(c.master())
	a.open()
	big := strings.Repeat("x", 1<<20)
	for i := 0; i < 20; i++ {
		a.put(fmt.Sprintf("/big-%02d", i), big)
	}
	// The state of a watch comes whole.
	a.send(&pb.ClientMessage{Body: &pb.ClientMessage_Watch{Watch: &pb.Watch{Id: 5, Path: "/", Scope: pb.WatchScope_SUBTREE}}})
	bytes := 0
	for end := false; !end; {
		w := a.receive().GetWatch()
		if w == nil {
			t.Fatal("something else than the state of the watch")
		}
		for _, item := range w.GetItems() {
			bytes += len(item.GetData())
		}
		end = w.GetEnd()
	}
	if bytes != 20<<20 {
		t.Errorf("the watch has %d bytes", bytes)
	}
	// Reads that are put off are answered in the end.
	const reads = 100
	ask := func(id uint64) {
		a.send(&pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{
			Id: id, Op: &pb.Read_Node{Node: &pb.ReadNode{Path: fmt.Sprintf("/big-%02d", id%20)}}}}})
	}
	for id := uint64(1); id <= reads; id++ {
		ask(id)
	}
	for answered := 0; answered < reads; {
		m := a.receive()
		switch e := m.GetError(); {
		case m.GetRead().GetNode() != nil:
			answered++
		case e.GetCode() == pb.ErrorCode_OVERLOADED && !e.GetFatal() && e.GetRetryAfterMs() > 0:
			ask(e.GetId())
		default:
			t.Fatalf("instead of an answer: %v", m)
		}
	}
}

func TestHealthAndMetrics(t *testing.T) {
	c := newTestCell(t, 3)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c.start("n1")
	base := "http://" + c.running["n1"].s.HTTPAddress()
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	if code, text := get("/healthz"); code != 200 || text != "ok\n" {
		t.Errorf("healthz: %d %q", code, text)
	}
	waitFor(t, "alone it says what it waits for", func() bool {
		code, text := get("/readyz")
		return code == 503 && contains(text, "not founded")
	})
	c.start("n2")
	c.start("n3")
	master := c.master()
	waitFor(t, "it becomes ready", func() bool { code, _ := get("/readyz"); return code == 200 })
	a := c.dial(master)
	a.open()
	a.put("/x", "one")
	if master != "n1" {
		base = "http://" + c.running[master].s.HTTPAddress()
	}
	_, text := get("/metrics")
	for _, want := range []string{
		"lockd_up 1", "lockd_is_master 1", "lockd_sessions 1", "lockd_requests_total 1", "lockd_applied_slot ", "lockd_accepts_held_back_total ", "lockd_thrift_misses_total ", "lockd_log_flush_seconds_count ",
		"lockd_loop_batch_events_count ", "go_goroutines ",
	} {
		if !hasLine(text, want) {
			t.Errorf("metrics have no line %q", want)
		}
	}
}

func hasLine(text, prefix string) bool {
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		if strings.HasPrefix(s.Text(), prefix) {
			return true
		}
	}
	return false
}

// failingFS is a file system whose files fail to flush from some point on.
type failingFS struct {
	vfs.FS
	broken chan struct{} // closed: from now on
}

var errBroken = errors.New("the disk is broken")

func (f failingFS) wrap(file vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return failingFile{file, f}, nil
}

func (f failingFS) Create(name string) (vfs.File, error) { return f.wrap(f.FS.Create(name)) }
func (f failingFS) Open(name string) (vfs.File, error)   { return f.wrap(f.FS.Open(name)) }

type failingFile struct {
	vfs.File
	fs failingFS
}

func (f failingFile) Sync() error {
	if err := f.fs.failed(); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f failingFile) WriteSync(p []byte, off int64) error {
	if err := f.fs.failed(); err != nil {
		return err
	}
	return f.File.WriteSync(p, off)
}

func (f failingFS) failed() error {
	select {
	case <-f.broken:
		return errBroken
	default:
		return nil
	}
}

// A replica whose disk fails stops at once and says so; what it did not make
// durable it does not acknowledge.
func TestDiskFailureStopsTheReplica(t *testing.T) {
	c := newTestCell(t, 1)
	broken := make(chan struct{})
	c.change = func(cfg *Config) { cfg.FS = failingFS{osfs(t, cfg.DataDir), broken} }
	c.startAll()
	a := c.dial(c.master())
	a.open()
	a.put("/x", "one")
	close(broken)
	a.number++
	a.send(putMessage(a, "/x", "two"))
	if m, err := readServer(a.w); err == nil && m.GetReply() != nil {
		t.Errorf("acknowledged without a disk: %v", m)
	}
	r := c.running["n1"]
	delete(c.running, "n1")
	select {
	case err := <-r.done:
		if !errors.Is(err, errBroken) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("a replica without a disk goes on")
	}
	if !errors.Is(r.s.Failure(), errBroken) {
		t.Error(fmt.Sprint("failure: ", r.s.Failure()))
	}
}

func osfs(t *testing.T, dir string) vfs.FS {
	t.Helper()
	fs, err := vfs.NewOSFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fs
}
