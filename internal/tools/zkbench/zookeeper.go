package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	zkStartTime   = 60 * time.Second
	zkConnectTime = 20 * time.Second
	zkTimeout     = 30 * time.Second // of a session
	// zkBuffer is the client's buffer in each direction. The default of 1.5 MiB
	// is of no use here, and 512 of them are a load of their own.
	zkBuffer = 64 << 10
	// Loggers of ZooKeeper on Debian: without one it says nothing at all.
	slf4jSimple = "/usr/share/java/slf4j-simple.jar"
)

var zkACL = zk.WorldACL(zk.PermAll)

type zooKeeper struct{ addresses []string }

func (z *zooKeeper) name() string { return "ZooKeeper" }

// checkPrograms installs ZooKeeper if it is missing and may be installed.
func checkPrograms(ctx context.Context, o options) error {
	if _, err := os.Stat(o.lockd); err != nil {
		return fmt.Errorf("lockd: %w: run make build, or say where it is with -lockd", err)
	}
	if _, err := os.Stat(o.jar); err != nil {
		if os.Geteuid() != 0 {
			return fmt.Errorf("ZooKeeper is not installed (%w): on Debian, sudo apt-get install --no-install-recommends zookeeper; "+
				"or say where its jar is with -zookeeper-jar", err)
		}
		progress("ZooKeeper is not installed: installing Debian's package")
		for _, args := range [][]string{{"update"}, {"install", "-y", "--no-install-recommends", "zookeeper"}} {
			cmd := exec.CommandContext(ctx, "apt-get", args...)
			cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
			cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
			if err := cmd.Run(); err != nil {
				return fmt.Errorf("apt-get %s: %w", args[0], err)
			}
		}
		if _, err := os.Stat(o.jar); err != nil {
			return fmt.Errorf("the package has no such jar: %w: say where it is with -zookeeper-jar", err)
		}
	}
	if _, err := exec.LookPath(o.java); err != nil {
		return fmt.Errorf("java: %w: install default-jre-headless, or say where it is with -java", err)
	}
	return nil
}

// startZooKeeper starts an ensemble with the defaults of the distribution but
// for what a comparison needs: no limit of connections from one address.
func startZooKeeper(ctx context.Context, o options, dir string, ps *processes) (*zooKeeper, error) {
	z := &zooKeeper{}
	var members strings.Builder
	for i := range servers {
		fmt.Fprintf(&members, "server.%d=127.0.0.1:%d:%d\n", i+1, o.basePort+zkQuorumPorts+i, o.basePort+zkVotePorts+i)
	}
	for i := range servers {
		name := fmt.Sprintf("ZooKeeper server %d", i+1)
		home := filepath.Join(dir, fmt.Sprintf("zookeeper%d", i+1))
		port := o.basePort + zkClientPorts + i
		conf := filepath.Join(home, "zoo.cfg")
		text := fmt.Sprintf(`tickTime=2000
initLimit=10
syncLimit=5
dataDir=%[1]s/data
dataLogDir=%[1]s/log
clientPort=%[2]d
clientPortAddress=127.0.0.1
maxClientCnxns=0
forceSync=yes
autopurge.purgeInterval=0
admin.enableServer=false
4lw.commands.whitelist=srvr
%[3]s`, home, port, members.String())
		for _, d := range []string{"data", "log"} {
			if err := os.MkdirAll(filepath.Join(home, d), 0o700); err != nil {
				return nil, err
			}
		}
		if err := os.WriteFile(filepath.Join(home, "data", "myid"), []byte(strconv.Itoa(i+1)+"\n"), 0o600); err != nil {
			return nil, err
		}
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			return nil, err
		}
		classes := o.jar
		if _, err := os.Stat(slf4jSimple); err == nil {
			classes += ":" + slf4jSimple
		}
		args := append(strings.Fields(o.javaOpts), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
			"-cp", classes, "org.apache.zookeeper.server.quorum.QuorumPeerMain", conf)
		if err := ps.start(name, filepath.Join(home, "out"), o.java, args...); err != nil {
			return nil, err
		}
		z.addresses = append(z.addresses, address(port))
	}
	progress("ZooKeeper: waiting for the ensemble")
	err := until(ctx, zkStartTime, "ZooKeeper's ensemble", func() bool {
		modes := z.modes()
		return modes["leader"] == 1 && modes["follower"] == servers-1
	})
	if err != nil {
		return nil, err
	}
	return z, z.prepare(ctx)
}

// modes counts the servers by what they say they are.
func (z *zooKeeper) modes() map[string]int {
	m := map[string]int{}
	for _, a := range z.addresses {
		m[z.mode(a)]++
	}
	return m
}

// mode asks a server for its role; "" if it does not answer.
func (z *zooKeeper) mode(address string) string { return srvr(address)["Mode"] }

// srvr is the answer to the four-letter word, by the names before the colons.
func srvr(address string) map[string]string {
	nc, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return nil
	}
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return nil
	}
	if _, err := io.WriteString(nc, "srvr"); err != nil {
		return nil
	}
	b, err := io.ReadAll(nc)
	if err != nil {
		return nil
	}
	out := map[string]string{}
	for _, line := range strings.Split(string(b), "\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			out[name] = value
		}
	}
	return out
}

func (z *zooKeeper) version() string {
	v, _, _ := strings.Cut(srvr(z.addresses[0])["Zookeeper version"], "-")
	return v
}

// prepare makes the nodes that the clients use.
func (z *zooKeeper) prepare(ctx context.Context) error {
	f, err := z.connect(ctx, 1, atLeader)
	if err != nil {
		return err
	}
	defer f.close()
	c := f.(*zkFleet).conns[0]
	paths := []string{"/bench", sharedPath}
	for i := range clientsMax {
		paths = append(paths, writePath(i), lockPath(i))
	}
	for _, p := range paths {
		if _, err := c.Create(p, nil, 0, zkACL); err != nil {
			return fmt.Errorf("ZooKeeper: create %s: %w", p, err)
		}
	}
	return nil
}

const sharedPath = "/bench/handoff"

func writePath(i int) string { return fmt.Sprintf("/bench/write%03d", i) }
func lockPath(i int) string  { return fmt.Sprintf("/bench/lock%03d", i) }

// connect implements system.
func (z *zooKeeper) connect(ctx context.Context, n int, where string) (fleet, error) {
	at := z.addresses
	if where == atLeader {
		at = nil
		for _, a := range z.addresses {
			if z.mode(a) == "leader" {
				at = []string{a}
			}
		}
		if at == nil {
			return nil, errors.New("ZooKeeper has no leader")
		}
	}
	f := &zkFleet{}
	for i := range n {
		c, _, err := zk.Connect([]string{at[i%len(at)]}, zkTimeout, zk.WithLogInfo(false), zk.WithLogger(silent{}),
			zk.WithDialer(bufferedDial), zk.WithMaxBufferSize(zkBuffer), zk.WithMaxConnBufferSize(zkBuffer))
		if err != nil {
			f.close()
			return nil, fmt.Errorf("ZooKeeper: connect: %w", err)
		}
		f.conns = append(f.conns, c)
		f.writes = append(f.writes, writePath(i))
		f.locks = append(f.locks, lockPath(i))
	}
	err := until(ctx, zkConnectTime, "connecting to ZooKeeper", func() bool {
		for _, c := range f.conns {
			if c.State() != zk.StateHasSession {
				return false
			}
		}
		return true
	})
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// silent is the client's logger: what matters comes as errors.
type silent struct{}

func (silent) Printf(string, ...any) {}

// bufferedDial makes a connection with a buffer for reading: the client library
// would read a reply's length and the reply itself with a system call each.
func bufferedDial(network, address string, timeout time.Duration) (net.Conn, error) {
	nc, err := net.DialTimeout(network, address, timeout)
	if err != nil {
		return nil, err
	}
	return &bufferedConn{Conn: nc, r: bufio.NewReaderSize(nc, 4096)}, nil
}

type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(b []byte) (int, error) { return c.r.Read(b) }

type zkFleet struct {
	conns         []*zk.Conn
	writes, locks []string // paths of each client's own nodes
}

func (f *zkFleet) close() {
	var wg sync.WaitGroup
	for _, c := range f.conns {
		wg.Go(c.Close)
	}
	wg.Wait()
}

func (f *zkFleet) write(i int, value []byte) error {
	_, err := f.conns[i].Set(f.writes[i], value, -1)
	return err
}

func (f *zkFleet) lock(i int) error {
	release, err := acquireZK(f.conns[i], f.locks[i])
	if err != nil {
		return err
	}
	return release()
}

func (f *zkFleet) acquire(i int) (func() error, error) { return acquireZK(f.conns[i], sharedPath) }

// acquireZK is ZooKeeper's recipe for a lock, with as few round trips as it
// allows: create an ephemeral sequential node below that of the lock, list the
// children, and if another stands before, watch the next one before and list
// again when that is gone. A free lock costs a create, a listing, which the
// server answers by itself, and a delete. (The recipe of the client library
// makes the same calls, with longer names.)
func acquireZK(c *zk.Conn, lock string) (release func() error, err error) {
	mine, err := c.Create(lock+"/n", nil, zk.FlagEphemeral|zk.FlagSequence, zkACL)
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	name := mine[len(lock)+1:]
	for {
		children, _, err := c.Children(lock)
		if err != nil {
			return nil, fmt.Errorf("list: %w", err)
		}
		before := predecessor(children, name)
		if before == "" {
			return func() error { return c.Delete(mine, -1) }, nil
		}
		// Get, not Exists: that would leave a watch on a node that is gone.
		_, _, gone, err := c.GetW(lock + "/" + before)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			continue
		case err != nil:
			return nil, fmt.Errorf("watch: %w", err)
		}
		if e := <-gone; e.Err != nil {
			return nil, fmt.Errorf("watch: %w", e.Err)
		}
	}
}

// predecessor is the last of the children before mine, "" if there is none.
// The names are all made alike, so that they are in order of their numbers.
func predecessor(children []string, mine string) string {
	before := ""
	for _, c := range children {
		if c < mine && c > before {
			before = c
		}
	}
	return before
}
