package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start serves with a counter and the given readiness.
func start(t *testing.T, ready func() error) (base string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "lockd_test_total", Help: "A test."})
	r.MustRegister(c)
	c.Add(42)
	s := Start(l, Options{Ready: func(context.Context) error { return ready() }, Metrics: r, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		s.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	return "http://" + l.Addr().String()
}

func ask(t *testing.T, method, url string, body io.Reader) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
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

func TestRoutes(t *testing.T) {
	var ready error
	base := start(t, func() error { return ready })
	for _, tc := range []struct {
		method, path string
		code         int
		text         string
	}{
		{"GET", "/healthz", 200, "ok"},
		{"HEAD", "/healthz", 200, ""},
		{"GET", "/readyz", 200, "ready"},
		{"GET", "/metrics", 200, "lockd_test_total 42"},
		{"GET", "/debug/pprof/", 200, "goroutine"},
		{"GET", "/debug/pprof/goroutine?debug=1", 200, "goroutine profile"},
		{"GET", "/", 200, "/metrics"},
		{"GET", "/nothing", 404, "not found"},
		{"POST", "/healthz", 405, ""},
		{"DELETE", "/metrics", 405, ""},
	} {
		code, text := ask(t, tc.method, base+tc.path, nil)
		if code != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("%s %s: %d %.200q, want %d with %q", tc.method, tc.path, code, text, tc.code, tc.text)
		}
	}
	ready = errors.New("no master is known")
	if code, text := ask(t, "GET", base+"/readyz", nil); code != 503 || text != "not ready: no master is known\n" {
		t.Errorf("not ready: %d %q", code, text)
	}
}

func TestBounds(t *testing.T) {
	base := start(t, func() error { return nil })
	nc, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = nc.Close() }()
	// The service may answer and hang up before all of it was written.
	_, _ = fmt.Fprintf(nc, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 2*maxHeader))
	line, err := bufio.NewReader(nc).ReadString('\n')
	if err != nil || !strings.Contains(line, "431") {
		t.Errorf("a large header was answered %q, %v", line, err)
	}
	garbage, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = garbage.Close() }()
	if _, err := garbage.Write([]byte("\x00\x00\x00\x01\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(garbage); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 400") {
		t.Errorf("garbage was answered %q, %v", b, err)
	}
	if code, _ := ask(t, "GET", base+"/healthz", nil); code != 200 {
		t.Errorf("healthz after that: %d", code)
	}
}

func TestLimitListener(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limitListener(inner, 1)
	for range 2 {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
	}
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			err = c.Close()
		}
		second <- err
	}()
	select {
	case err := <-second:
		t.Fatalf("a second connection came while the first stands (%v)", err)
	default:
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	held, err := net.Dial("tcp", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	third, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = third.Close() }()
	ended := make(chan error, 1)
	go func() { _, err := l.Accept(); ended <- err }()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("an Accept that waits for a slot ended with %v", err)
	}
}

// TestMaxConnections: with two connections open, a third one is served only when
// one of them has ended.
func TestMaxConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Start(l, Options{Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(), MaxConnections: 2})
	defer s.Close()
	var open []net.Conn
	for range 3 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		open = append(open, c)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := open[2].Write([]byte("GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"))
		if err == nil {
			_, err = open[2].Read(make([]byte, 1))
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a third connection is served beside two: %v", err)
	case <-time.After(100 * time.Millisecond): // a slow machine can only hide the defect
	}
	_ = open[0].Close()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
