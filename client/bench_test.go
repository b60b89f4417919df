//go:build unix

package client_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// The benchmarks measure what an operation costs the client's process, so the
// service they talk to is another one: this program again, which answers each
// request at once and keeps nothing.
const benchServiceEnv = "LOCKD_CLIENT_BENCH_SERVICE"

func init() {
	if os.Getenv(benchServiceEnv) == "" {
		return
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, "service of the benchmark:", err)
		os.Exit(1)
	}
	fmt.Println(l.Addr())
	go func() {
		for n := uint64(1); ; n++ {
			nc, err := l.Accept()
			if err != nil {
				fmt.Fprintln(os.Stderr, "service of the benchmark:", err)
				os.Exit(1)
			}
			go serveBench(nc, n)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends, however it does
	os.Exit(0)
}

// serveBench serves one connection, which has one session.
func serveBench(nc net.Conn, session uint64) {
	conn := wire.NewConn(nc, wire.Options{Accepted: true})
	defer conn.Close()
	if conn.Handshake(context.Background()) != nil {
		return
	}
	for {
		_, payload, err := conn.Read()
		if err != nil {
			return
		}
		msg, reply := &pb.ClientMessage{}, &pb.ServerMessage{}
		if msg.Decode(payload) != nil {
			return
		}
		switch b := msg.GetBody().(type) {
		case *pb.ClientMessage_Hello:
			reply.Body = &pb.ServerMessage_Hello{Hello: &pb.HelloReply{Version: 1, Cell: "bench", Master: true, CellIdentity: 1}}
		case *pb.ClientMessage_Open:
			reply.Body = &pb.ServerMessage_Opened{Opened: &pb.OpenSessionReply{Id: b.Open.GetId(), Session: session, LeaseMs: b.Open.GetLeaseMs()}}
		case *pb.ClientMessage_KeepAlive:
			continue // a lease is longer than the benchmark
		case *pb.ClientMessage_Request:
			reply.Body = &pb.ServerMessage_Reply{Reply: &pb.Reply{Session: session, Result: benchResult(b.Request.GetCommand())}}
		case *pb.ClientMessage_Read:
			reply.Body = &pb.ServerMessage_Read{Read: &pb.ReadReply{Id: b.Read.GetId(), Revision: 1 << 41, Result: &pb.ReadReply_Node{
				Node: &pb.NodeResult{Path: b.Read.GetNode().GetPath(), Stat: benchStat, Data: make([]byte, 256), HasData: true}}}}
		}
		if conn.Send(wire.KindServer, reply) != nil {
			return
		}
	}
}

var benchStat = &storepb.Stat{Instance: 1<<41 + 7, ContentGeneration: 12345, Checksum: 1 << 60, CreateRevision: 1<<41 + 7,
	ModifyRevision: 1<<41 + 98765, CreateMs: 1.7e12, ModifyMs: 1.7e12, Kind: storepb.NodeKind_PERMANENT, DataLength: 256}

func benchResult(c *storepb.Command) *storepb.Result {
	r := &storepb.Result{Code: storepb.Code_OK, Number: c.GetNumber(), Revision: 1<<41 + c.GetNumber()}
	switch op := c.GetOp().(type) {
	case *storepb.Command_Put:
		r.Stat = benchStat
	case *storepb.Command_Acquire:
		r.Code = storepb.Code_GRANTED
		r.Grant = &storepb.Grant{Path: op.Acquire.GetPath(), Mode: op.Acquire.GetMode(), Fence: r.Revision, LockGeneration: c.GetNumber(),
			Instance: 1<<41 + 7, Ticket: c.GetNumber(), LockDelayMs: op.Acquire.GetLockDelayMs()}
	}
	return r
}

// benchService starts the service and returns its address.
func benchService(b *testing.B) string {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServiceEnv+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			b.Errorf("service: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// cpuTime is what this process has used.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchSessions runs op b.N times, in sessions that have one under way each.
func benchSessions(b *testing.B, sessions int, op func(ctx context.Context, s *client.Session, path string) error) {
	address := benchService(b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	all := make([]*client.Session, sessions)
	for i := range all {
		s, err := client.Dial(ctx, []string{address}, client.WithLease(10*time.Minute))
		if err != nil {
			b.Fatal(err)
		}
		all[i] = s
	}
	var begun atomic.Int64
	var wg sync.WaitGroup
	b.ReportAllocs()
	b.ResetTimer()
	used := cpuTime(b)
	for i, s := range all {
		wg.Go(func() {
			path := fmt.Sprintf("/lockctl-bench/run-0000000001/%06d", i)
			for begun.Add(1) <= int64(b.N) {
				if err := op(ctx, s, path); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	used = cpuTime(b) - used
	b.StopTimer()
	b.ReportMetric(float64(used)/float64(b.N), "cpu-ns/op")
	for _, s := range all {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				b.Error(err)
			}
		})
	}
	wg.Wait()
}

// BenchmarkSession is what one operation costs a process with one session, and
// with 64; "lock" is an acquire and its release. cpu-ns/op is the time of all
// threads.
func BenchmarkSession(b *testing.B) {
	value := make([]byte, 256)
	ops := []struct {
		name string
		op   func(ctx context.Context, s *client.Session, path string) error
	}{
		{"put", func(ctx context.Context, s *client.Session, path string) error {
			_, err := s.Put(ctx, path, value)
			return err
		}},
		{"get", func(ctx context.Context, s *client.Session, path string) error {
			_, err := s.Get(ctx, path)
			return err
		}},
		{"lock", func(ctx context.Context, s *client.Session, path string) error {
			l, err := s.Lock(ctx, path, client.MustExist(), client.LockDelay(0))
			if err != nil {
				return err
			}
			return l.Release(ctx)
		}},
	}
	for _, o := range ops {
		for _, n := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", o.name, n), func(b *testing.B) { benchSessions(b, n, o.op) })
		}
	}
}
