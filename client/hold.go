package client

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/seed70370324/lockd/internal/nodepath"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// Hold names one holding of a lock by value, so that a program can pass it to
// another, which writes under the condition WhileHeld. Unlike a fence it is the
// holding of one session alone: it is over with the release, or the loss, of
// that lock, even while others hold it in shared mode. A Hold is no secret and
// no proof of who sends it: any client can write one down.
type Hold struct {
	Path    string // of the lock
	Session uint64
	Ticket  uint64 // names the holding within its session
	Cell    uint64 // identity of the cell, 0 if it is not known
}

// holdPrefix names the text form and its version.
const holdPrefix = "lockd-hold1"

// String returns the text form, which ParseHold reads:
// lockd-hold1:<session>:<ticket>:<cell identity, hex>:<path>.
func (h Hold) String() string {
	return fmt.Sprintf("%s:%d:%d:%x:%s", holdPrefix, h.Session, h.Ticket, h.Cell, h.Path)
}

// ParseHold reads the text form of a Hold, as Hold.String writes it. A text
// that names no holding is refused with ErrInvalid.
func ParseHold(text string) (Hold, error) {
	parts := strings.SplitN(text, ":", 5)
	if len(parts) != 5 || parts[0] != holdPrefix {
		return Hold{}, holdError(text, "it is not of the form "+holdPrefix+":SESSION:TICKET:CELL:PATH")
	}
	h := Hold{Path: parts[4]}
	for _, p := range []struct {
		what string
		text string
		base int
		into *uint64
	}{{"session", parts[1], 10, &h.Session}, {"ticket", parts[2], 10, &h.Ticket}, {"cell identity", parts[3], 16, &h.Cell}} {
		n, err := strconv.ParseUint(p.text, p.base, 64)
		if err != nil {
			return Hold{}, holdError(text, fmt.Sprintf("its %s %q is not a number", p.what, p.text))
		}
		*p.into = n
	}
	if fault := h.fault(); fault != "" {
		return Hold{}, holdError(text, fault)
	}
	return h, nil
}

func holdError(text, why string) error {
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return &Error{Op: "parse hold", Path: fmt.Sprintf("%q", text), Err: ErrInvalid, Detail: why}
}

// fault tells why h names no holding; "" if it may.
func (h Hold) fault() string {
	switch {
	case h.Session == 0:
		return "it names no session"
	case h.Ticket == 0:
		return "it names no ticket"
	}
	if err := nodepath.Check(h.Path); err != nil {
		return fmt.Sprintf("its path %q: %v", h.Path, err)
	}
	return ""
}

func (h Hold) proto() *storepb.Holding {
	return &storepb.Holding{Path: h.Path, Session: h.Session, Ticket: h.Ticket}
}

// Hold names this holding of the lock for other programs, which write with
// WhileHeld.
func (l *Lock) Hold() Hold {
	return Hold{Path: l.path, Session: l.d.sessionID(), Ticket: l.grant.GetTicket(), Cell: l.cell}
}
