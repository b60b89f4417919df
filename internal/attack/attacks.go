package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
)

// attack is something that a hostile client does, for as long as ctx lasts.
type attack struct {
	name       string
	run        func(ctx context.Context, ts []target) (said string, err error)
	killMaster bool // the master is killed half-way
	muteStderr bool // no process reads what the replicas print
}

var attacks = []attack{
	{name: "listings", run: listings},
	{name: "pipelined-reads", run: pipelinedReads},
	{name: "unread-puts", run: unreadPuts},
	{name: "watchers", run: watchers, killMaster: true},
	{name: "one-path-watches", run: onePathWatches},
	{name: "large-frames", run: largeFrames},
	{name: "peer-strangers", run: peerStrangers},
	{name: "all-sessions", run: allSessions},
	{name: "idle-http", run: idleHTTP},
	{name: "mute-stderr", run: expiringSessions, muteStderr: true},
}

// target is where a replica listens.
type target struct{ client, peer, http string }

func parseTargets(text string) (ts []target, err error) {
	f := strings.Split(text, ",")
	if len(f)%3 != 0 {
		return nil, fmt.Errorf("-targets: %d addresses, not three a replica", len(f))
	}
	for ; len(f) > 0; f = f[3:] {
		ts = append(ts, target{f[0], f[1], f[2]})
	}
	return ts, nil
}

func runAttack(ctx context.Context, o options) error {
	ts, err := parseTargets(o.targets)
	if err != nil {
		return err
	}
	list, err := chooseAttacks(o.run)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.time)
	defer cancel()
	said, err := list[0].run(ctx, ts)
	if said != "" {
		fmt.Println(said)
	}
	return err
}

// many runs n attackers at once until ctx ends and says how they fared.
func many(ctx context.Context, n int, one func(ctx context.Context, i int) error) string {
	var wg sync.WaitGroup
	var failed atomic.Int64
	var first atomic.Value
	for i := range n {
		wg.Go(func() {
			if err := one(ctx, i); err != nil && ctx.Err() == nil {
				if failed.Add(1) == 1 {
					first.Store(err.Error())
				}
			}
		})
	}
	wg.Wait()
	text, _ := first.Load().(string)
	if failed.Load() == 0 {
		return fmt.Sprintf("%d attackers, none was cut off", n)
	}
	return fmt.Sprintf("%d of %d attackers were cut off, the first: %s", failed.Load(), n, text)
}

// until closes the connection when ctx ends, so that what waits for it ends.
func until(ctx context.Context, c net.Conn) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = c.Close() })
}

// filled fills a directory through a session of its own.
func filled(ts []target, dir string, n int) error {
	c, err := dialMaster(ts)
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.open(10 * time.Minute)
	if err != nil {
		return err
	}
	return c.fill(s, dir, n, []byte("x"))
}

// listings asks for 20 stale listings of 70,000 names in one packet and reads
// no answer, again and again.
func listings(ctx context.Context, ts []target) (string, error) {
	const names = 70_000
	if err := filled(ts, "/attack", names); err != nil {
		return "", fmt.Errorf("fill: %w", err)
	}
	var packet []byte
	for id := range uint64(20) {
		packet = append(packet, frame(1, &pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{
			Id: id + 1, Level: pb.ReadLevel_STALE, Op: &pb.Read_Children{Children: &pb.ReadChildren{Path: "/attack", Stats: true}}}}})...)
	}
	return many(ctx, 8, func(ctx context.Context, i int) error {
		c, err := dial(ts[i%len(ts)].client)
		if err != nil {
			return err
		}
		defer until(ctx, c)()
		for ctx.Err() == nil {
			if _, err := c.Write(packet); err != nil {
				return err
			}
		}
		return nil
	}), nil
}

// pipelinedReads has 60 clients that send small reads as fast as they can and
// read all answers.
func pipelinedReads(ctx context.Context, ts []target) (string, error) {
	var packet []byte
	for id := range uint64(200) {
		packet = append(packet, frame(1, &pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{
			Id: id + 1, Op: &pb.Read_Node{Node: &pb.ReadNode{Path: "/"}}}}})...)
	}
	return many(ctx, 60, func(ctx context.Context, _ int) error {
		c, err := dialMaster(ts)
		if err != nil {
			return err
		}
		defer until(ctx, c)()
		gone := make(chan struct{})
		go func() { // ends with the connection
			_, _ = io.Copy(io.Discard, c.in)
			close(gone)
		}()
		for {
			if _, err := c.Write(packet); err != nil {
				_ = c.Close()
				<-gone
				return err
			}
		}
	}), nil
}

// unreadPuts has ten clients that send puts of 200 KB and read no answer.
func unreadPuts(ctx context.Context, ts []target) (string, error) {
	data := make([]byte, 200_000)
	return many(ctx, 10, func(ctx context.Context, i int) error {
		c, err := dialMaster(ts)
		if err != nil {
			return err
		}
		defer until(ctx, c)()
		s, err := c.open(time.Minute)
		if err != nil {
			return err
		}
		for n := uint64(1); ; n++ {
			if err := c.send(request(s, n, put(fmt.Sprintf("/attack/%d", i), data))); err != nil {
				return err
			}
		}
	}), nil
}

// watchers has 200 clients that watch 30,000 nodes each; the master is killed
// half-way, and all of them come back at once.
func watchers(ctx context.Context, ts []target) (string, error) {
	if err := filled(ts, "/attack", 30_000); err != nil {
		return "", fmt.Errorf("fill: %w", err)
	}
	var states atomic.Int64
	said := many(ctx, 200, func(ctx context.Context, _ int) error {
		for ctx.Err() == nil {
			_ = watchOnce(ctx, ts, &states) // over a failover it fails, and is tried again
		}
		return nil
	})
	return fmt.Sprintf("%s; %d whole states were read", said, states.Load()), nil
}

func watchOnce(ctx context.Context, ts []target, states *atomic.Int64) error {
	c, err := dialMaster(ts)
	if err != nil {
		select { // not as fast as it can
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
		return err
	}
	defer until(ctx, c)()
	defer c.Close()
	if err := c.send(&pb.ClientMessage{Body: &pb.ClientMessage_Watch{Watch: &pb.Watch{
		Id: 1, Path: "/attack", Scope: pb.WatchScope_SUBTREE}}}); err != nil {
		return err
	}
	for {
		m, err := c.receive()
		if err != nil {
			return err
		}
		if m.GetWatch().GetEnd() {
			states.Add(1)
		}
	}
}

// onePathWatches has two clients with 7,500 watches each of one path that is
// written all the time.
func onePathWatches(ctx context.Context, ts []target) (string, error) {
	if err := filled(ts, "/attack", 1); err != nil {
		return "", fmt.Errorf("fill: %w", err)
	}
	return many(ctx, 3, func(ctx context.Context, i int) error {
		c, err := dialMaster(ts)
		if err != nil {
			return err
		}
		defer until(ctx, c)()
		if i == 2 { // the writer
			s, err := c.open(time.Minute)
			if err != nil {
				return err
			}
			for ctx.Err() == nil {
				if err := c.fill(s, "/attack", 1, make([]byte, 1000)); err != nil {
					return err
				}
				if s, err = c.open(time.Minute); err != nil {
					return err
				}
			}
			return nil
		}
		for id := range uint64(7_500) {
			if err := c.send(&pb.ClientMessage{Body: &pb.ClientMessage_Watch{Watch: &pb.Watch{
				Id: id + 1, Path: "/attack/000000"}}}); err != nil {
				return err
			}
		}
		_, err = io.Copy(io.Discard, c.in)
		return errors.Join(err, io.EOF)
	}), nil
}

// largeFrames has 300 connections that each send a frame of 2 MiB less its last
// byte, and wait.
func largeFrames(ctx context.Context, ts []target) (string, error) {
	body := make([]byte, 2<<20-1)
	return many(ctx, 300, func(ctx context.Context, i int) error {
		c, err := dial(ts[i%len(ts)].client)
		if err != nil {
			return err
		}
		defer until(ctx, c)()
		if _, err := c.Write(append(header(1, 2<<20), body...)); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, c.in)
		return errors.Join(err, io.EOF)
	}), nil
}

// peerStrangers has 64 silent connections at the peer ports and 8 that claim and
// send 60 MiB.
func peerStrangers(ctx context.Context, ts []target) (string, error) {
	piece := make([]byte, 1<<20)
	return many(ctx, 72, func(ctx context.Context, i int) error {
		nc, err := net.DialTimeout("tcp", ts[i%len(ts)].peer, dialTime)
		if err != nil {
			return err
		}
		defer until(ctx, nc)()
		if i < 8 {
			if _, err := nc.Write(append([]byte("LKD1"), header(3, 60<<20)...)); err != nil {
				return err
			}
			for range 60 {
				if _, err := nc.Write(piece); err != nil {
					return err
				}
			}
		}
		_, err = io.Copy(io.Discard, nc)
		return errors.Join(err, io.EOF)
	}), nil
}

// allSessions has two connections that open sessions until they are refused, and
// leave.
func allSessions(ctx context.Context, ts []target) (string, error) {
	var opened atomic.Int64
	said := many(ctx, 2, func(ctx context.Context, _ int) error {
		c, err := dialMaster(ts)
		if err != nil {
			return err
		}
		defer until(ctx, c)()
		for ctx.Err() == nil {
			if _, err := c.open(10 * time.Minute); err != nil {
				return err
			}
			opened.Add(1)
		}
		return nil
	})
	return fmt.Sprintf("%d sessions opened; %s", opened.Load(), said), nil
}

// idleHTTP has 256 connections to the HTTP ports that ask for nothing.
func idleHTTP(ctx context.Context, ts []target) (string, error) {
	return many(ctx, 256, func(ctx context.Context, i int) error {
		nc, err := net.DialTimeout("tcp", ts[i%len(ts)].http, dialTime)
		if err != nil {
			return err
		}
		defer until(ctx, nc)()
		_, err = io.Copy(io.Discard, nc)
		return errors.Join(err, io.EOF)
	}), nil
}

// expiringSessions opens 3,000 sessions with a short lease and lets them expire,
// which the master tells its standard error.
func expiringSessions(ctx context.Context, ts []target) (string, error) {
	var opened atomic.Int64
	said := many(ctx, 8, func(ctx context.Context, _ int) error {
		c, err := dialMaster(ts)
		if err != nil {
			return err
		}
		defer until(ctx, c)()
		for ctx.Err() == nil && opened.Add(1) <= 3_000 {
			if _, err := c.open(time.Second); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return nil
	})
	return fmt.Sprintf("%d sessions opened; %s", min(opened.Load(), 3_000), said), nil
}
