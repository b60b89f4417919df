package client

import "time"

// WithLending sets when a connection is lent to callers: when they take less than
// quick; and how often it is looked whether they still make use of it.
func WithLending(quick, tick time.Duration) Option {
	return func(c *config) { c.quickTime, c.lentTick = quick, tick }
}

// Lent tells whether the session's connection is lent.
func (s *Session) Lent() bool { return s.d.lent.Load() != nil }

// ReadByCallers is how many answers callers have read from the connection, which
// must be lent.
func (s *Session) ReadByCallers() uint64 { return s.d.lent.Load().reads.Load() }

// LoseByClock loses the lock as a look at the clock behind its deadline does.
func (l *Lock) LoseByClock() { l.lose("test") }
