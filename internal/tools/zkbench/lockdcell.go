package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/seed70370324/lockd/client"
)

const lockdStartTime = 30 * time.Second

type lockdCell struct {
	addresses []string
	version   string
}

func (l *lockdCell) name() string { return "lockd" }

// startLockd starts a cell with the defaults.
func startLockd(ctx context.Context, o options, dir string, ps *processes) (*lockdCell, error) {
	l := &lockdCell{}
	var members []string
	for i := range servers {
		members = append(members, fmt.Sprintf("n%d=%s", i+1, address(o.basePort+lockdPeers+i)))
	}
	for i := range servers {
		name := fmt.Sprintf("n%d", i+1)
		at := address(o.basePort + lockdClients + i)
		err := ps.start("lockd replica "+name, filepath.Join(dir, "lockd-"+name+".log"), o.lockd,
			"--name", name, "--cell", "zkbench", "--data-dir", filepath.Join(dir, "lockd-"+name),
			"--listen-client", at, "--listen-peer", address(o.basePort+lockdPeers+i), "--listen-http", "",
			"--initial-cluster", strings.Join(members, ","))
		if err != nil {
			return nil, err
		}
		l.addresses = append(l.addresses, at)
	}
	progress("lockd: waiting for the cell")
	err := until(ctx, lockdStartTime, "lockd's cell", func() bool {
		ready, master := 0, 0
		for _, a := range l.addresses {
			s, err := client.Status(ctx, a)
			if err != nil {
				return false
			}
			switch s.Role {
			case "master":
				master++
				l.version = s.Version
			case "follower":
				ready++
			}
		}
		return master == 1 && ready == servers-1
	})
	if err != nil {
		return nil, err
	}
	return l, l.prepare(ctx)
}

// prepare makes the nodes that the clients use.
func (l *lockdCell) prepare(ctx context.Context) error {
	f, err := l.connect(ctx, 1, "")
	if err != nil {
		return err
	}
	defer f.close()
	s := f.(*lockdFleet).sessions[0]
	paths := []string{"/bench", sharedPath}
	for i := range clientsMax {
		paths = append(paths, writePath(i), lockPath(i))
	}
	for _, p := range paths {
		if _, err := s.Create(ctx, p, nil); err != nil {
			return fmt.Errorf("lockd: %w", err)
		}
	}
	return nil
}

// connect implements system; the service names its master.
func (l *lockdCell) connect(ctx context.Context, n int, _ string) (fleet, error) {
	f := &lockdFleet{ctx: ctx, sessions: make([]*client.Session, n)}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { f.sessions[i], errs[i] = client.Dial(ctx, l.addresses) })
		f.writes = append(f.writes, writePath(i))
		f.locks = append(f.locks, lockPath(i))
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			f.close()
			return nil, fmt.Errorf("lockd: %w", err)
		}
	}
	return f, nil
}

type lockdFleet struct {
	ctx           context.Context // of the measurement's clients
	sessions      []*client.Session
	writes, locks []string
}

func (f *lockdFleet) close() {
	var wg sync.WaitGroup
	for _, s := range f.sessions {
		if s != nil {
			wg.Go(func() { _ = s.Close() }) // what cannot be told ends with the lease
		}
	}
	wg.Wait()
}

func (f *lockdFleet) write(i int, value []byte) error {
	_, err := f.sessions[i].Put(f.ctx, f.writes[i], value, client.MustExist())
	return err
}

func (f *lockdFleet) lock(i int) error {
	release, err := f.take(i, f.locks[i])
	if err != nil {
		return err
	}
	return release()
}

func (f *lockdFleet) acquire(i int) (func() error, error) { return f.take(i, sharedPath) }

// take acquires without a lock-delay: ZooKeeper has none.
func (f *lockdFleet) take(i int, path string) (func() error, error) {
	l, err := f.sessions[i].Lock(f.ctx, path, client.MustExist(), client.LockDelay(0))
	if err != nil {
		return nil, err
	}
	return func() error { return l.Release(f.ctx) }, nil
}
