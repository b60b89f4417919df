package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const soakMiB = 1 << 20

// soakSample is what one process used at one moment.
type soakSample struct {
	who    string        // n1, n2, n3 or soakSelf
	life   int           // how often it had been started before
	at     time.Duration // since the load began
	age    time.Duration // since the process was started
	master bool
	gc     bool // the collector ran just before: alloc is what is in use
	loaded bool // the clients were at work

	alloc, inuse, rss, goroutines, fds, expired, log float64
}

const (
	soakSelf   = "test"
	soakJudged = 4 * time.Minute // a shorter run says nothing about memory
)

// soakMeter samples the replicas and the process of the test.
type soakMeter struct {
	c    *cell
	http *http.Client
	self http.Handler

	mu      sync.Mutex
	began   time.Time
	loaded  bool
	lives   map[string]int
	started map[string]time.Time
	all     []soakSample
}

func newSoakMeter(c *cell) *soakMeter {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m := &soakMeter{
		c:    c,
		self: promhttp.HandlerFor(registry, promhttp.HandlerOpts{}),
		// No connection outlives its request: it would count as a goroutine and
		// an open file in both processes.
		http:  &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second},
		began: time.Now(), lives: map[string]int{}, started: map[string]time.Time{},
	}
	for _, r := range c.replicas {
		m.started[r.name] = m.began
	}
	m.started[soakSelf] = m.began
	return m
}

// reborn tells that a replica has been started again.
func (m *soakMeter) reborn(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lives[name]++
	m.started[name] = time.Now()
}

// sample looks at every process that answers and keeps what it sees.
func (m *soakMeter) sample(ctx context.Context, gc bool) []soakSample {
	var out []soakSample
	for i, r := range m.c.replicas {
		m.mu.Lock()
		s := soakSample{who: r.name, life: m.lives[r.name], age: time.Since(m.started[r.name]), at: time.Since(m.began), gc: gc, loaded: m.loaded}
		m.mu.Unlock()
		address := "http://" + m.c.ports[2*len(m.c.replicas)+i]
		if gc && m.get(ctx, address+"/debug/pprof/heap?gc=1", func(string, float64) {}) != nil {
			continue // it is down just now
		}
		if m.get(ctx, address+"/metrics", s.set) == nil {
			out = append(out, s)
		}
	}
	if gc {
		runtime.GC()
	}
	s := soakSample{who: soakSelf, at: time.Since(m.began), age: time.Since(m.began), gc: gc}
	m.mu.Lock()
	s.loaded = m.loaded
	m.mu.Unlock()
	w := httptest.NewRecorder()
	m.self.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	soakMetrics(w.Body, s.set)
	out = append(out, s)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, out...)
	return out
}

// get reads the metrics at url.
func (m *soakMeter) get(ctx context.Context, url string, set func(name string, v float64)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := m.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	soakMetrics(resp.Body, set)
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return err
}

// soakMetrics finds the metrics without labels in Prometheus' text format.
func soakMetrics(r io.Reader, set func(name string, v float64)) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); ok && err == nil {
			set(name, v)
		}
	}
}

func (s *soakSample) set(name string, v float64) {
	switch name {
	case "go_memstats_heap_alloc_bytes":
		s.alloc = v
	case "go_memstats_heap_inuse_bytes":
		s.inuse = v
	case "process_resident_memory_bytes":
		s.rss = v
	case "go_goroutines":
		s.goroutines = v
	case "process_open_fds":
		s.fds = v
	case "lockd_sessions_expired_total":
		s.expired = v
	case "lockd_log_memory_bytes":
		s.log = v
	case "lockd_is_master":
		s.master = v == 1
	}
}

// ready asks a replica whether it could serve.
func (m *soakMeter) ready(ctx context.Context, name string) bool {
	for i, r := range m.c.replicas {
		if r.name == name {
			return m.get(ctx, "http://"+m.c.ports[2*len(m.c.replicas)+i]+"/readyz", func(string, float64) {}) == nil
		}
	}
	return false
}

// samples that were kept.
func (m *soakMeter) samples() []soakSample {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.all)
}

// soakLimit says how much a number may have grown.
type soakLimit struct {
	times float64
	plus  float64
}

func (l soakLimit) holds(before, after float64) bool { return after <= before*l.times+l.plus }

// What counts as flat. What replicas and clients keep depends on where they
// stand between two snapshots, so some is allowed; what leaks with every
// request is more than that within a minute.
var (
	soakHeapLimit       = soakLimit{1.25, 8 * soakMiB}
	soakRSSLimit        = soakLimit{1, 32 * soakMiB}
	soakGoroutinesLimit = soakLimit{1.1, 32}
	soakFilesLimit      = soakLimit{1.1, 32}
)

// flat compares the second quarter of the run with the last one, for the
// replicas together and for the test, and old processes with young ones. It
// returns what was compared, and what has grown.
func flat(all []soakSample, run time.Duration) (compared, grown []string) {
	if run < soakJudged {
		return nil, nil
	}
	compare := func(what string, before, after []float64, l soakLimit, unit float64) {
		if len(before) < 2 || len(after) < 2 {
			return // too short a run to judge
		}
		b, a := median(before), median(after)
		text := fmt.Sprintf("%s: %.1f -> %.1f (limit %.1f)", what, b/unit, a/unit, (b*l.times+l.plus)/unit)
		if l.holds(b, a) {
			compared = append(compared, text)
		} else {
			grown = append(grown, text)
		}
	}
	pick := func(keep func(*soakSample) bool, value func(*soakSample) float64) (out []float64) {
		for i := range all {
			if keep(&all[i]) {
				out = append(out, value(&all[i]))
			}
		}
		return out
	}
	// What a replica keeps of the log in memory grows to its bound, and a
	// restart begins with what it read: that is no leak, so it is left out. An
	// entry takes about a quarter more than what is counted for it.
	heap := func(s *soakSample) float64 { return s.alloc - 1.25*s.log }
	second := func(s *soakSample) bool { return s.at > run/4 && s.at <= run/2 && s.loaded }
	last := func(s *soakSample) bool { return s.at > run*3/4 && s.loaded }
	for _, g := range []struct {
		name string
		in   func(*soakSample) bool
	}{
		{"masters", func(s *soakSample) bool { return s.who != soakSelf && s.master }},
		{"followers", func(s *soakSample) bool { return s.who != soakSelf && !s.master }},
		{"test", func(s *soakSample) bool { return s.who == soakSelf }},
	} {
		quarters := func(what string, gc bool, value func(*soakSample) float64, l soakLimit, unit float64) {
			keep := func(at func(*soakSample) bool) func(*soakSample) bool {
				return func(s *soakSample) bool { return g.in(s) && at(s) && (s.gc || !gc) }
			}
			compare(fmt.Sprintf("%s, %s, second and last quarter", g.name, what),
				pick(keep(second), value), pick(keep(last), value), l, unit)
		}
		quarters("heap after a collection without the log, MiB", true, heap, soakHeapLimit, soakMiB)
		// The collector lets a heap become twice what is in use; what RSS has
		// beyond that must not grow either.
		quarters("RSS less 2.5 times the heap, MiB", true, func(s *soakSample) float64 { return s.rss - 2.5*s.alloc }, soakRSSLimit, soakMiB)
		quarters("goroutines", false, func(s *soakSample) float64 { return s.goroutines }, soakGoroutinesLimit, 1)
		quarters("open files", false, func(s *soakSample) float64 { return s.fds }, soakFilesLimit, 1)
	}
	// A process that is killed begins anew: what it leaks shows by its age.
	aged := func(from, to time.Duration) func(*soakSample) bool {
		return func(s *soakSample) bool { return s.who != soakSelf && s.gc && s.loaded && s.age > from && s.age <= to }
	}
	const young, old = 30 * time.Second, 90 * time.Second
	compare("replicas, heap after a collection without the log, MiB, aged 30-90 s and older",
		pick(aged(young, old), heap), pick(aged(old, run*2), heap), soakHeapLimit, soakMiB)
	return compared, grown
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// TestSoakFindsGrowth: what leaks is found, what is flat passes.
func TestSoakFindsGrowth(t *testing.T) {
	const run = 10 * time.Minute
	history := func(leak func(s *soakSample)) (all []soakSample) {
		for at := 5 * time.Second; at <= run; at += 5 * time.Second {
			for i, who := range []string{"n1", "n2", "n3", soakSelf} {
				s := soakSample{who: who, at: at, age: at, gc: at%(30*time.Second) == 0, master: i == int(at/(30*time.Second))%3,
					alloc: 20*soakMiB + float64(at%(40*time.Second))/1e9*soakMiB/20, rss: 100 * soakMiB, loaded: true, goroutines: 40, fds: 30}
				if who != soakSelf { // killed in turn, every 90 s
					s.age = (at + 13*time.Second + time.Duration(i)*30*time.Second) % (150 * time.Second)
				}
				leak(&s)
				all = append(all, s)
			}
		}
		return all
	}
	for _, tc := range []struct {
		name string
		leak func(s *soakSample)
		want string // in what has grown; "": nothing
	}{
		{"nothing", func(*soakSample) {}, ""},
		{"state, 100 KiB/s", func(s *soakSample) { s.alloc += s.at.Seconds() * 100 * 1024 }, "heap"},
		{"each replica, 500 KiB/s", func(s *soakSample) {
			if s.who != soakSelf {
				s.alloc += s.age.Seconds() * 500 * 1024
			}
		}, "aged"},
		{"test, 100 KiB/s", func(s *soakSample) {
			if s.who == soakSelf {
				s.alloc += s.at.Seconds() * 100 * 1024
			}
		}, "test, heap"},
		{"RSS, 500 KiB/s", func(s *soakSample) { s.rss += s.at.Seconds() * 500 * 1024 }, "RSS"},
		{"a goroutine in 5 s", func(s *soakSample) { s.goroutines += s.at.Seconds() / 5 }, "goroutines"},
		{"a file in 5 s", func(s *soakSample) { s.fds += s.at.Seconds() / 5 }, "open files"},
	} {
		compared, grown := flat(history(tc.leak), run)
		if got := strings.Join(grown, "\n"); (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: found to have grown: %q, want %q", tc.name, got, tc.want)
		}
		if want := 13; len(compared)+len(grown) != want {
			t.Errorf("%s: %d numbers compared, want %d", tc.name, len(compared)+len(grown), want)
		}
	}
}
