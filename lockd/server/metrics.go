package server

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/seed70370324/lockd/lockd/replica"
)

// shellMetrics are what the shell counts itself. They cost an atomic addition
// where something happens, and nothing while nothing does.
type shellMetrics struct {
	registry *prometheus.Registry

	batch        prometheus.Histogram // events a batch of the loop
	flush        prometheus.Histogram // seconds a write and flush of the log
	flushRecords prometheus.Histogram // records a flush
	accepted     prometheus.Counter   // connections that shook hands
	refused      prometheus.Counter   // over the limit
	garbage      prometheus.Counter   // did not speak the protocol
	bad          prometheus.Counter   // cut off for what they sent
	tooSlow      prometheus.Counter   // cut off for not reading
	peerDrops    prometheus.Counter   // peers' messages over the allowance

	limits      limitCounts  // what each limit of the shell has refused
	peerPending atomic.Int64 // bytes of peers' messages that wait for the loop
}

func newShellMetrics() *shellMetrics {
	m := &shellMetrics{registry: prometheus.NewRegistry()}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	m.batch = histogram("lockd_loop_batch_events", "Events that the replica took in one batch.",
		prometheus.ExponentialBuckets(1, 4, 8))
	m.flush = histogram("lockd_log_flush_seconds", "Time to write and flush what was queued for the log.",
		prometheus.ExponentialBuckets(0.0001, 2, 16))
	m.flushRecords = histogram("lockd_log_flush_records", "Records made durable by one flush.",
		prometheus.ExponentialBuckets(1, 4, 8))
	m.accepted = counter("lockd_client_connections_total", "Client connections accepted.")
	m.refused = counter("lockd_client_connections_refused_total", "Client connections refused because of the limit.")
	m.garbage = counter("lockd_client_handshakes_failed_total", "Connections to the client port that did not speak the protocol.")
	m.bad = counter("lockd_client_bad_messages_total", "Clients cut off for a message that was too large, not decodable, or missing.")
	m.tooSlow = counter("lockd_client_too_slow_total", "Clients cut off because they did not read.")
	m.peerDrops = counter("lockd_peer_messages_dropped_total", "Messages of peers dropped because too many waited.")
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// replicaMetric is a value read from the replica at a scrape.
type replicaMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*replica.Metrics) float64
}

// replicaCollector asks the loop for the replica's numbers when scraped.
type replicaCollector struct {
	ask     func(context.Context, func(*replica.Replica)) error
	up      *prometheus.Desc
	limited *prometheus.Desc
	shell   *shellMetrics
	metrics []replicaMetric
}

func newReplicaCollector(ask func(context.Context, func(*replica.Replica)) error, shell *shellMetrics) *replicaCollector {
	c := &replicaCollector{
		ask: ask, shell: shell,
		limited: prometheus.NewDesc("lockd_limit_refused_total", "What limits have refused, put off or cut off; docs/operations.md has a table of them.",
			[]string{"limit"}, nil),
		up: prometheus.NewDesc("lockd_up", "1 if the replica answered this scrape.", nil, nil),
	}
	add := func(kind prometheus.ValueType, name, help string, value func(*replica.Metrics) float64) {
		c.metrics = append(c.metrics, replicaMetric{prometheus.NewDesc(name, help, nil, nil), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "lockd_is_master", "1 on the replica that serves as master.", func(m *replica.Metrics) float64 {
		if m.Master {
			return 1
		}
		return 0
	})
	add(gauge, "lockd_sessions", "Sessions.", func(m *replica.Metrics) float64 { return float64(m.Sessions) })
	add(gauge, "lockd_connections", "Client connections.", func(m *replica.Metrics) float64 { return float64(m.Connections) })
	add(gauge, "lockd_watches", "Watches.", func(m *replica.Metrics) float64 { return float64(m.Watches) })
	add(gauge, "lockd_watch_log_bytes", "Bytes of changes kept for watches that were not told them yet.", func(m *replica.Metrics) float64 { return float64(m.WatchLogBytes) })
	add(gauge, "lockd_watches_behind", "Watches whose client has no room for their changes.", func(m *replica.Metrics) float64 { return float64(m.WatchesBehind) })
	add(counter, "lockd_watches_missed_total", "How often changes were left out of a watch because its client was too slow.", func(m *replica.Metrics) float64 { return float64(m.WatchesMissed) })
	add(gauge, "lockd_nodes", "Nodes.", func(m *replica.Metrics) float64 { return float64(m.Nodes) })
	add(gauge, "lockd_state_bytes", "Bytes of the state, as its limit counts them.", func(m *replica.Metrics) float64 { return float64(m.StateBytes) })
	add(gauge, "lockd_state_limit_bytes", "Bytes of state that the member with the smallest limit takes.", func(m *replica.Metrics) float64 { return float64(m.StateBytesMax) })
	add(gauge, "lockd_state_nodes", "Nodes of the state, as its limit counts them.", func(m *replica.Metrics) float64 { return float64(m.Nodes) })
	add(gauge, "lockd_state_limit_nodes", "Nodes that the member with the smallest limit takes.", func(m *replica.Metrics) float64 { return float64(m.StateNodesMax) })
	add(gauge, "lockd_requests_pending", "Logged requests without an answer yet.", func(m *replica.Metrics) float64 { return float64(m.Pending) })
	add(counter, "lockd_requests_total", "Logged requests taken.", func(m *replica.Metrics) float64 { return float64(m.Requests) })
	add(counter, "lockd_reads_total", "Reads taken.", func(m *replica.Metrics) float64 { return float64(m.Reads) })
	add(counter, "lockd_keepalives_total", "KeepAlives taken.", func(m *replica.Metrics) float64 { return float64(m.KeepAlives) })
	add(counter, "lockd_events_total", "Events sent to clients.", func(m *replica.Metrics) float64 { return float64(m.Events) })
	add(counter, "lockd_locks_granted_total", "Locks granted.", func(m *replica.Metrics) float64 { return float64(m.Granted) })
	add(counter, "lockd_sessions_expired_total", "Sessions that expired.", func(m *replica.Metrics) float64 { return float64(m.Expired) })
	add(counter, "lockd_requests_refused_total", "Requests refused before the log.", func(m *replica.Metrics) float64 { return float64(m.Refused) })
	add(counter, "lockd_elections_total", "Changes of the master seen.", func(m *replica.Metrics) float64 { return float64(m.Elections) })
	add(gauge, "lockd_chosen_slot", "Last slot known to be chosen.", func(m *replica.Metrics) float64 { return float64(m.Chosen) })
	add(gauge, "lockd_behind_slots", "Slots known to be chosen anywhere and not applied here.", func(m *replica.Metrics) float64 { return float64(m.Target - m.Applied) })
	add(gauge, "lockd_applied_slot", "Last slot applied.", func(m *replica.Metrics) float64 { return float64(m.Applied) })
	add(gauge, "lockd_log_memory_bytes", "Bytes of log entries kept in memory for replicas that lag.", func(m *replica.Metrics) float64 { return float64(m.LogBytes) })
	add(counter, "lockd_accepts_held_back_total", "Slots that the master sent a follower late on purpose, many at a time.", func(m *replica.Metrics) float64 { return float64(m.Thrift.HeldBack) })
	add(counter, "lockd_accepts_hedged_total", "Slots sent to followers that were to get them later, because they took too long.", func(m *replica.Metrics) float64 { return float64(m.Thrift.Hedged) })
	add(counter, "lockd_thrift_misses_total", "Slots that were chosen only because they were sent to such a follower.", func(m *replica.Metrics) float64 { return float64(m.Thrift.Misses) })
	add(gauge, "lockd_revision", "Revision of the state; rounded, it has more digits than a metric.", func(m *replica.Metrics) float64 { return float64(m.Revision) })
	add(gauge, "lockd_epoch", "The master's epoch.", func(m *replica.Metrics) float64 { return float64(m.Epoch) })
	return c
}

// Describe names the metrics.
func (c *replicaCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.up
	ch <- c.limited
	for i := range c.metrics {
		ch <- c.metrics[i].desc
	}
}

// Collect reads them. A replica that does not answer in a second is down as
// far as a monitor is concerned, and says nothing else.
func (c *replicaCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var m replica.Metrics
	if err := c.ask(ctx, func(r *replica.Replica) { m = r.Metrics() }); err != nil {
		ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 0)
		return
	}
	ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, 1)
	for i := range c.metrics {
		ch <- prometheus.MustNewConstMetric(c.metrics[i].desc, c.metrics[i].kind, c.metrics[i].value(&m))
	}
	for name, n := range c.shell.limits.with(m.Limited) {
		ch <- prometheus.MustNewConstMetric(c.limited, prometheus.CounterValue, float64(n), name)
	}
}
