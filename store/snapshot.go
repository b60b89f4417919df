package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/seed70370324/lockd/internal/invariant"
	"github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// A snapshot is a stream of pb.SnapshotRecord, each behind its length as an
// unsigned varint: the header, sessions by number, nodes by parent's path and
// name, tombstones (locks whose node is gone) by path, the trailer. It holds
// everything that the state hash covers, and the trailer has the hash. What
// can be worked out from it (indexes, counts, timers) is not in it.

// SnapshotFormat is the format that WriteSnapshot writes.
const SnapshotFormat = 2

// recordMax bounds a record. The largest are those of a node with all the content
// and a lock with WaitersMax holders and waiters, each with the longest texts. A
// session's results and events are more than that: what is over partBytes goes on
// in further records, each of which has one result or event more at most.
const (
	recordMax = 32 << 20
	partBytes = 512 << 10
)

// WriteSnapshot writes the state. It may run beside Apply on a Clone.
func (s *Store) WriteSnapshot(w io.Writer) error {
	out := &recordWriter{w: bufio.NewWriterSize(w, 1<<16)}
	out.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Header{Header: &pb.SnapshotHeader{
		Format: SnapshotFormat, Revision: s.revision, Epoch: s.epoch, CellTime: s.cellTime,
		WallMs: s.wallMS, Cell: s.cell, CellIdentity: s.identity,
	}}})
	s.sessions.Ascend(func(i sessionItem) bool {
		return out.writeSession(s.saveSession(i))
	})
	// One record serves for all nodes: there may be millions.
	node := &pb.SnapshotNode{Stat: new(pb.Stat)}
	record := &pb.SnapshotRecord{Record: &pb.SnapshotRecord_Node{Node: node}}
	s.nodes.Ascend(func(i nodeItem) bool {
		s.saveNode(node, i)
		return out.write(record)
	})
	s.locks.Ascend(func(i lockItem) bool {
		if _, ok := s.node(i.path); ok {
			return true
		}
		return out.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Tombstone{Tombstone: s.saveLock(i.path, i.lock)}})
	})
	out.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Trailer{Trailer: &pb.SnapshotTrailer{
		Hash: s.Hash(), Records: out.records,
	}}})
	if out.err == nil {
		out.err = out.w.Flush()
	}
	if out.err != nil {
		return fmt.Errorf("writing snapshot record %d: %w", out.records, out.err)
	}
	return nil
}

type recordWriter struct {
	w       *bufio.Writer
	buffer  []byte
	records uint64
	err     error
}

func (o *recordWriter) write(r *pb.SnapshotRecord) bool {
	if o.err != nil {
		return false
	}
	size := r.SizeVT()
	o.buffer = slices.Grow(o.buffer[:0], size)[:size]
	_, o.err = r.MarshalToSizedBufferVT(o.buffer)
	// Invariant: what is written can be read.
	if len(o.buffer) > recordMax {
		o.err = fmt.Errorf("it would be %d bytes long, the limit is %d", len(o.buffer), recordMax)
	}
	if o.err != nil {
		return false
	}
	var length [binary.MaxVarintLen64]byte
	n := binary.PutUvarint(length[:], uint64(len(o.buffer)))
	if _, o.err = o.w.Write(length[:n]); o.err == nil {
		_, o.err = o.w.Write(o.buffer)
	}
	o.records++
	return o.err == nil
}

// writeSession writes a session, and what does not fit one record in records
// that have its number and further results and events alone.
func (o *recordWriter) writeSession(r *pb.SnapshotSession) bool {
	results, events := r.Results, r.Events
	r.Results, r.Events = nil, nil
	for size := 0; len(results)+len(events) > 0; {
		if size >= partBytes {
			if !o.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Session{Session: r}}) {
				return false
			}
			r, size = &pb.SnapshotSession{Id: r.Id}, 0
		}
		if len(results) > 0 {
			size += proto.Size(results[0])
			r.Results, results = append(r.Results, results[0]), results[1:]
		} else {
			size += proto.Size(events[0])
			r.Events, events = append(r.Events, events[0]), events[1:]
		}
	}
	return o.write(&pb.SnapshotRecord{Record: &pb.SnapshotRecord_Session{Session: r}})
}

func (s *Store) saveSession(i sessionItem) *pb.SnapshotSession {
	r := &pb.SnapshotSession{
		Id: i.id, Nonce: []byte(i.nonce), LeaseMs: i.leaseMS, Client: i.client, Caches: i.caches,
		LastNumber: i.last, LowestUnanswered: i.lowest, NextEvent: i.nextEvent, AckedEvent: i.acked,
		LastChange: i.lastChange, OpenedMs: i.openedMS, LeaseEndCell: i.leaseEnd,
	}
	if !invariant.Planted(invariant.ResultsNotSaved) {
		for _, x := range i.results.all() {
			r.Results = append(r.Results, x.Result)
		}
	}
	s.Events(i.id, 0, func(e *pb.SessionEvent) bool {
		r.Events = append(r.Events, e)
		return true
	})
	return r
}

// saveNode makes r, which has a Stat, describe a node.
func (s *Store) saveNode(r *pb.SnapshotNode, i nodeItem) {
	r.Path = join(i.dir, i.name)
	s.fillStat(r.Stat, r.Path, i.node)
	r.Data, r.HasData = i.data, i.hasData
	r.NextSequence, r.Used, r.Implied = i.nextSeq, i.used, i.implied
	r.Lock = nil
	if l, ok := s.lock(r.Path); ok {
		r.Lock = s.saveLock("", l)
		s.saveClaims(r.Path, r.Lock)
	} else if i.lockGen != 0 || i.fence != 0 {
		r.Lock = &pb.SnapshotLock{Generation: i.lockGen, Fence: i.fence}
	}
}

func (s *Store) saveLock(path string, l *lock) *pb.SnapshotLock {
	r := &pb.SnapshotLock{Path: path, Generation: l.generation, Fence: l.fence}
	if path != "" {
		s.saveClaims(path, r)
	}
	return r
}

func (s *Store) saveClaims(path string, r *pb.SnapshotLock) {
	scan(s.holders, path, func(c *claim) bool { r.Holders = append(r.Holders, c.blocker()); return true })
	scan(s.waiters, path, func(c *claim) bool { r.Waiters = append(r.Waiters, c.blocker()); return true })
}

// ReadSnapshot reads a state that WriteSnapshot has written, to the end of r.
// The state is the same, to the hash; anything else is an error, and so is a
// state that breaks an invariant (Check).
func ReadSnapshot(r io.Reader) (*Store, error) {
	in := &recordReader{r: bufio.NewReaderSize(r, 1<<16)}
	s := empty()
	var trailer *pb.SnapshotTrailer
	for trailer == nil {
		record, err := in.read()
		if err == nil {
			trailer, err = s.load(in.records, record)
		}
		if err != nil {
			return nil, fmt.Errorf("reading snapshot record %d: %w", in.records, err)
		}
		in.records++
	}
	if trailer.Records != in.records-1 {
		return nil, fmt.Errorf("reading snapshot: its trailer counts %d records, there are %d", trailer.Records, in.records-1)
	}
	if _, err := in.r.ReadByte(); err == nil {
		return nil, errors.New("reading snapshot: there is something behind its trailer")
	} else if err != io.EOF {
		return nil, fmt.Errorf("reading the end of the snapshot: %w", err)
	}
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("reading snapshot: %w", err)
	}
	if s.Hash() != trailer.Hash {
		return nil, fmt.Errorf("reading snapshot: the state's hash is %016x, the trailer says %016x", s.Hash(), trailer.Hash)
	}
	return s, nil
}

type recordReader struct {
	r       *bufio.Reader
	buffer  bytes.Buffer
	records uint64
}

func (in *recordReader) read() (*pb.SnapshotRecord, error) {
	length, err := binary.ReadUvarint(in.r)
	if err == io.EOF {
		return nil, io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, err
	}
	if length > recordMax {
		return nil, fmt.Errorf("it is said to be %d bytes long, the limit is %d", length, recordMax)
	}
	// The buffer grows with what is there, not with what a damaged length says.
	in.buffer.Reset()
	if n, err := io.CopyN(&in.buffer, in.r, int64(length)); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("it ends after %d of %d bytes: %w", n, length, err)
	}
	record := new(pb.SnapshotRecord)
	if err := record.UnmarshalVT(in.buffer.Bytes()); err != nil {
		return nil, fmt.Errorf("decoding it: %w", err)
	}
	return record, nil
}

// load puts one record into the state; it returns the trailer.
func (s *Store) load(index uint64, record *pb.SnapshotRecord) (*pb.SnapshotTrailer, error) {
	header, isHeader := record.Record.(*pb.SnapshotRecord_Header)
	if isHeader != (index == 0) {
		return nil, errors.New("a snapshot has one header, at its start")
	}
	switch r := record.Record.(type) {
	case *pb.SnapshotRecord_Header:
		h := header.Header
		if h.Format != SnapshotFormat {
			return nil, fmt.Errorf("its format is %d, this program reads %d", h.Format, SnapshotFormat)
		}
		s.revision, s.epoch, s.cellTime, s.wallMS = h.Revision, h.Epoch, h.CellTime, h.WallMs
		s.cell, s.identity = h.Cell, h.CellIdentity
	case *pb.SnapshotRecord_Session:
		return nil, s.loadSession(r.Session)
	case *pb.SnapshotRecord_Node:
		return nil, s.loadNode(r.Node)
	case *pb.SnapshotRecord_Tombstone:
		if reason := badPath(r.Tombstone.Path); reason != "" {
			return nil, &PathError{r.Tombstone.Path, reason}
		}
		s.loadLock(r.Tombstone.Path, r.Tombstone)
	case *pb.SnapshotRecord_Trailer:
		return r.Trailer, nil
	default:
		return nil, errors.New("its kind is unknown to this program")
	}
	return nil, nil
}

func (s *Store) loadSession(r *pb.SnapshotSession) error {
	x, further := s.session(r.Id)
	if !further {
		x = s.loadSessionHead(r)
	}
	for _, one := range r.Results {
		if !x.results.follows(one.Number) {
			return fmt.Errorf("result %d of session %d is there twice, or not in its place", one.Number, r.Id)
		}
		kept := keptResult{hashOfResult(r.Id, one.Number, one), one}
		x.results.add(kept)
		s.sum += kept.hash
		s.countResult(x, one, +1)
	}
	for _, e := range r.Events {
		h := hashOfEvent(r.Id, e)
		if _, twice := s.events.ReplaceOrInsert(eventItem{r.Id, e.Number, h, e}); twice {
			return fmt.Errorf("event %d of session %d is there twice", e.Number, r.Id)
		}
		s.sum += h
		s.countEvent(x, e, +1)
	}
	return nil
}

func (s *Store) loadSessionHead(r *pb.SnapshotSession) *session {
	x := &session{
		nonce: string(r.Nonce), client: r.Client, leaseMS: r.LeaseMs, last: r.LastNumber,
		lowest: r.LowestUnanswered, nextEvent: r.NextEvent, acked: r.AckedEvent,
		lastChange: r.LastChange, openedMS: r.OpenedMs, caches: r.Caches, leaseEnd: r.LeaseEndCell,
	}
	s.addSession(r.Id, x)
	s.nonces.ReplaceOrInsert(nonceItem{x.nonce, r.Id})
	if x.leaseEnd != 0 {
		s.noted.ReplaceOrInsert(r.Id)
	}
	return x
}

func (s *Store) loadNode(r *pb.SnapshotNode) error {
	if reason := badPath(r.Path); reason != "" {
		return &PathError{r.Path, reason}
	}
	t := r.GetStat()
	n := &node{
		instance: t.GetInstance(), contentGen: t.GetContentGeneration(), aclGen: t.GetAclGeneration(),
		modifyRev: t.GetModifyRevision(), createMS: t.GetCreateMs(), modifyMS: t.GetModifyMs(),
		owner: t.GetOwner(), childGen: t.GetChildGeneration(), childRev: t.GetChildRevision(),
		nextSeq: r.NextSequence, children: t.GetChildren(), kind: t.GetKind(), used: r.Used, implied: r.Implied,
	}
	n.setData(r.Data, r.HasData)
	if n.checksum != t.GetChecksum() {
		return fmt.Errorf("the content of %s has checksum %016x, its record says %016x", r.Path, n.checksum, t.GetChecksum())
	}
	inUse := len(r.GetLock().GetHolders())+len(r.GetLock().GetWaiters()) > 0
	if inUse {
		n.locked = true
	} else {
		n.lockGen, n.fence = r.GetLock().GetGeneration(), r.GetLock().GetFence()
	}
	if n.kind == pb.NodeKind_EPHEMERAL {
		s.ephemerals.ReplaceOrInsert(ephemeralItem{n.owner, r.Path})
		s.countEphemeral(n.owner, +1)
	}
	dir, name := split(r.Path)
	dir, name = s.share(dir, name)
	s.putNode(nodeItem{dir, name, n})
	if inUse {
		s.loadLock(r.Path, r.Lock)
	}
	return nil
}

func (s *Store) loadLock(path string, r *pb.SnapshotLock) {
	s.addLock(path, &lock{generation: r.Generation, fence: r.Fence})
	for _, b := range r.Holders {
		state := held
		if b.Ghost {
			state = ghost
		}
		s.loadClaim(path, state, b.GhostUntilCell, b)
	}
	for _, b := range r.Waiters {
		s.loadClaim(path, waiting, b.DeadlineCell, b)
	}
}

func (s *Store) loadClaim(path string, state claimState, until int64, b *pb.Blocker) {
	client := b.Client
	if x, ok := s.session(b.Session); ok && proto.Equal(client, x.client) {
		client = x.client // one copy for all
	}
	s.addClaim(&claim{
		session: b.Session, ticket: b.Ticket, path: path, client: client, revision: b.Revision,
		fence: b.Fence, sinceWall: b.SinceWallMs, sinceCell: b.SinceCell, until: until,
		delayMS: b.LockDelayMs, leaseMS: b.LeaseMs, mode: b.Mode, state: state,
	})
}
