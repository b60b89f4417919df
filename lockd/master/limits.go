package master

import (
	"fmt"
	"maps"

	wirepb "github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/store"
)

// The names of the master's limits, as Error.limit and the metric
// lockd_limit_refused_total have them. Those of the store come beside them.
const (
	LimitConnections  = "connections"
	LimitSessions     = "sessions"
	LimitConnSessions = "connection_sessions"
	LimitConnWatches  = "connection_watches"
	LimitWatches      = "watches"
	LimitWatchState   = "watch_state"
	LimitSessionCalls = "session_requests"
	LimitCalls        = "requests"
	LimitCallBytes    = "request_bytes"
	LimitReads        = "reads"
	LimitConnReads    = "connection_reads"
	LimitKeepAlive    = "keepalive_sessions"
	LimitClientFrame  = "client_frame"
	LimitStateNodes   = "state_nodes"
	LimitStateBytes   = "state_bytes"
)

// The limits of the state where neither a flag nor the machine's memory says
// another.
const (
	DefaultStateNodes = 2 << 20
	DefaultStateBytes = 1 << 30
)

// Limits lists the limits of a master with these options: what it lets
// clients ask for, in the memory of one replica. What no client can exceed
// whatever happens is not among them.
func (o Options) Limits() []store.Limit {
	o.setDefaults()
	return []store.Limit{
		{Name: LimitConnections, Value: o.MaxConnections},
		{Name: LimitSessions, Value: o.MaxSessions},
		{Name: LimitConnSessions, Value: o.MaxSessionsPerConn},
		{Name: LimitConnWatches, Value: o.MaxWatchesPerConn},
		{Name: LimitWatches, Value: maxWatches},
		{Name: LimitWatchState, Value: maxWatchState},
		{Name: LimitSessionCalls, Value: o.MaxPendingSession},
		{Name: LimitCalls, Value: o.MaxPending},
		{Name: LimitCallBytes, Value: maxPendingBytes},
		{Name: LimitReads, Value: o.MaxPending},
		{Name: LimitConnReads, Value: maxWaiting},
		{Name: LimitKeepAlive, Value: maxKeepAlive},
		{Name: LimitClientFrame, Value: minClientFrame},
		{Name: LimitStateNodes, Value: DefaultStateNodes},
		{Name: LimitStateBytes, Value: DefaultStateBytes},
	}
}

// met counts what a limit has refused.
func (m *Master) met(limit string) {
	if m.limits == nil {
		m.limits = make(map[string]uint64)
	}
	m.limits[limit]++
}

// limited answers with an error that a limit is the reason of.
func (m *Master) limited(c *conn, limit string, e *wirepb.Error) {
	m.count.Refused++
	m.met(limit)
	e.Limit = limit
	if e.Code == wirepb.ErrorCode_OVERLOADED && e.RetryAfterMs == 0 {
		e.RetryAfterMs = retryOverloaded
	}
	m.sendError(c, e)
}

// cutOff is limited for a client that goes on in spite of all answers: its
// connection ends.
func (m *Master) cutOff(c *conn, limit string, code wirepb.ErrorCode, text string) {
	m.limited(c, limit, &wirepb.Error{Code: code, Text: text, Fatal: true})
	m.close(c, text)
}

// Refusals counts what each limit has refused since the start, the store's
// among them, as far as this master answered it.
func (m *Master) Refusals() map[string]uint64 { return maps.Clone(m.limits) }

// sessionsMax is how many sessions a connection may have: so many that one
// KeepAlive can name them all, and its answer fits the client's frame.
func (m *Master) sessionsMax(c *conn) int {
	return min(m.o.MaxSessionsPerConn, m.budget(c)/leaseBytes)
}

// noRoom reports whether a connection has all the sessions it may have; those
// that are being opened count.
func (m *Master) noRoom(c *conn) bool {
	return len(c.sessions)+c.opening >= m.sessionsMax(c)
}

// tooManySessions is the refusal of another session on a connection.
func (m *Master) tooManySessions(c *conn, e *wirepb.Error) {
	e.Code = wirepb.ErrorCode_TOO_MANY
	e.Text = fmt.Sprintf("this connection has %d sessions, the limit is %d: use another connection for more", len(c.sessions), m.sessionsMax(c))
	m.limited(c, LimitConnSessions, e)
}

// mayWait reports whether another message of a connection may wait for a proof
// of leadership; if not, it is refused with e. KeepAlives and Attaches do not
// ask: no limit refuses them.
func (m *Master) mayWait(c *conn, e *wirepb.Error) bool {
	switch {
	case c.waiting >= maxWaiting:
		e.Text = fmt.Sprintf("%d messages of this connection wait for an answer, the limit is %d: repeat this one when some are answered", c.waiting, maxWaiting)
	case c.waitingBytes >= maxWaitingBytes:
		e.Text = fmt.Sprintf("messages of %d bytes of this connection wait for an answer, the limit is %d: repeat this one when some are answered", c.waitingBytes, maxWaitingBytes)
	default:
		return true
	}
	e.Code = wirepb.ErrorCode_OVERLOADED
	m.limited(c, LimitConnReads, e)
	return false
}

// endless reports whether a session has more requests under way than an honest
// client can have that has been told of every limit: those of the limit,
// as many again that settle refused ones, and one for each thing it holds.
func (m *Master) endless(s *session) bool {
	n := m.o.MaxPendingSession + store.WindowMax
	if len(s.requests) < n {
		return false
	}
	v, _ := m.st.Session(s.id)
	return len(s.requests) >= n+v.Locks+v.Waiting+v.Lost
}
