package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/internal/sequencer"
)

// holderRow and waiterRow are holders and waiters in JSON.
type holderRow struct {
	Session     uint64    `json:"session,string"`
	Client      string    `json:"client"`
	Host        string    `json:"host"`
	PID         int       `json:"pid"`
	Mode        string    `json:"mode"`
	Fence       uint64    `json:"fence,string"`
	Since       time.Time `json:"since"`
	HeldMS      int64     `json:"held_ms,string"`
	LeaseMS     int64     `json:"lease_ms,string"`
	LeaseLeftMS int64     `json:"lease_left_ms,string"`
	LockDelayMS int64     `json:"lock_delay_ms,string"`
	Lost        bool      `json:"lost"`
	LostLeftMS  int64     `json:"lost_left_ms,string"`
}

type waiterRow struct {
	Place    int       `json:"place"`
	Session  uint64    `json:"session,string"`
	Client   string    `json:"client"`
	Host     string    `json:"host"`
	PID      int       `json:"pid"`
	Mode     string    `json:"mode"`
	Since    time.Time `json:"since"`
	WaitedMS int64     `json:"waited_ms,string"`
	LeftMS   int64     `json:"gives_up_in_ms,string"`
}

type lockRow struct {
	Path       string      `json:"path"`
	Exists     bool        `json:"exists"` // there is a node of that path
	Fence      uint64      `json:"fence,string"`
	Generation uint64      `json:"lock_generation,string"`
	Holders    []holderRow `json:"holders"`
	Waiters    []waiterRow `json:"waiters"`
}

func lockJSON(l client.LockInfo) lockRow {
	row := lockRow{Path: l.Path, Exists: true, Fence: l.Fence, Generation: l.Generation, Holders: []holderRow{}, Waiters: []waiterRow{}}
	for _, h := range l.Holders {
		row.Holders = append(row.Holders, holderRow{
			Session: h.Session, Client: h.Client.Name, Host: h.Client.Host, PID: h.Client.PID,
			Mode: h.Mode.String(), Fence: h.Fence, Since: h.Since, HeldMS: h.Held.Milliseconds(),
			LeaseMS: h.Lease.Milliseconds(), LeaseLeftMS: millis(h.LeaseLeft), LockDelayMS: h.LockDelay.Milliseconds(),
			Lost: h.Ghost, LostLeftMS: millis(h.GhostLeft),
		})
	}
	for i, w := range l.Waiters {
		row.Waiters = append(row.Waiters, waiterRow{
			Place: i + 1, Session: w.Session, Client: w.Client.Name, Host: w.Client.Host, PID: w.Client.PID,
			Mode: w.Mode.String(), Since: w.Since, WaitedMS: w.Waited.Milliseconds(), LeftMS: millis(w.Left),
		})
	}
	return row
}

// millis keeps -1, "not known or never", as it is.
func millis(d time.Duration) int64 {
	if d < 0 {
		return -1
	}
	return d.Milliseconds()
}

func (a *app) whyCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "why PATH",
		Short: "Show who holds a lock and why others wait",
		Long: `Shows who holds the lock of PATH: program, host, pid, fence, since when, what is
left of its lease, its lock-delay; and who waits, in order, and for how long.`,
		Args: arguments("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, r *client.Reader, js bool) error {
				l, err := r.Why(ctx, args[0])
				if err != nil {
					return err
				}
				exists, err := nodeExists(ctx, r, l)
				if err != nil {
					return err
				}
				if js {
					row := lockJSON(l)
					row.Exists = exists
					return printJSON(row)
				}
				return printWhy(l, exists)
			})
		},
	}
}

// nodeExists tells a free lock from one whose node does not exist, or not any
// more: then it is in its lock-delay. A lock that somebody holds or waits for
// has a node.
func nodeExists(ctx context.Context, r *client.Reader, l client.LockInfo) (bool, error) {
	for _, h := range l.Holders {
		if !h.Ghost {
			return true, nil
		}
	}
	if len(l.Waiters) > 0 {
		return true, nil
	}
	_, err := r.Stat(ctx, l.Path)
	if errors.Is(err, client.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func printWhy(l client.LockInfo, exists bool) error {
	t := newTable()
	switch {
	case len(l.Holders) > 0:
	case exists:
		t.row(l.Path + " is free")
	default:
		t.row(l.Path + " does not exist, so its lock is free ('lockctl lock " + l.Path + "' would create it)")
	}
	for _, h := range l.Holders {
		if h.Ghost {
			t.row(l.Path + " is not held: its last holder disappeared without releasing it")
			t.row("  last holder", h.Client.String())
			t.row("  session", h.Session)
			t.row("  mode, fence", fmt.Sprintf("%v, %d", h.Mode, h.Fence))
			t.row("  granted", stamp(h.Since))
			t.row("  lock-delay", span(h.LockDelay))
			t.row("  available in", span(h.GhostLeft))
			continue
		}
		t.row(l.Path + " is held")
		t.row("  by", h.Client.Name)
		t.row("  host, pid", fmt.Sprintf("%s, %d", h.Client.Host, h.Client.PID))
		t.row("  session", h.Session)
		t.row("  mode, fence", fmt.Sprintf("%v, %d", h.Mode, h.Fence))
		t.row("  since", fmt.Sprintf("%s (%s)", stamp(h.Since), span(h.Held)))
		t.row("  lease left", fmt.Sprintf("%s of %s", span(h.LeaseLeft), span(h.Lease)))
		t.row("  lock-delay", span(h.LockDelay))
	}
	if err := t.print(); err != nil {
		return err
	}
	if len(l.Waiters) == 0 {
		_, err := fmt.Println("no waiters")
		return err
	}
	w := newTable("POSITION", "MODE", "CLIENT", "HOST", "PID", "WAITING", "GIVES UP IN", "SESSION")
	for i, x := range l.Waiters {
		left := "never"
		if x.Left >= 0 {
			left = span(x.Left)
		}
		w.row(i+1, x.Mode, x.Client.Name, x.Client.Host, x.Client.PID, span(x.Waited), left, x.Session)
	}
	return w.print()
}

func (a *app) locksCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "locks [PATH]",
		Short: "List locks that are held or waited for, at and below PATH",
		Args:  arguments("[PATH]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "/"
			if len(args) > 0 {
				path = args[0]
			}
			return a.read(cmd.Context(), func(ctx context.Context, r *client.Reader, js bool) error {
				var rows []lockRow
				t := newTable("LOCK", "STATE", "MODE", "FENCE", "CLIENT", "HOST", "PID", "SINCE", "FOR")
				found := false
				for l, err := range r.Locks(ctx, path) {
					if err != nil {
						return err
					}
					found = true
					if js {
						row := lockJSON(l)
						if row.Exists, err = nodeExists(ctx, r, l); err != nil {
							return err
						}
						rows = append(rows, row)
						continue
					}
					for _, h := range l.Holders {
						state := "held"
						if h.Ghost {
							state = "lock-delay"
						}
						t.row(l.Path, state, h.Mode, h.Fence, h.Client.Name, h.Client.Host, h.Client.PID, stamp(h.Since), span(h.Held))
					}
					for i, w := range l.Waiters {
						t.row(l.Path, fmt.Sprintf("waits, %d", i+1), w.Mode, "", w.Client.Name, w.Client.Host, w.Client.PID, stamp(w.Since), span(w.Waited))
					}
				}
				if !found {
					// Nothing to list: because there is nothing, or because of a typing error?
					exists, err := nodeExists(ctx, r, client.LockInfo{Path: path})
					if err != nil {
						return err
					}
					if !exists {
						fmt.Fprintf(os.Stderr, "lockctl: %s does not exist\n", path)
					}
				}
				if js {
					return printJSON(orEmpty(rows))
				}
				return t.print()
			})
		},
	}
}

func (a *app) breakCmd() *cobra.Command {
	var fence string
	c := &cobra.Command{
		Use:   "break PATH --fence N",
		Short: "Take a lock away from its holder",
		Long: `Takes the lock of PATH away from its holder, who is told. The fence ('lockctl
why PATH' shows it) says which grant is meant, so that nobody else is hit. The
next in the queue gets the lock when the holder says that its work has ended,
or when its lease and lock-delay have run out.`,
		Args: arguments("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if fence == "" {
				return usagef("--fence N is needed: the fence of the grant to break, from 'lockctl why %s'", args[0])
			}
			n, err := strconv.ParseUint(fence, 10, 64)
			if err != nil || n == 0 {
				return usagef("--fence %q is not a fence: 'lockctl why %s' shows that of the grant to break", fence, args[0])
			}
			err = a.withSession(cmd.Context(), "lockctl break", func(ctx context.Context, s *client.Session) error {
				return s.Break(ctx, args[0], n)
			})
			if errors.Is(err, client.ErrLost) {
				return fmt.Errorf("%w ('lockctl why %s' shows who holds it, and under which fence)", err, args[0])
			}
			return err
		},
	}
	c.Flags().StringVar(&fence, "fence", "", "fence of the grant to break")
	return c
}

type sessionRow struct {
	ID          uint64    `json:"id,string"`
	Client      string    `json:"client"`
	Host        string    `json:"host"`
	PID         int       `json:"pid"`
	Address     string    `json:"address"`
	Opened      time.Time `json:"opened"`
	LeaseMS     int64     `json:"lease_ms,string"`
	LeaseLeftMS int64     `json:"lease_left_ms,string"`
	Locks       int       `json:"locks"`
	Waiting     int       `json:"waiting"`
	Ephemerals  int       `json:"ephemerals"`
}

func (a *app) sessionsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "sessions",
		Short: "List the cell's sessions",
		Args:  arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.read(cmd.Context(), func(ctx context.Context, r *client.Reader, js bool) error {
				var rows []sessionRow
				t := newTable("SESSION", "CLIENT", "HOST", "PID", "ADDRESS", "OPENED", "LEASE", "LEFT", "LOCKS", "WAITING", "EPHEMERALS")
				for s, err := range r.Sessions(ctx) {
					if err != nil {
						return err
					}
					if js {
						rows = append(rows, sessionRow{
							ID: s.ID, Client: s.Client.Name, Host: s.Client.Host, PID: s.Client.PID, Address: s.Address,
							Opened: s.Opened, LeaseMS: s.Lease.Milliseconds(), LeaseLeftMS: millis(s.LeaseLeft),
							Locks: s.Locks, Waiting: s.Waiting, Ephemerals: s.Ephemerals,
						})
						continue
					}
					address := s.Address
					if address == "" {
						address = "not connected"
					}
					t.row(s.ID, s.Client.Name, s.Client.Host, s.Client.PID, address, stamp(s.Opened), span(s.Lease),
						span(s.LeaseLeft), s.Locks, s.Waiting, s.Ephemerals)
				}
				if js {
					return printJSON(orEmpty(rows))
				}
				return t.print()
			})
		},
	}
}

type statusRow struct {
	Endpoint      string    `json:"endpoint"`
	Error         string    `json:"error,omitempty"`
	Cell          string    `json:"cell"`
	Replica       string    `json:"replica"`
	Role          string    `json:"role"`
	Master        string    `json:"master"`
	MasterAddress string    `json:"master_address"`
	Ballot        string    `json:"ballot"`
	Epoch         uint64    `json:"epoch,string"`
	Revision      uint64    `json:"revision,string"`
	Chosen        uint64    `json:"chosen,string"`
	Applied       uint64    `json:"applied,string"`
	FirstSlot     uint64    `json:"first_slot,string"`
	SnapshotSlot  uint64    `json:"snapshot_slot,string"`
	StateHash     string    `json:"state_hash"`
	Sessions      int       `json:"sessions"`
	Nodes         int       `json:"nodes"`
	Connections   int       `json:"connections"`
	UptimeMS      int64     `json:"uptime_ms,string"`
	Version       string    `json:"version"`
	Peers         []peerRow `json:"peers"`
}

type peerRow struct {
	Name      string `json:"name"`
	Address   string `json:"address"`
	Connected bool   `json:"connected"`
	Behind    uint64 `json:"behind,string"`
	HeardMS   int64  `json:"heard_ms_ago,string"`
}

func (a *app) statusCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show each replica's view of the cell",
		Long: `Asks every endpoint how it sees itself and the cell. The exit code is 0 if one
of them is master, 6 if none is (or none answers).`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			addresses, err := a.addresses()
			if err != nil {
				return err
			}
			rows := a.askAll(cmd.Context(), addresses)
			if err := cmd.Context().Err(); err != nil {
				return err
			}
			if js {
				err = printJSON(rows)
			} else {
				err = printStatus(rows)
			}
			if err != nil {
				return err
			}
			for _, r := range rows {
				if r.Role == "master" {
					return nil
				}
			}
			err = errors.New("none of the endpoints is the master")
			if nobodyListens(rows) {
				err = fmt.Errorf("%w: %s", err, startHint)
			}
			return &exitError{codeUnavailable, err}
		},
	}
}

// nobodyListens tells whether there is nothing at any endpoint.
func nobodyListens(rows []statusRow) bool {
	return !slices.ContainsFunc(rows, func(r statusRow) bool { return !strings.Contains(r.Error, syscall.ECONNREFUSED.Error()) })
}

// askAll asks every replica at once, so that a dead one costs one time-out.
func (a *app) askAll(ctx context.Context, addresses []string) []statusRow {
	ctx, cancel := context.WithTimeout(ctx, min(a.timeout, 3*time.Second))
	defer cancel()
	rows := make([]statusRow, len(addresses))
	var wg sync.WaitGroup
	for i, addr := range addresses {
		wg.Go(func() {
			st, err := client.Status(ctx, addr)
			if err != nil {
				rows[i] = statusRow{Endpoint: addr, Error: err.Error(), Peers: []peerRow{}}
				return
			}
			if a.cell != "" && st.Cell != a.cell {
				rows[i] = statusRow{Endpoint: addr, Cell: st.Cell, Peers: []peerRow{},
					Error: fmt.Sprintf("status %s: %v: it belongs to cell %q, not %q", addr, client.ErrWrongCell, st.Cell, a.cell)}
				return
			}
			rows[i] = statusJSON(addr, st)
		})
	}
	wg.Wait()
	return rows
}

func statusJSON(endpoint string, st client.ReplicaStatus) statusRow {
	row := statusRow{
		Endpoint: endpoint, Cell: st.Cell, Replica: st.Replica, Role: st.Role, Master: st.MasterName,
		MasterAddress: st.MasterAddress, Ballot: st.Ballot, Epoch: st.Epoch, Revision: st.Revision,
		Chosen: st.Chosen, Applied: st.Applied, FirstSlot: st.FirstSlot, SnapshotSlot: st.SnapshotSlot,
		StateHash: fmt.Sprintf("%016x", st.StateHash), Sessions: st.Sessions, Nodes: st.Nodes,
		Connections: st.Connections, UptimeMS: st.Uptime.Milliseconds(), Version: st.Version, Peers: []peerRow{},
	}
	for _, p := range st.Peers {
		row.Peers = append(row.Peers, peerRow{p.Name, p.Address, p.Connected, p.Behind, millis(p.Heard)})
	}
	return row
}

func printStatus(rows []statusRow) error {
	t := newTable("ENDPOINT", "CELL", "REPLICA", "ROLE", "MASTER", "EPOCH", "APPLIED", "REVISION", "SESSIONS", "NODES", "UP", "LAG (SLOTS)")
	for _, r := range rows {
		if r.Error != "" {
			why, cell := "no answer", "-"
			if r.Cell != "" {
				why, cell = "other cell", r.Cell
			}
			t.row(r.Endpoint, cell, "-", why)
			continue
		}
		var behind []string
		for _, p := range r.Peers {
			switch {
			case !p.Connected:
				behind = append(behind, p.Name+" not connected")
			case r.Role == "master":
				behind = append(behind, fmt.Sprintf("%s %d", p.Name, p.Behind))
			}
		}
		if len(behind) == 0 {
			behind = []string{"-"}
		}
		master := r.Master
		if master == "" {
			master = "-"
		}
		t.row(r.Endpoint, r.Cell, r.Replica, r.Role, master, r.Epoch, r.Applied, r.Revision, r.Sessions, r.Nodes,
			span(time.Duration(r.UptimeMS)*time.Millisecond), strings.Join(behind, ", "))
	}
	if err := t.print(); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Error != "" {
			fmt.Fprintf(os.Stderr, "lockctl: %s\n", r.Error)
		}
	}
	return nil
}

func (a *app) sequencerCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "sequencer",
		Short: "Work with sequencers",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "check SEQ",
		Short: "Ask whether a sequencer is valid",
		Long: `Asks the service whether the lock that the sequencer (LOCKD_SEQUENCER) describes
is still held. Exit code 0 if so, 5 if not.`,
		Args: arguments("SEQ"),
		RunE: func(cmd *cobra.Command, args []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			if _, err := sequencer.Parse(args[0]); err != nil {
				return usagef("sequencer check: %w", err)
			}
			return a.withReader(cmd.Context(), true, func(ctx context.Context, r *client.Reader) error {
				err := r.Check(ctx, args[0])
				if err != nil && !errors.Is(err, client.ErrLost) {
					return err
				}
				if js {
					reason := ""
					if err != nil {
						reason = err.Error()
					}
					if perr := printJSON(map[string]any{"valid": err == nil, "reason": reason}); perr != nil {
						return perr
					}
					if err != nil {
						return &exitError{codeInvalid, nil}
					}
					return nil
				}
				if err != nil {
					return &exitError{codeInvalid, fmt.Errorf("not valid: %w", err)}
				}
				_, err = fmt.Println("valid")
				return err
			})
		},
	})
	return c
}

type eventRow struct {
	Event    string   `json:"event"`
	Path     string   `json:"path"`
	Revision uint64   `json:"revision,string"`
	Data     []byte   `json:"data,omitempty"`
	Stat     *nodeRow `json:"stat,omitempty"`
	Reason   string   `json:"reason,omitempty"`
	Missed   bool     `json:"missed,omitempty"`
	// Of events of locks.
	Session uint64 `json:"session,string,omitempty"`
	Client  string `json:"client,omitempty"`
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Mode    string `json:"mode,omitempty"`
	Fence   uint64 `json:"fence,string,omitempty"`
	Ghost   bool   `json:"ghost,omitempty"`
}

func (a *app) watchCmd() *cobra.Command {
	var children, subtree, data, locks bool
	c := &cobra.Command{
		Use:   "watch PATH",
		Short: "Show what exists, then every change, until interrupted",
		Long: `Shows what exists, then "ready", then every change. It ends with INT or TERM, or
when nobody reads its output any more, as in a script that waits for a deletion:

  lockctl watch /job | grep -q -m 1 ^deleted

That waits for a deletion to come: if there is no /job, "ready" comes first.

Every change is shown, in order. After a reconnect, or when the output is read too
slowly, what differs is shown once and marked "missed": changes before it were not
shown.`,
		Args: arguments("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			js, err := a.json()
			if err != nil {
				return err
			}
			if children && subtree {
				return usagef("--children is part of --subtree: give one of them")
			}
			var options []client.WatchOption
			if children {
				options = append(options, client.Children())
			}
			if subtree {
				options = append(options, client.Subtree())
			}
			if !data {
				options = append(options, client.WithoutData())
			}
			if locks {
				options = append(options, client.WatchLocks())
			}
			watching, stop := untilUnread(cmd.Context())
			defer stop()
			return a.withReader(watching, false, func(ctx context.Context, r *client.Reader) error {
				for e, err := range r.Watch(ctx, args[0], options...) {
					if err != nil {
						if watching.Err() != nil {
							return nil
						}
						return err
					}
					if err := printEvent(e, js, data); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f := c.Flags()
	f.BoolVar(&children, "children", false, "the node and its direct children")
	f.BoolVarP(&subtree, "subtree", "r", false, "the node and everything below it")
	f.BoolVar(&data, "content", false, "print contents too")
	f.BoolVar(&locks, "locks", false, "show who gets and loses locks, too")
	return c
}

// printEvent prints a line for each event, in JSON one object a line.
func printEvent(e client.WatchEvent, js, data bool) error {
	lock := e.Kind >= client.EventHeld
	if js {
		row := eventRow{Event: e.Kind.String(), Path: e.Path, Revision: e.Revision, Data: e.Data,
			Reason: e.Reason.String(), Missed: e.Missed}
		if e.Kind == client.EventPresent || e.Kind == client.EventChanged {
			n := nodeJSON(e.Path, e.Stat)
			row.Stat = &n
		}
		if h := e.Holder; lock {
			row.Session, row.Client, row.Host, row.PID = h.Session, h.Client.Name, h.Client.Host, h.Client.PID
			row.Fence, row.Ghost = h.Fence, h.Ghost
			if h.Fence != 0 {
				row.Mode = h.Mode.String()
			}
		}
		return printJSONLine(row)
	}
	_, err := fmt.Println(eventLine(e, lock, data))
	return err
}

// eventLine is an event for people: kind, revision, path, then what else there is
// to say, "missed" last.
func eventLine(e client.WatchEvent, lock, data bool) string {
	line := fmt.Sprintf("%-8s %d", e.Kind, e.Revision)
	if e.Path != "" {
		line += " " + quoteName(e.Path)
	}
	if data && e.Data != nil {
		line += " " + strconv.Quote(string(e.Data))
	}
	if lock {
		line += fmt.Sprintf(" session %d", e.Holder.Session)
		if e.Holder.Fence != 0 {
			line += ", " + e.Holder.String()
		}
	}
	if e.Reason != client.ReasonUnknown && e.Reason != client.ReasonDeleted {
		line += " (" + strings.ReplaceAll(e.Reason.String(), "-", " ") + ")"
	}
	if e.Missed {
		line += " missed"
	}
	return line
}
