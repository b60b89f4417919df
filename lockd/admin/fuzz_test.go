package admin

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed70370324/lockd/internal/fuzzing"
)

// FuzzRequest: a request of a stranger is answered soon, in bounded memory, and
// never as something that a browser would run.
func FuzzRequest(f *testing.F) {
	for name, r := range map[string]string{
		"healthz": "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"readyz":  "GET /readyz?verbose=1 HTTP/1.1\r\nHost: x\r\n\r\n",
		"metrics": "GET /metrics?name[]=a HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\nAccept-Encoding: gzip\r\n\r\n",
		"post":    "POST /debug/pprof/symbol HTTP/1.1\r\nHost: x\r\nContent-Length: 7\r\n\r\n0x1+0x2",
		"heap":    "GET /debug/pprof/heap?debug=1&seconds=1 HTTP/1.1\r\nHost: x\r\n\r\n",
		"unknown": "GET /debug/pprof/<script>?seconds=99999999999999999999 HTTP/1.0\r\n\r\n",
		"dots":    "GET /a/../healthz HTTP/1.1\r\nHost: x\r\n\r\n",
		"chunked": "PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
	} {
		fuzzing.Seed(f, name, []byte(r))
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "lockd_test_total", Help: "A test."}))
	handler := Handler(Options{Ready: func(context.Context) error { return errors.New("not yet") }, Metrics: registry, Logger: slog.New(slog.DiscardHandler)})
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(raw)))
		if err != nil || strings.Contains(r.URL.Path, "profile") || strings.Contains(r.URL.Path, "trace") {
			return // these are asked to take their time
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		w := httptest.NewRecorder()
		fuzzing.Bounded(t, 64*uint64(len(raw))+32<<20, func() { handler.ServeHTTP(w, r.WithContext(ctx)) })
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1<<20))
		pprof := strings.HasPrefix(r.URL.Path, "/debug/pprof/")
		if w.Code >= 500 && w.Code != http.StatusServiceUnavailable && !pprof {
			t.Fatalf("%s %s: %d", r.Method, r.URL, w.Code)
		}
		if kind := w.Header().Get("Content-Type"); strings.HasPrefix(kind, "text/html") && w.Body.Len() > 0 && bytes.Contains(w.Body.Bytes(), []byte("<script")) {
			t.Fatalf("%s %s is answered as %s: %.300s", r.Method, r.URL, kind, w.Body)
		}
	})
}
