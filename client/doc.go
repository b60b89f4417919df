// Package client is the Go client of lockd, a lock and coordination service.
//
// A lock here is a lease, not a boolean: it is held until an instant that the
// client keeps moving forward as long as it hears from the service, and it is
// lost when that instant passes. So a lock comes as a context. Work that obeys
// the context has ended before anybody else can be granted the lock, as long
// as its process gets to run.
//
// A process that is frozen (SIGSTOP, a suspended machine, a long pause of the
// collector) does not get to run. When it wakes up it may finish a write that
// it began under a lock that is somebody else's by now. Nothing in this package
// can prevent that; the fence can. Lock.Fence is a number that grows with every
// grant: send it along with every write, and let the store that is written to
// refuse a number smaller than the largest it has seen.
//
//	s, err := client.Dial(ctx, []string{"127.0.0.1:7101", "127.0.0.1:7102"})
//	...
//	defer s.Close()
//	err = s.Do(ctx, "/job", func(ctx context.Context, l *client.Lock) error {
//		return store.Write(ctx, l.Fence(), data)
//	})
//
// # Conditions
//
// Writes take conditions, all of which must hold at the instant at which the
// service executes them. HeldBy makes a write depend on a lock, so that it is
// not done late; IfUnchanged makes it depend on what was read before. A
// condition whose number was never set, one that is given twice and one that
// contradicts another are refused with ErrInvalid before anything is sent.
//
//	_, err = l.Txn().Put("/result", data).Commit(ctx)
//	_, err = s.Put(ctx, n.Path, changed, client.IfUnchanged(n.Stat))
//
// # Sessions and readers
//
// A Session (Dial) owns locks and ephemeral nodes and executes each write
// exactly once, over any number of reconnects and failovers. It lives as long
// as its lease is renewed, which happens in the background. A Reader (Connect)
// only reads and watches; it leaves no trace in the service. A Session has all
// that a Reader has.
//
// # Which cell
//
// All addresses are asked at once who they are. If they belong to different
// cells, the one is meant that more than half of those name that answer within a
// second; WithCellIdentity says it for certain. Replicas of other cells, and
// those that speak no version of the protocol that this client does, are skipped,
// with a warning to the logger. If no cell has more than half, Dial fails with
// ErrWrongCell, which tells who said what.
//
// # Jeopardy
//
// If the service is not heard for a whole lease, the session is in jeopardy:
// calls are held back, not failed, while the client goes on looking for a
// master. If one answers within the grace period (45 s by default) that the
// session lives, all goes on as if nothing had happened; else the session has
// expired, and with it its locks and ephemeral nodes. Locks do not wait for the
// grace period: each is lost at its own deadline (Lock.Deadline). A lock that is
// lost so can be asked for again as soon as the session is live: the service is
// told of the loss, and grants it when the lock-delay is over, or earlier if the
// lost lock is released, which says that its work has ended.
//
// # Errors
//
// Errors are tested with errors.Is against the variables of this package and
// with errors.As for *Error, *HeldError and *TxnError. A write that failed was
// not done, and will not be, unless its error is ErrUnknownOutcome: then it may
// have been.
//
// Values of this package are safe for use by several goroutines, unless they
// say otherwise.
package client
