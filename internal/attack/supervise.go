package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The two test hosts: namespaces with a pair of virtual interfaces between them.
const (
	cellHost     = "10.209.0.1"
	attackerHost = "10.209.0.2"
)

// Environment by which the process in the cell's namespace learns where the
// attackers live: the name of their namespace and the file that takes their
// process IDs.
const (
	envNamespace = "LOCKD_ATTACK_NAMESPACE"
	envTasks     = "LOCKD_ATTACK_TASKS"
)

// supervise makes the namespaces, measures inside, and takes them away.
func supervise(ctx context.Context, o options) (err error) {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n, err := makeHosts(ctx, o.quota)
	if err != nil {
		fmt.Printf("no namespaces or processor quota here (%v): attackers and cell share loopback and all processors\n", err)
		return measure(ctx, o)
	}
	defer func() { err = errors.Join(err, n.remove()) }()
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{netOf(n.cell), self, "-inside"}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), envNamespace+"="+n.attackers, envTasks+"="+filepath.Join(n.group, "tasks"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 30 * time.Second
	return cmd.Run()
}

// hosts are the namespaces and the attackers' control group.
type hosts struct {
	cell, attackers string
	group           string
}

// makeHosts makes two namespaces with a link, and a control group (version 1)
// with a quota of so many percent of a processor.
func makeHosts(ctx context.Context, quota int) (_ *hosts, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("it takes root")
	}
	pid := strconv.Itoa(os.Getpid())
	n := &hosts{cell: "lockd-cell-" + pid, attackers: "lockd-att-" + pid, group: "/sys/fs/cgroup/cpu/lockd-attack-" + pid}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.remove())
		}
	}()
	a, b := "lda"+pid, "ldb"+pid
	for _, line := range []string{
		"netns add " + n.cell,
		"netns add " + n.attackers,
		"link add " + a + " type veth peer name " + b,
		"link set " + a + " netns " + n.cell,
		"link set " + b + " netns " + n.attackers,
		"-n " + n.cell + " addr add " + cellHost + "/30 dev " + a,
		"-n " + n.cell + " link set " + a + " up",
		"-n " + n.cell + " link set lo up",
		"-n " + n.attackers + " addr add " + attackerHost + "/30 dev " + b,
		"-n " + n.attackers + " link set " + b + " up",
		"-n " + n.attackers + " link set lo up",
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("ip %s: %w: %s", line, err, strings.TrimSpace(string(out)))
		}
	}
	if err := os.Mkdir(n.group, 0o755); err != nil {
		return nil, err
	}
	const period = 100_000 // microseconds
	for file, value := range map[string]int{"cpu.cfs_period_us": period, "cpu.cfs_quota_us": period / 100 * quota} {
		if err := os.WriteFile(filepath.Join(n.group, file), []byte(strconv.Itoa(value)), 0o644); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// netOf is nsenter's option for a namespace that `ip netns` made. (ip netns exec
// would hide the control groups.)
func netOf(namespace string) string { return "--net=" + netnsDir + namespace }

const netnsDir = "/var/run/netns/"

// remove takes away what makeHosts made, as far as it came.
func (n *hosts) remove() error {
	var errs []error
	for _, name := range []string{n.cell, n.attackers} {
		if _, err := os.Stat(netnsDir + name); err != nil {
			continue
		}
		if out, err := exec.Command("ip", "netns", "del", name).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove the namespace %s: %w: %s", name, err, out))
		}
	}
	if err := os.Remove(n.group); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove the control group: %w", err))
	}
	return errors.Join(errs...)
}

// attackers starts the attackers of one attack: in their namespace and control
// group if there are any.
func attackers(ctx context.Context, name string, c *cell, lasting time.Duration) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args := []string{self, "-run", name, "-targets", strings.Join(c.targets(), ","), "-time", lasting.String()}
	if namespace := os.Getenv(envNamespace); namespace != "" {
		args = append([]string{"nsenter", netOf(namespace)}, args...)
	}
	if tasks := os.Getenv(envTasks); tasks != "" {
		// The shell enters the group, then becomes the program.
		args = append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, tasks}, args...)
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = 10 * time.Second
	return cmd, nil
}
