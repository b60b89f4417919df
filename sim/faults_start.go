package sim

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/paxos"
	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

// faultWrongStart starts a process with the data of a replica that does not run,
// and with options or an identity that do not fit: it must be told so, and say
// what is wrong.
func (w *World) faultWrongStart() {
	p := pick(w.faultRandom, w.replicas)
	if p.up || p.refused != nil || p.emptied || p.spoiled || p.opened == nil || p.full || p.unreadable != "" {
		return
	}
	s := w.faultRandom
	w.happened(FaultWrongStart)
	w.trace.add(w.now, "wrong start", uint64(p.index))
	copied := p.fs.Kill() // what is done to it is not done to the replica
	var err error
	what := ""
	switch s.below(4) {
	case 0:
		what, err = "another name", openAs(w, copied, cellName, "nobody")
		var foreign *ondisk.ForeignError
		if !errors.As(err, &foreign) {
			err = wrongError(err)
		}
	case 1:
		what, err = "data of another format", w.openFormat(copied, pick(s, []int{-1, 1}))
	default:
		what, err = w.startWithOptions(p, copied)
	}
	switch {
	case errors.Is(err, errStarts):
		w.fail("start", "%s starts with %s (%v)", p.name, what, err)
	case isDiskFault(err):
	case err == nil || len(err.Error()) < 20:
		w.fail("start", "%s is started with %s and says: %v", p.name, what, err)
	default:
		w.tell(p.name, "is started with %s: %v", what, err)
	}
}

// errStarts is the error of what starts, or fails for another reason, where it
// must be refused.
var errStarts = errors.New("it is not refused for that")

func wrongError(err error) error { return fmt.Errorf("%w: %v", errStarts, err) }

func openAs(w *World, f *faultfs.FS, cell, name string) error {
	opened, err := storage.Open(storage.Options{FS: f, Cell: cell, Replica: name, SegmentBytes: w.plan.segmentBytes,
		Decode: replica.DecodeSnapshot, NewIncarnation: func() uint64 { return 1 }})
	if err == nil {
		err = errors.Join(errStarts, opened.Storage.Close())
	}
	return err
}

// openFormat opens data whose identity says that another version wrote them.
func (w *World) openFormat(f *faultfs.FS, by int) error {
	data, err := f.ReadFile("identity")
	if err != nil {
		return err
	}
	first, rest, _ := bytes.Cut(data, []byte("\n"))
	var format int
	if _, err := fmt.Sscanf(string(first), "lockd-identity %d", &format); err != nil {
		return wrongError(err)
	}
	text := fmt.Sprintf("lockd-identity %d\n%s", format+by, rest[:bytes.LastIndex(rest, []byte("crc32c "))])
	text += fmt.Sprintf("crc32c %08x\n", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
	if err := f.WriteFile("identity", []byte(text)); err != nil {
		return wrongError(err)
	}
	err = openAs(w, f, cellName, w.replicas[0].name)
	if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("format %d", format+by)) {
		return wrongError(err)
	}
	return err
}

// startWithOptions starts a replica whose list of members, or name, does not fit
// its data.
func (w *World) startWithOptions(p *process, f *faultfs.FS) (what string, err error) {
	opened, err := storage.Open(storage.Options{FS: f, Cell: cellName, Replica: p.name, SegmentBytes: w.plan.segmentBytes,
		Decode: replica.DecodeSnapshot, NewIncarnation: func() uint64 { return 1 }})
	if err != nil {
		return "", fmt.Errorf("its data cannot be opened now: %w", err)
	}
	o := p.options()
	o.Observer = nil
	n := &o.Node
	kind := w.faultRandom.below(6)
	if p.identity == 0 {
		kind %= 3 // there is no configuration yet that could differ
	}
	switch kind {
	case 0:
		what = "a list of members without it"
		n.InitialCluster = []paxos.Member{{Name: "somebody"}, {Name: "nobody"}}
	case 1:
		what = "a list of members that names one twice"
		n.InitialCluster = append(n.InitialCluster, n.InitialCluster[0])
	case 2:
		what = "a list of members with one that has no name"
		n.InitialCluster = append(n.InitialCluster, paxos.Member{})
	case 3:
		what = "the name of another"
		n.Name = "nobody"
		n.InitialCluster = append(n.InitialCluster, paxos.Member{Name: "nobody"})
	case 4:
		what = "the log of another cell"
		n.Cell = "another"
	case 5:
		what = "an identity that was copied"
		opened.Identity.Incarnation ^= 1
	}
	if _, err = replica.New(o, &opened.Found); err == nil {
		err = errStarts
	}
	if closing := opened.Storage.Close(); closing != nil {
		err = errors.Join(wrongError(closing), err)
	}
	return what, err
}

// troubleAtFounding connects founders with strangers that say things that must
// keep a cell from being founded, as long as they are there.
func (w *World) troubleAtFounding() {
	if !w.plan.strangeFounding {
		return
	}
	s := newStream(w.seed, 32)
	for n := s.between(2, 8); n > 0; n-- {
		w.after(s.below(900*millisecond), func() {
			shared := w.faultRandom
			w.faultRandom = s
			w.strangerAtFounding()
			w.faultRandom = shared
		})
	}
}

func (w *World) strangerAtFounding() {
	s := w.faultRandom
	to, from := w.replicas[s.below(2)], pick(s, w.replicas)
	if from == to || !to.up || len(w.history.slots) > 0 || to.identity != 0 {
		return
	}
	for _, c := range w.net.pairs {
		if c.deceived == nil && (c.a == to && c.b == from || c.a == from && c.b == to) {
			w.connectStranger(c, from, to)
		}
	}
}

// dieAtFounding ends a founder just after it has let its accept of slot 1 or its
// vote for it leave.
func (w *World) dieAtFounding(p *process, kind paxos.MessageKind) {
	if !w.plan.foundingCrash || len(w.history.slots) > 0 || kind != paxos.MsgAccept && kind != paxos.MsgAccepted || p.founderDied >= 2 {
		return
	}
	if !w.faultRandom.chance(500_000) {
		return
	}
	p.founderDied++
	boot := p.boot
	w.after(w.faultRandom.skewed(0, 3*millisecond), func() {
		if p.up && p.boot == boot {
			w.happened(FaultFounderKilled)
			w.crashAndRestart(p, "killed while the cell is founded")
		}
	})
}
