package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/lockd/admin"
	"github.com/seed70370324/lockd/lockd/replica"
	"github.com/seed70370324/lockd/replog"
	"github.com/seed70370324/lockd/replog/storage"
)

// handOverTime bounds how long a stopping master waits for its successor.
const handOverTime = 2 * time.Second

var (
	errStopping = errors.New("the replica is stopping")
	errStarting = errors.New("the replica is starting: it reads its log")
)

// Server is a replica with everything around it. New makes it, Run runs it
// once.
type Server struct {
	cfg       Config
	log       *slog.Logger
	listeners *listeners
	metrics   *shellMetrics
	loop      atomic.Pointer[loop] // nil while starting

	failOnce sync.Once
	failure  error         // set before failed is closed
	failed   chan struct{} // the replica must stop at once
}

// New checks the configuration and takes the ports. Nothing else is touched:
// the data directory is opened by Run. A *ConfigError says what is wrong with
// the flags; another error, that a port cannot be had. Whoever does not go on
// to Run must call Close.
func New(cfg Config) (*Server, error) {
	cfg.Limits.fitMemory(memoryBytes())
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l, err := bind(&cfg)
	if err != nil {
		return nil, err
	}
	cfg.resolve(l.client.Addr(), l.peer.Addr())
	log := cfg.Logger.With("replica", cfg.Name)
	if files := openFiles(); cfg.Limits.fit(files) {
		level := slog.LevelInfo
		if cfg.Limits.MaxConnections < fewConnections {
			level = slog.LevelWarn
		}
		log.Log(context.Background(), level, "fewer clients are let in because of the limit of open files: raise it (ulimit -n, LimitNOFILE) if they are too few",
			"open_files", files, "connections", cfg.Limits.MaxConnections)
	}
	return &Server{
		cfg: cfg, log: log, listeners: l,
		metrics: newShellMetrics(), failed: make(chan struct{}),
	}, nil
}

// ClientAddress is what clients are told to connect to.
func (s *Server) ClientAddress() string { return s.cfg.AdvertiseClient }

// PeerAddress is what other replicas are told to connect to.
func (s *Server) PeerAddress() string { return s.cfg.AdvertisePeer }

// HTTPAddress is the address of the HTTP listener, "" if there is none.
func (s *Server) HTTPAddress() string {
	if s.listeners.http == nil {
		return ""
	}
	return s.listeners.http.Addr().String()
}

// Close gives the ports back if Run was not called.
func (s *Server) Close() { s.listeners.close() }

// fail stops the replica for a reason; the first one counts.
func (s *Server) fail(err error) {
	s.failOnce.Do(func() {
		s.failure = err
		close(s.failed)
	})
}

// Run is the replica's life. It returns nil after ctx has ended and everything
// has been stopped in order (a master hands the lead over first), or the error
// that stopped the replica. When it returns no goroutine of it is left and the
// data directory is free.
func (s *Server) Run(ctx context.Context) error {
	defer s.listeners.close()
	if s.listeners.http != nil {
		s.metrics.registry.MustRegister(newReplicaCollector(s.ask, s.metrics))
		a := admin.Start(s.listeners.http, admin.Options{Ready: s.ready, Metrics: s.metrics.registry, Logger: s.log, ClientAddress: s.cfg.AdvertiseClient,
			MaxConnections: s.cfg.Limits.maxHTTP})
		defer a.Close()
	}
	storage, p, err := s.begin()
	if err != nil {
		return err
	}
	s.log.Info("the replica runs", "cell", s.cfg.Cell, "version", s.cfg.Version, "clients", s.cfg.AdvertiseClient,
		"peers", s.cfg.AdvertisePeer, "http", s.HTTPAddress(), "data", s.cfg.DataDir, "members", len(s.cfg.InitialCluster))
	select {
	case <-ctx.Done():
		s.log.Info("the replica stops")
		p.handOver(s.failed)
		p.sayGoodbye()
	case <-s.failed:
		s.log.Error("the replica must stop", "error", s.failure)
	}
	p.stop()
	err = closeStorage(storage)
	select {
	case <-s.failed:
		// Whatever closing says now is only a consequence.
		return s.failure
	default:
	}
	if err == nil {
		s.log.Info("the replica has stopped")
	}
	return err
}

// begin opens the data and starts everything on it. Only the storage outlives
// it of what was found: the entries and the state that were read would stay in
// memory for as long as Run had them in its hands, whatever has become of them.
func (s *Server) begin() (storage.API, *parts, error) {
	opened, err := s.open()
	if err != nil {
		return nil, nil, err
	}
	p, err := s.start(opened)
	if err != nil {
		return nil, nil, errors.Join(err, closeStorage(opened.Storage))
	}
	return opened.Storage, p, nil
}

// ask runs f with the replica on the loop.
func (s *Server) ask(ctx context.Context, f func(*replica.Replica)) error {
	l := s.loop.Load()
	if l == nil {
		return errStarting
	}
	return l.ask(ctx, f)
}

// parts are the running goroutines, in the order of their making.
type parts struct {
	cancel context.CancelFunc // ends the loop
	loop   *loop
	disk   *disk
	slow   *slow
	door   *door
	peers  *peers
	alone  bool // a cell of one: there is nobody to hand over to
}

// start makes all parts and sets them going.
func (s *Server) start(opened *storage.Opened) (*parts, error) {
	options := s.cfg.replicaOptions()
	options.WallMS = func() int64 { return time.Now().UnixMilli() }
	options.Node.Now = clock.Now()
	options.Node.Paxos.Now = options.Node.Now
	options.Node.Paxos.Seed = randomUint64()
	options.Node.NewIdentity = randomUint64
	box := newMailbox()
	box.most = s.cfg.Limits.MaxWaiting
	door := newDoor(s.listeners.client, s.cfg.Limits, box, s.metrics, s.log)
	options.Room = door.roomFor
	rep, err := replica.New(options, &opened.Found)
	if err != nil {
		return nil, fmt.Errorf("start the replica from the log: %w", err)
	}
	post := func(ev replica.Event, aside bool) {
		l := letter{event: ev, aside: aside}
		if _, flushed := ev.(replog.AppendDone); flushed {
			l.wakes = ifFlush
		}
		box.put(l)
	}
	p := &parts{
		loop: newLoop(), disk: newDisk(opened.Storage), slow: newSlow(opened.Storage),
		door:  door,
		alone: len(s.cfg.InitialCluster) == 1,
	}
	p.peers, err = s.newPeers(opened, rep, box)
	if err != nil {
		return nil, err
	}
	p.disk.post, p.disk.send, p.disk.fail, p.disk.metrics = post, p.peers.SendAll, s.fail, s.metrics
	p.slow.post, p.slow.fail = func(ev replica.Event) { post(ev, true) }, s.fail
	l := p.loop
	l.rep, l.box, l.disk, l.slow, l.peers, l.door = rep, box, p.disk, p.slow, p.peers, p.door
	l.metrics, l.log, l.fail = s.metrics, s.log, s.fail
	door.clients = l.conns
	box.kick = l.kick
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go p.disk.run()
	go p.slow.reads.run()
	go p.slow.saves.run()
	go l.run(ctx)
	p.peers.Start()
	p.door.start()
	s.loop.Store(l)
	return p, nil
}

// handOver makes a master give the lead away and waits until it has, or for
// handOverTime.
func (p *parts) handOver(failed <-chan struct{}) {
	p.door.stopAccepting()
	if p.alone || !p.loop.role.Load().Master {
		return
	}
	p.loop.box.put(letter{event: replica.HandOver{}, aside: true})
	timeout := time.NewTimer(handOverTime)
	defer timeout.Stop()
	// It serves no more at once, but the lead is given away only when a follower has
	// all that is under way: if the replica stopped before, the others would have to
	// notice by themselves, and would campaign against each other.
	for role := p.loop.role.Load(); role.Master || role.Leaving; role = p.loop.role.Load() {
		select {
		case <-p.loop.roleChanged:
		case <-timeout.C:
			p.loop.log.Warn("no other replica has taken the lead over; stopping without", "waited", handOverTime)
			return
		case <-failed:
			return
		case <-p.loop.done:
			return
		}
	}
}

// sayGoodbye tells every client that the replica stops.
func (p *parts) sayGoodbye() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := p.loop.ask(ctx, func(*replica.Replica) {
		for _, c := range p.loop.conns {
			p.door.goodbye(c)
		}
	})
	if err != nil {
		p.loop.log.Warn("clients could not be told that the replica stops", "error", err)
	}
}

// stop ends every goroutine: first what sends to the loop or is sent to by it,
// so that nothing waits for somebody who has gone.
func (p *parts) stop() {
	p.cancel()
	<-p.loop.done
	p.loop.box.close()
	p.door.stop()
	p.disk.close()
	p.slow.close()
	p.peers.Close()
}

// Failed is closed when the replica must stop; Run then returns soon, unless
// the disk hangs.
func (s *Server) Failed() <-chan struct{} { return s.failed }

// Failure is why the replica must stop; nil unless Failed is closed.
func (s *Server) Failure() error {
	select {
	case <-s.failed:
		return s.failure
	default:
		return nil
	}
}
