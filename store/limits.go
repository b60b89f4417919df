package store

import (
	"strings"

	"github.com/seed70370324/lockd/store/pb"
)

// The names of the store's limits, as Result.limit and the metric
// lockd_limit_refused_total have them.
const (
	LimitData        = "node_data"
	LimitPath        = "path_length"
	LimitName        = "name_length"
	LimitChildren    = "children"
	LimitSkip        = "sequence_skip"
	LimitDelete      = "delete_nodes"
	LimitMulti       = "transaction_operations"
	LimitConditions  = "operation_conditions"
	LimitLockDelay   = "lock_delay"
	LimitWaiters     = "lock_waiters"
	LimitLocks       = "session_locks"
	LimitEphemerals  = "session_ephemerals"
	LimitEvents      = "session_events"
	LimitWindow      = "session_results"
	LimitEventBytes  = "session_event_bytes"
	LimitResultBytes = "session_result_bytes"
	LimitText        = "client_text"
)

// Limit is a limit with its name.
type Limit struct {
	Name  string
	Value int
}

// Limits lists every limit that makes the store refuse a command. They are
// decisions of the replicated state, so they are constants and no settings.
func Limits() []Limit {
	return []Limit{
		{LimitData, DataMax},
		{LimitPath, PathMax},
		{LimitName, NameMax},
		{LimitChildren, ChildrenMax},
		{LimitSkip, SkipMax},
		{LimitDelete, DeleteMax},
		{LimitMulti, MultiMax},
		{LimitConditions, ConditionsMax},
		{LimitLockDelay, LockDelayMaxMillis},
		{LimitWaiters, WaitersMax},
		{LimitLocks, LocksMax},
		{LimitEphemerals, EphemeralsMax},
		{LimitEvents, EventsMax},
		{LimitWindow, WindowMax},
		{LimitEventBytes, EventBytesMax},
		{LimitResultBytes, ResultBytesMax},
		{LimitText, TextMax},
	}
}

// limited is the answer to a command that meets a limit: which one, what there
// is, and what to do.
func limited(limit, format string, args ...any) *pb.Result {
	return met(limit, refuse(pb.Code_LIMIT, format, args...))
}

// met names the limit in an answer with another code than LIMIT.
func met(limit string, r *pb.Result) *pb.Result {
	r.Limit = limit
	return r
}

// refusePath is the answer to a command with a malformed path.
func refusePath(path, reason string) *pb.Result {
	r := refuse(pb.Code_BAD_PATH, "%s", reason)
	r.Limit = PathLimit(path)
	return r
}

// PathLimit names the limit that a path exceeds, "" if none.
func PathLimit(path string) string {
	if len(path) > PathMax {
		return LimitPath
	}
	for part := range strings.SplitSeq(path, "/") {
		if len(part) > NameMax {
			return LimitName
		}
	}
	return ""
}
