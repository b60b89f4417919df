// Package admin is the HTTP listener of a replica for people and monitors:
//
//	/healthz       200 while the process answers
//	/readyz        200 when clients can be served or sent to the master, else
//	               503 and the reason
//	/metrics       Prometheus
//	/debug/pprof/  profiles of the running process
//
// It has no authentication, so it listens on loopback unless told otherwise,
// and nothing here changes anything. What a stranger can make it hold is
// bounded: connections, header and body size, times, scrapes at once.
package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Options of a Server.
type Options struct {
	// Ready tells whether the replica can serve: nil, or an error whose text is
	// the reason. It is called for each /readyz, by any goroutine.
	Ready func(ctx context.Context) error
	// Metrics are gathered for each scrape.
	Metrics prometheus.Gatherer
	Logger  *slog.Logger
	// ClientAddress is told to clients that come to this port.
	ClientAddress string
	// MaxConnections may stand at once, more wait to be accepted; default 256.
	MaxConnections int
}

// Bounds on what a stranger can make the listener hold.
const (
	maxConnections = 256
	maxHeader      = 16 << 10
	maxBody        = 64 << 10
	maxScrapes     = 4
	headerTimeout  = 5 * time.Second
	readTimeout    = 10 * time.Second
	writeTimeout   = 2 * time.Minute // a CPU profile is asked for in seconds
	idleTimeout    = time.Minute
)

// Server answers HTTP on one listener.
type Server struct {
	http *http.Server
	done chan struct{}
}

// Start serves on l, which it owns from now on, until Close.
func Start(l net.Listener, o Options) *Server {
	s := &Server{
		http: &http.Server{
			Handler:           Handler(o),
			ReadHeaderTimeout: headerTimeout,
			ReadTimeout:       readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeader,
			ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
		},
		done: make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		err := s.http.Serve(hintListener{limitListener(l, cmp.Or(o.MaxConnections, maxConnections)), "this is the HTTP port: clients connect to " + o.ClientAddress})
		if err != nil && !errors.Is(err, http.ErrServerClosed) {
			o.Logger.Error("the HTTP listener has failed; health and metrics are gone until a restart", "error", err)
		}
	}()
	return s
}

// Close ends the listener and every connection; requests under way get a
// moment to finish. It returns when the listener's goroutine has ended.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		// A request (a profile, say) did not end in time: cut it off.
		_ = s.http.Close()
	}
	<-s.done
}

// Handler is what the listener serves.
func Handler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
		defer cancel()
		if err := o.Ready(ctx); err != nil {
			answer(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(o.Metrics, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes,
		Timeout:             5 * time.Second,
		ErrorLog:            slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError,
	}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, "lockd: /healthz /readyz /metrics /debug/pprof/")
	})
	return http.MaxBytesHandler(mux, maxBody)
}

func answer(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	// An error means that the asker has gone.
	_, _ = fmt.Fprintln(w, text)
}
