package machine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
)

const (
	// surveyTime is how long the addresses have to say who they are.
	surveyTime = time.Second
	// surveyPause is between two surveys while there is no cell.
	surveyPause = 250 * time.Millisecond
)

// survey asks all addresses at once who they are, before the first connection:
// one that belongs to another cell must not decide which cell is meant, and the
// master is found without trying one after the other.
//
// Invariant: the cell is the one whose identity the caller gave, or the one that
// more than half of the addresses name that answer in time. One that is down or
// silent has no vote, nor has a replica of a cell that is not founded.
type survey struct {
	on      bool
	end     time.Duration // decide then at the latest
	next    time.Duration // begin the next one
	answers []surveyed    // one for each address, in order
}

// surveyed is what an address has said.
type surveyed struct {
	address  string
	answered bool
	err      error  // no answer, or a refusal
	identity uint64 // 0: not founded, or an older service
	cell     string
	replica  string
	master   string // address, "" if it knows none
	isMaster bool
}

func (s surveyed) String() string {
	switch {
	case !s.answered:
		return s.address + ": no answer"
	case s.err != nil:
		return s.address + ": " + s.err.Error()
	case s.identity == 0:
		return fmt.Sprintf("%s: replica %s of a cell that is not founded", s.address, s.replica)
	default:
		return fmt.Sprintf("%s: replica %s of cell %s, identity %x", s.address, s.replica, s.cell, s.identity)
	}
}

// startSurvey asks all addresses, if there are several.
func (m *Machine) startSurvey() {
	v := &m.survey
	if !m.o.Survey || len(m.link.addresses) < 2 {
		return
	}
	*v = survey{on: true, end: m.now + surveyTime}
	for _, a := range m.link.addresses {
		v.answers = append(v.answers, surveyed{address: a})
		m.out.Ask = append(m.out.Ask, a)
	}
}

// asked takes what an address has said.
func (m *Machine) asked(e Asked) {
	s := surveyed{address: e.Address, answered: true, err: e.Err}
	switch b := e.Message.GetBody().(type) {
	case *pb.ServerMessage_Hello:
		h := b.Hello
		s.identity, s.cell, s.replica = h.GetCellIdentity(), h.GetCell(), h.GetReplica()
		s.isMaster, s.master = h.GetMaster(), h.GetMasterAddress()
		if s.isMaster {
			s.master = e.Address
		}
	case *pb.ServerMessage_Error:
		s.err = serviceError(b.Error)
		if code := b.Error.GetCode(); code == pb.ErrorCode_WRONG_CELL || code == pb.ErrorCode_BAD_VERSION {
			m.skip(e.Address, s.err)
		}
	default:
		if s.err == nil {
			s.err = errors.New("it answered with something else than a Hello")
		}
	}
	if m.ended() {
		return
	}
	if !m.survey.on {
		m.lateAnswer(s)
		return
	}
	if i := slices.IndexFunc(m.survey.answers, func(x surveyed) bool { return x.address == s.address }); i >= 0 {
		m.survey.answers[i] = s
	}
	m.checkSurvey()
}

// lateAnswer takes what came after the decision, perhaps when there is a session
// already: it may be from another cell.
func (m *Machine) lateAnswer(s surveyed) {
	if s.err != nil || s.identity == 0 || m.cellIdentity == 0 || s.identity == m.cellIdentity {
		return
	}
	m.skip(s.address, m.foreign(s))
	if len(m.link.addresses) > 1 && !m.ended() {
		m.dropAddress(s.address)
	}
}

func (m *Machine) foreign(s surveyed) error {
	return fmt.Errorf("%w: replica %s of cell %s, identity %x, not %x", ErrWrongCell, s.replica, s.cell, s.identity, m.cellIdentity)
}

// checkSurvey ends the survey if it can be decided, or its time is over, and
// begins the next one when that is due.
func (m *Machine) checkSurvey() {
	v := &m.survey
	if v.next > 0 && m.now >= v.next {
		v.next = 0
		m.startSurvey()
		return
	}
	if !v.on {
		return
	}
	all, voters, most, identity := m.count()
	over := m.now >= v.end || all
	switch {
	case m.o.CellIdentity != 0:
		if over || m.masterOf(m.o.CellIdentity) != "" {
			m.decided(m.o.CellIdentity)
		}
	case 2*most > len(v.answers): // whatever the others say
		m.decided(identity)
	case !over:
	case 2*most > voters:
		m.decided(identity)
	case voters > 0:
		m.end(Closed, fmt.Errorf("%w: the addresses name different cells, none more than half of those that answer: %s; name the one that is meant, by its identity",
			ErrWrongCell, m.whoSaidWhat()))
	case m.masterOf(0) != "": // an older service, which names no identity
		m.decided(0)
	default:
		m.surveyAgain()
	}
}

// count counts the votes: whether all have answered, how many have a vote, and
// the identity that most of them name.
func (m *Machine) count() (all bool, voters, most int, identity uint64) {
	all = true
	votes := map[uint64]int{}
	for _, s := range m.survey.answers {
		all = all && s.answered
		if s.err != nil || s.identity == 0 {
			continue
		}
		voters++
		votes[s.identity]++
		if votes[s.identity] > most {
			most, identity = votes[s.identity], s.identity
		}
	}
	return all, voters, most, identity
}

// masterOf returns the master's address as replicas of that cell name it; one
// that says so of itself counts first.
func (m *Machine) masterOf(identity uint64) (address string) {
	for _, s := range m.survey.answers {
		switch {
		case s.err != nil || s.identity != identity || s.master == "":
		case s.isMaster:
			return s.master
		case address == "":
			address = s.master
		}
	}
	return address
}

// decided ends the survey. Who belongs to another cell is skipped from now on.
func (m *Machine) decided(identity uint64) {
	v := &m.survey
	v.on = false
	if identity != 0 {
		m.cellIdentity = identity
	}
	m.link.hint = m.masterOf(identity)
	for _, s := range v.answers {
		if s.err == nil && s.identity != 0 && s.identity != identity {
			m.skip(s.address, m.foreign(s))
		}
		if m.ended() {
			return
		}
	}
}

// surveyAgain begins anew: no address could say which cell this is.
func (m *Machine) surveyAgain() {
	v := &m.survey
	v.on = false
	v.next = m.now + surveyPause
	for _, s := range v.answers {
		if s.err == nil && s.answered {
			s.err = errors.New("replica " + s.replica + " belongs to no cell that is founded")
		} else if s.err == nil {
			s.err = errNoAnswer
		}
		m.noteOf(s.address, s.err)
	}
}

func (m *Machine) surveying() bool { return m.survey.on || m.survey.next > 0 }

func (m *Machine) surveyWake() time.Duration {
	if m.survey.on {
		return m.survey.end
	}
	return m.survey.next
}

func (m *Machine) whoSaidWhat() string {
	var all []string
	for _, s := range m.survey.answers {
		all = append(all, s.String())
	}
	return strings.Join(all, "; ")
}

// skip leaves an address out that belongs to another cell or speaks no version
// of the protocol that this client does. It is told once. Before there is a
// session it is not tried again, and when no address is left, that is the end.
func (m *Machine) skip(address string, err error) {
	l := &m.link
	if !m.skipped(address) {
		m.strangers = append(m.strangers, attempt{address, err})
		m.out.Warnings = append(m.out.Warnings, address+" is skipped: "+err.Error())
	}
	if m.state != Connecting {
		return
	}
	m.dropAddress(address)
	if len(l.addresses) > 0 {
		return
	}
	var all error
	for i, s := range m.strangers {
		if i == 0 {
			all = fmt.Errorf("%s: %w", s.address, s.err)
		} else {
			all = fmt.Errorf("%w; %s: %w", all, s.address, s.err)
		}
	}
	m.end(Closed, all)
}

func (m *Machine) dropAddress(address string) {
	l := &m.link
	l.addresses = slices.DeleteFunc(l.addresses, func(a string) bool { return a == address })
}

// everyAddress: there is a session. From now on those that are skipped for their
// version are tried again, for a cell changes its version while it is up.
func (m *Machine) everyAddress() {
	for _, s := range m.strangers {
		if !errors.Is(s.err, ErrWrongCell) {
			m.link.addresses = append(m.link.addresses, s.address)
		}
	}
	m.strangers = slices.DeleteFunc(m.strangers, func(s attempt) bool { return !errors.Is(s.err, ErrWrongCell) })
}

func (m *Machine) skipped(address string) bool {
	return slices.ContainsFunc(m.strangers, func(s attempt) bool { return s.address == address })
}
