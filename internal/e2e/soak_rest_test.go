package e2e

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"
)

// soakIdle is what processes use without clients.
type soakIdle struct {
	goroutines, files, self float64
}

// idle is what a replica is seen to use at most before there are clients, once
// all replicas know each other, and what the test uses.
func (m *soakMeter) idle() soakIdle {
	m.c.t.Helper()
	var most soakIdle
	eventually(m.c.t, "all replicas are connected", func() bool {
		for i := range m.c.replicas {
			st, err := ask(m.c.t, m.c.ports[i])
			if err != nil {
				return false
			}
			for _, p := range st.Peers {
				if !p.Connected {
					return false
				}
			}
		}
		return true
	})
	for range 20 {
		for _, s := range m.sample(m.c.t.Context(), false) {
			if s.who == soakSelf {
				most.self = max(most.self, s.goroutines)
				continue
			}
			most.goroutines, most.files = max(most.goroutines, s.goroutines), max(most.files, s.fds-m.logFiles(s.who))
		}
		soakSleep(m.c.t.Context(), 50*time.Millisecond)
	}
	return most
}

// logFiles is how many files there are in a replica's data directory: those of
// the log stay open.
func (m *soakMeter) logFiles(name string) float64 {
	files, err := filepath.Glob(filepath.Join(m.c.dir, name, "*", "*"))
	if err != nil {
		m.c.t.Fatal(err) // the pattern is wrong
	}
	return float64(len(files))
}

// rest waits until nothing runs any more in any process that ran for a client.
func (m *soakMeter) rest(idle soakIdle) {
	t := m.c.t
	t.Helper()
	var tooMany string
	var last []soakSample
	defer func() {
		if t.Failed() {
			t.Log("the last that was over what it had been without clients: ", tooMany)
		}
	}()
	eventually(t, "all processes use no more than before there were clients", func() bool {
		seen := m.sample(t.Context(), true)
		for i, s := range seen {
			limit, files := idle.goroutines, s.fds-m.logFiles(s.who)
			if s.who == soakSelf {
				limit, files = idle.self, 0
			}
			if s.goroutines > limit || files > idle.files {
				tooMany = fmt.Sprintf("%s: %v goroutines, limit %v; %v files, limit %v", s.who, s.goroutines, limit, files, idle.files)
				if s.who != soakSelf {
					tooMany += "\n" + m.stacks(i)
				}
				return false
			}
		}
		last = seen
		return len(seen) == len(m.c.replicas)+1
	})
	for _, s := range last {
		limit := idle.goroutines
		if s.who == soakSelf {
			limit = idle.self
		}
		t.Logf("at rest, %s: %v goroutines (%v before there were clients), heap %.1f MiB, of it log %.1f", s.who, s.goroutines, limit, s.alloc/soakMiB, s.log/soakMiB)
	}
}

// stacks of the goroutines of a replica.
func (m *soakMeter) stacks(replica int) string {
	resp, err := m.http.Get("http://" + m.c.ports[2*len(m.c.replicas)+replica] + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Sprint(resp.Status, err)
	}
	return string(b)
}
