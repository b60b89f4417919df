package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed70370324/lockd/client"
)

// misuse is a mistake and what is said of it: the whole of stderr and the exit
// code. Arguments are split at blanks; "~" in one is a blank, "_" is an empty
// one. Placeholders in braces stand for what differs from run to run.
type misuse struct {
	args   string
	env    string // one variable
	code   int
	stderr string
	// usage is the line that follows a mistake of usage: of lockctl how the
	// command is used, of lockd which one would help ("" is lockd itself).
	usage string
}

// ofLockd are the mistakes with lockd. None of them leaves a process or a file.
var ofLockd = []misuse{
	{args: "--nonsense", code: 2, stderr: "lockd: unknown flag: --nonsense"},
	{args: "--data-dri x", code: 2, stderr: "lockd: unknown flag: --data-dri: is it --data-dir?"},
	{args: "-x", code: 2, stderr: "lockd: unknown shorthand flag: 'x' in -x"},
	{args: "nonsense", code: 2, stderr: `lockd: "nonsense" is not a flag or a command of lockd`},
	{args: "locl", code: 2, stderr: `lockd: unknown command "locl": is it local?`},
	{args: "--name", code: 2, stderr: "lockd: flag needs an argument: --name"},
	{args: "help nonsense", code: 2, stderr: `lockd: unknown command "nonsense" of lockd`, usage: "lockd help"},
	{args: "completion nonsense", code: 2, stderr: `lockd: completion for "nonsense" is not known: bash, zsh, fish and powershell are`, usage: "lockd completion"},
	{args: "--name _", code: 2, stderr: `lockd: --name "" is empty`},
	{args: "--name a~b", code: 2, stderr: `lockd: --name "a b" may have letters, digits, '-', '_' and '.' only`},
	{args: "--name {x65}", code: 2, stderr: `lockd: --name "{x65}" is longer than 64 bytes`},
	{args: "--cell _", code: 2, stderr: `lockd: --cell "" is empty`},
	{args: "--cell a/b", code: 2, stderr: `lockd: --cell "a/b" may have letters, digits, '-', '_' and '.' only`},
	{args: "--data-dir _", code: 2, stderr: "lockd: --data-dir is empty"},
	{args: "--listen-client 127.0.0.1", code: 2, stderr: `lockd: --listen-client: "127.0.0.1" is not host:port`},
	{args: "--listen-client 127.0.0.1:http", code: 2, stderr: `lockd: --listen-client: "127.0.0.1:http" has no port number between 0 and 65535`},
	{args: "--listen-client 127.0.0.1:70000", code: 2, stderr: `lockd: --listen-client: "127.0.0.1:70000" has no port number between 0 and 65535`},
	{args: "--listen-client 10.0.0.1:1", code: 2, stderr: "lockd: --listen-client 10.0.0.1:1 is not on loopback, and there is no encryption or authentication yet: anyone who reaches it can do anything. Use 127.0.0.1, or say --insecure to accept that"},
	{args: "--listen-peer 127.0.0.1", code: 2, stderr: `lockd: --listen-peer: "127.0.0.1" is not host:port`},
	{args: "--listen-peer 127.0.0.1:http", code: 2, stderr: `lockd: --listen-peer: "127.0.0.1:http" has no port number between 0 and 65535`},
	{args: "--listen-peer 127.0.0.1:70000", code: 2, stderr: `lockd: --listen-peer: "127.0.0.1:70000" has no port number between 0 and 65535`},
	{args: "--listen-peer 10.0.0.1:1", code: 2, stderr: "lockd: --listen-peer 10.0.0.1:1 is not on loopback, and there is no encryption or authentication yet: anyone who reaches it can do anything. Use 127.0.0.1, or say --insecure to accept that"},
	{args: "--listen-http 127.0.0.1", code: 2, stderr: `lockd: --listen-http: "127.0.0.1" is not host:port`},
	{args: "--listen-http 127.0.0.1:http", code: 2, stderr: `lockd: --listen-http: "127.0.0.1:http" has no port number between 0 and 65535`},
	{args: "--listen-http 127.0.0.1:70000", code: 2, stderr: `lockd: --listen-http: "127.0.0.1:70000" has no port number between 0 and 65535`},
	{args: "--listen-http 10.0.0.1:1", code: 2, stderr: "lockd: --listen-http 10.0.0.1:1 is not on loopback, and there is no encryption or authentication yet: anyone who reaches it can do anything. Use 127.0.0.1, or say --insecure to accept that"},
	{args: "--listen-client _", code: 2, stderr: `lockd: --listen-client: "" is not host:port`},
	{args: "--listen-peer _", code: 2, stderr: `lockd: --listen-peer: "" is not host:port`},
	{args: "--listen-client 0.0.0.0:1 --insecure", code: 2, stderr: "lockd: --listen-client 0.0.0.0:1 listens on every address, so others cannot be told where to connect: give --advertise-client"},
	{args: "--listen-peer 0.0.0.0:1 --insecure", code: 2, stderr: "lockd: --listen-peer 0.0.0.0:1 listens on every address, so others cannot be told where to connect: give --advertise-peer"},
	{args: "--advertise-client host", code: 2, stderr: `lockd: --advertise-client: "host" is not host:port`},
	{args: "--advertise-client 0.0.0.0:1", code: 2, stderr: `lockd: --advertise-client: "0.0.0.0:1" names no host that others can connect to`},
	{args: "--advertise-client host:0", code: 2, stderr: `lockd: --advertise-client: "host:0" has port 0, which nobody can connect to`},
	{args: "--advertise-peer host", code: 2, stderr: `lockd: --advertise-peer: "host" is not host:port`},
	{args: "--advertise-peer 0.0.0.0:1", code: 2, stderr: `lockd: --advertise-peer: "0.0.0.0:1" names no host that others can connect to`},
	{args: "--advertise-peer host:0", code: 2, stderr: `lockd: --advertise-peer: "host:0" has port 0, which nobody can connect to`},
	{args: "--initial-cluster n1", code: 2, stderr: `lockd: --initial-cluster: "n1" is not name=host:port`},
	{args: "--initial-cluster n1=127.0.0.1", code: 2, stderr: `lockd: --initial-cluster: address of n1: "127.0.0.1" is not host:port`},
	{args: "--initial-cluster =127.0.0.1:1", code: 2, stderr: `lockd: --initial-cluster: replica name "": is empty`},
	{args: "--initial-cluster n1=127.0.0.1:1,", code: 2, stderr: `lockd: --initial-cluster: "" is not name=host:port`},
	{args: "--initial-cluster n1=127.0.0.1:1,n1=127.0.0.1:2", code: 2, stderr: "lockd: --initial-cluster names n1 twice"},
	{args: "--initial-cluster n1=127.0.0.1:1,n2=127.0.0.1:1", code: 2, stderr: "lockd: --initial-cluster gives n1 and n2 the same address 127.0.0.1:1"},
	{args: "--initial-cluster n2=127.0.0.1:1,n3=127.0.0.1:2", code: 2, stderr: "lockd: --name n1 is not in --initial-cluster (which has n2, n3)"},
	{args: "--initial-cluster n1=127.0.0.1:1 --advertise-peer 127.0.0.1:2", code: 2, stderr: "lockd: --advertise-peer says 127.0.0.1:2, but --initial-cluster says 127.0.0.1:1 for n1: they must agree"},
	{args: "--log-format xml", code: 2, stderr: `lockd: --log-format "xml" is neither text nor json`},
	{args: "--log-level loud", code: 2, stderr: `lockd: --log-level "loud" is none of debug, info, warn, error`},
	{args: "--profile all", code: 2, stderr: `lockd: --profile "all" is neither cpu nor mem`},
	{args: "--insecure=maybe", code: 2, stderr: `lockd: --insecure "maybe": must be true or false`},
	{args: "--snapshot-slots x", code: 2, stderr: `lockd: --snapshot-slots "x": must be a whole number, without a unit`},
	{args: "--snapshot-slots -1", code: 2, stderr: "lockd: --snapshot-slots -1: cannot be negative"},
	{args: "--snapshot-bytes x", code: 2, stderr: `lockd: --snapshot-bytes "x": must be a whole number, without a unit`},
	{args: "--snapshot-bytes -1", code: 2, stderr: "lockd: --snapshot-bytes -1: cannot be negative"},
	{args: "--trail-slots x", code: 2, stderr: `lockd: --trail-slots "x": must be a whole number, without a unit`},
	{args: "--trail-slots -1", code: 2, stderr: "lockd: --trail-slots -1: cannot be negative"},
	{args: "--segment-bytes x", code: 2, stderr: `lockd: --segment-bytes "x": must be a whole number, without a unit`},
	{args: "--segment-bytes -1", code: 2, stderr: "lockd: --segment-bytes -1: cannot be negative"},
	{args: "--segment-bytes 1GB", code: 2, stderr: `lockd: --segment-bytes "1GB": must be a whole number, without a unit`},
	{args: "--heartbeat 1", code: 2, stderr: `lockd: --heartbeat "1": must be a time with its unit, such as 500ms, 2s or 1m`},
	{args: "--heartbeat -1s", code: 2, stderr: "lockd: --heartbeat -1s: cannot be negative"},
	{args: "--election-min 1", code: 2, stderr: `lockd: --election-min "1": must be a time with its unit, such as 500ms, 2s or 1m`},
	{args: "--election-min -1s", code: 2, stderr: "lockd: --election-min -1s: cannot be negative"},
	{args: "--election-max 1", code: 2, stderr: `lockd: --election-max "1": must be a time with its unit, such as 500ms, 2s or 1m`},
	{args: "--election-max -1s", code: 2, stderr: "lockd: --election-max -1s: cannot be negative"},
	{args: "--disk-timeout 1", code: 2, stderr: `lockd: --disk-timeout "1": must be a time with its unit, such as 500ms, 2s or 1m`},
	{args: "--disk-timeout -1s", code: 2, stderr: "lockd: --disk-timeout -1s: cannot be negative"},
	{args: "--heartbeat 1s", code: 2, stderr: "lockd: --election-min 500ms must be at least twice the --heartbeat 1s"},
	{args: "--election-max 100ms", code: 2, stderr: "lockd: --election-max 100ms is less than --election-min 500ms"},
	{args: "--election-min 2s --election-max 1s", code: 2, stderr: "lockd: --election-max 1s is less than --election-min 2s"},
	{env: "LOCKD_DATADIR=/x", code: 2, stderr: "lockd: environment: LOCKD_DATADIR belongs to no flag: is it LOCKD_DATA_DIR? Correct or unset it"},
	{env: "LOCKD_LISTEN_CLEINT=127.0.0.1:1", code: 2, stderr: "lockd: environment: LOCKD_LISTEN_CLEINT belongs to no flag: is it LOCKD_LISTEN_CLIENT? Correct or unset it"},
	{env: "LOCKD_SNAPSHOT_SLOTS=many", code: 2, stderr: `lockd: environment: LOCKD_SNAPSHOT_SLOTS: --snapshot-slots "many": must be a whole number, without a unit`},
	{env: "LOCKD_INSECURE=maybe", code: 2, stderr: `lockd: environment: LOCKD_INSECURE: --insecure "maybe": must be true or false`},
	{env: "LOCKD_LOG_LEVEL=loud", code: 2, stderr: `lockd: --log-level "loud" is none of debug, info, warn, error`},
	{env: "LOCKD_HEARTBEAT=5", code: 2, stderr: `lockd: environment: LOCKD_HEARTBEAT: --heartbeat "5": must be a time with its unit, such as 500ms, 2s or 1m`},
	{env: "LOCKD_LISTEN_CLIENT=10.0.0.1:1", code: 2, stderr: "lockd: --listen-client 10.0.0.1:1 is not on loopback, and there is no encryption or authentication yet: anyone who reaches it can do anything. Use 127.0.0.1, or say --insecure to accept that"},
	{args: "--listen-client {free1} --listen-peer {free1}", code: 2, stderr: "lockd: --listen-client and --listen-peer are both {free1}: give each a port of its own"},
	{args: "--listen-client {client}", code: 1, stderr: "lockd: --listen-client {client}: the port is taken by another process: stop it, or choose another port (listen tcp {client}: bind: address already in use)"},
	{args: "--listen-client {free1} --listen-peer {client}", code: 1, stderr: "lockd: --listen-peer {client}: the port is taken by another process: stop it, or choose another port (listen tcp {client}: bind: address already in use)"},
	{args: "--listen-client {free1} --listen-peer {free2} --listen-http {client}", code: 1, stderr: "lockd: --listen-http {client}: the port is taken by another process: stop it, or choose another port (listen tcp {client}: bind: address already in use)"},
	{args: "--listen-client 203.0.113.1:1 --insecure", code: 1, stderr: "lockd: --listen-client 203.0.113.1:1: this machine has no such address (listen tcp 203.0.113.1:1: bind: cannot assign requested address)"},
	{args: "--data-dir {dir}/n1 --cell e2e --listen-client {free1} --listen-peer {free2} --listen-http {free3}", code: 1, stderr: "lockd: --data-dir {dir}/n1: the data directory {dir}/n1 is in use by process {n}: stop that one, or give another directory"},
	{args: "--data-dir {dir}/other --cell two --listen-client {free1} --listen-peer {free2} --listen-http {free3}", code: 1, stderr: `lockd: --data-dir {dir}/other: {dir}/other holds the data of replica "n1" of cell "one", not of replica "n1" of cell "two": give the right directory or the right name and cell`},
	{args: "--data-dir {dir}/other --cell one --name n2 --listen-client {free1} --listen-peer {free2} --listen-http {free3}", code: 1, stderr: `lockd: --data-dir {dir}/other: {dir}/other holds the data of replica "n1" of cell "one", not of replica "n2" of cell "one": give the right directory or the right name and cell`},
	{args: "--data-dir {dir}/plain --listen-client {free1} --listen-peer {free2} --listen-http {free3}", code: 1, stderr: "lockd: --data-dir: making the data directory {dir}/plain: mkdir {dir}/plain: not a directory: give a directory that this user can make and write"},
	{args: "--data-dir {dir}/plain/sub --listen-client {free1} --listen-peer {free2} --listen-http {free3}", code: 1, stderr: "lockd: --data-dir: making the data directory {dir}/plain/sub: mkdir {dir}/plain: not a directory: give a directory that this user can make and write"},
	{args: "--data-dir /proc/no/dir --listen-client {free1} --listen-peer {free2} --listen-http {free3}", code: 1, stderr: "lockd: --data-dir: making the data directory /proc/no/dir: mkdir /proc/no: no such file or directory: give a directory that this user can make and write"},
	{args: "--data-dir {dir}/damaged --cell one --listen-client {free1} --listen-peer {free2} --listen-http {free3}", code: 1, stderr: "lockd: --data-dir {dir}/damaged: the data in {dir}/damaged is damaged: log/0000000000000001.seg, byte 0: the segment's header is unreadable: a record of 1651663207 bytes is not possible; the replica may have forgotten votes and does not start with it. The others go on without it. Keep a copy of the directory; if the disk had an error, bring back the very same files from the disk itself, never from an older copy"},
	{args: "local --replicas 0", code: 2, stderr: "lockd: --replicas 0: a local cell has 1 to 9", usage: "lockd local"},
	{args: "local --replicas 10", code: 2, stderr: "lockd: --replicas 10: a local cell has 1 to 9", usage: "lockd local"},
	{args: "local --replicas x", code: 2, stderr: `lockd: --replicas "x": must be a whole number, without a unit`, usage: "lockd local"},
	{args: "local --base-port 65400", code: 2, stderr: "lockd: --base-port 65400: it and the ports up to 202 above it must be between 1 and 65535", usage: "lockd local"},
	{args: "local --base-port 0", code: 2, stderr: "lockd: --base-port 0: it and the ports up to 202 above it must be between 1 and 65535", usage: "lockd local"},
	{args: "local --log-level loud", code: 2, stderr: `lockd: --log-level "loud" is none of debug, info, warn, error`, usage: "lockd local"},
	{args: "local x", code: 2, stderr: `lockd: "x" is not a flag or a command of lockd local`, usage: "lockd local"},
	{args: "local --replica 3", code: 2, stderr: "lockd: unknown flag: --replica: is it --replicas?", usage: "lockd local"},
	{args: "local --restart=x", code: 2, stderr: `lockd: --restart "x": must be true or false`, usage: "lockd local"},
	{args: "local --data-dir {dir}/plain", code: 1, stderr: "lockd: --data-dir: mkdir {dir}/plain: not a directory: give a directory that this user can make and write"}}

// ofLockctl are the mistakes with lockctl.
var ofLockctl = []misuse{
	{args: "frob", code: 2, stderr: `lockctl: unknown command "frob" of lockctl`, usage: "lockctl COMMAND [flags]"},
	{args: "lcok", code: 2, stderr: `lockctl: unknown command "lcok": is it lock?`, usage: "lockctl COMMAND [flags]"},
	{args: "session", code: 2, stderr: `lockctl: unknown command "session": is it sessions?`, usage: "lockctl COMMAND [flags]"},
	{args: "--colour", code: 2, stderr: "lockctl: unknown flag: --colour", usage: "lockctl COMMAND [flags]"},
	{args: "--timout 1s ls", code: 2, stderr: "lockctl: unknown flag: --timout: is it --timeout?", usage: "lockctl ls [PATH] [flags]"},
	{args: "-z", code: 2, stderr: "lockctl: unknown shorthand flag: 'z' in -z", usage: "lockctl COMMAND [flags]"},
	{args: "-o yaml ls", code: 2, stderr: `lockctl: unknown output "yaml": table or json`, usage: "lockctl ls [PATH] [flags]"},
	{args: "-o yaml rm /there", code: 2, stderr: `lockctl: unknown output "yaml": table or json`, usage: "lockctl rm PATH [flags]"},
	{args: "-o", code: 2, stderr: "lockctl: flag needs an argument: 'o' in -o", usage: "lockctl COMMAND [flags]"},
	{args: "--timeout soon ls", code: 2, stderr: `lockctl: --timeout "soon": must be a time with its unit, such as 500ms, 2s or 1m`, usage: "lockctl ls [PATH] [flags]"},
	{args: "--timeout 0s ls", code: 2, stderr: "lockctl: --timeout 0s: must be positive", usage: "lockctl ls [PATH] [flags]"},
	{args: "--timeout -1s ls", code: 2, stderr: "lockctl: --timeout -1s: must be positive", usage: "lockctl ls [PATH] [flags]"},
	{args: "help frob", code: 2, stderr: `lockctl: unknown command "frob" of lockctl`, usage: "lockctl help [command] [flags]"},
	{args: "completion tcsh", code: 2, stderr: `lockctl: completion for "tcsh" is not known: bash, zsh, fish and powershell are`, usage: "lockctl completion [flags]"},
	{args: "get", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl get PATH [flags]"},
	{args: "get /a /b", code: 2, stderr: `lockctl: unexpected argument "/b" (quote arguments that contain spaces)`, usage: "lockctl get PATH [flags]"},
	{args: "put", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /a b c", code: 2, stderr: `lockctl: unexpected argument "c" (quote arguments that contain spaces)`, usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "create", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl create PATH [CONTENT] [flags]"},
	{args: "stat", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl stat PATH [flags]"},
	{args: "rm", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl rm PATH [flags]"},
	{args: "watch", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl watch PATH [flags]"},
	{args: "why", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl why PATH [flags]"},
	{args: "break", code: 2, stderr: "lockctl: missing argument PATH", usage: "lockctl break PATH --fence N [flags]"},
	{args: "ls /a /b", code: 2, stderr: `lockctl: unexpected argument "/b" (quote arguments that contain spaces)`, usage: "lockctl ls [PATH] [flags]"},
	{args: "locks /a /b", code: 2, stderr: `lockctl: unexpected argument "/b" (quote arguments that contain spaces)`, usage: "lockctl locks [PATH] [flags]"},
	{args: "sessions x", code: 2, stderr: `lockctl: unexpected argument "x" (quote arguments that contain spaces)`, usage: "lockctl sessions [flags]"},
	{args: "status x", code: 2, stderr: `lockctl: unexpected argument "x" (quote arguments that contain spaces)`, usage: "lockctl status [flags]"},
	{args: "get _", code: 2, stderr: `lockctl: get "": malformed path: it is empty; paths begin with /`},
	{args: "get a", code: 2, stderr: `lockctl: get "a": malformed path: it does not begin with /`},
	{args: "get /a//b", code: 2, stderr: `lockctl: get "/a//b": malformed path: it has two slashes in a row`},
	{args: "get /a/", code: 2, stderr: `lockctl: get "/a/": malformed path: it ends in a slash`},
	{args: "get /.", code: 2, stderr: `lockctl: get "/.": malformed path: "." is not allowed as a part; write the path out in full`},
	{args: "get /a/../b", code: 2, stderr: `lockctl: get "/a/../b": malformed path: ".." is not allowed as a part; write the path out in full`},
	{args: "get /a\x01b", code: 2, stderr: `lockctl: get "/a\x01b": malformed path: the part "a\x01b" has a control character, U+0001`},
	{args: "get /{x256}", code: 2, stderr: `lockctl: get "/{x256}": malformed path: a part of it has 256 bytes, the limit is 255`},
	{args: "get {x1026}", code: 2, stderr: `lockctl: get "{x1026}": malformed path: it has 1026 bytes, the limit is 1024`},
	{args: "ls a", code: 2, stderr: `lockctl: list "a": malformed path: it does not begin with /`},
	{args: "stat a", code: 2, stderr: `lockctl: stat "a": malformed path: it does not begin with /`},
	{args: "rm a", code: 2, stderr: `lockctl: delete "a": malformed path: it does not begin with /`},
	{args: "watch a", code: 2, stderr: `lockctl: watch "a": malformed path: it does not begin with /`},
	{args: "why a", code: 2, stderr: `lockctl: why "a": malformed path: it does not begin with /`},
	{args: "locks a", code: 2, stderr: `lockctl: locks "a": malformed path: it does not begin with /`},
	{args: "put a x", code: 2, stderr: `lockctl: put "a": malformed path: it does not begin with /`},
	{args: "create a", code: 2, stderr: `lockctl: create "a": malformed path: it does not begin with /`},
	{args: "break a --fence 1", code: 2, stderr: `lockctl: break "a": malformed path: it does not begin with /`},
	{args: "bench write --path a", code: 2, stderr: `lockctl: --path "a": malformed path: it does not begin with /`, usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "get /none", code: 3, stderr: "lockctl: get /none: no such node: there is no node /none"},
	{args: "ls /none", code: 3, stderr: "lockctl: list /none: no such node: there is no node /none"},
	{args: "stat /none", code: 3, stderr: "lockctl: stat /none: no such node: there is no node /none"},
	{args: "rm /none", code: 3, stderr: "lockctl: delete /none: no such node: /none does not exist"},
	{args: "create /none/child", code: 3, stderr: "lockctl: create /none/child: no such node: the parent /none does not exist (-p creates missing parents)"},
	{args: "put /none/child x", code: 3, stderr: "lockctl: put /none/child: no such node: the parent /none does not exist (-p creates missing parents)"},
	{args: "put /none x --if-revision 5", code: 3, stderr: "lockctl: put /none: no such node: /none does not exist"},
	{args: "create /there", code: 4, stderr: "lockctl: create /there: node exists already: /there exists"},
	{args: "rm /", code: 2, stderr: "lockctl: rm /: the root cannot be deleted"},
	{args: "rm /dir", code: 4, stderr: "lockctl: delete /dir: node has children (delete them, or recursively): /dir has 1 children (rm -r deletes what is below it too)"},
	{args: "rm /held", code: 4, stderr: "lockctl: delete /held: node's lock is held or waited for (release it, or force): /held is locked or waited for ('lockctl why /held' says by whom; --force takes it from them)"},
	{args: "create /there x --file y", code: 2, stderr: "lockctl: give the content as an argument or by --file, not both", usage: "lockctl create PATH [CONTENT] [flags]"},
	{args: "create /e --ephemeral --container", code: 2, stderr: "lockctl: a node is ephemeral or a container, not both", usage: "lockctl create PATH [CONTENT] [flags]"},
	{args: "put /there x --file y", code: 2, stderr: "lockctl: give the content as an argument or by --file, not both", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there --file {dir}/missing", code: 1, stderr: "lockctl: read the content: open {dir}/missing: no such file or directory"},
	{args: "put /there --file {dir}", code: 1, stderr: "lockctl: read the content: read {dir}: is a directory"},
	{args: "put /there --file {dir}/big", code: 2, stderr: "lockctl: read the content: data is too large: over 1048576 bytes (1 MiB)"},
	{args: "put /there x --if-generation two", code: 2, stderr: `lockctl: --if-generation "two" is not a number`, usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there x --if-generation _", code: 2, stderr: `lockctl: --if-generation "" is not a number`, usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there x --if-generation -1", code: 2, stderr: `lockctl: --if-generation "-1" is not a number`, usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there x --if-generation 9", code: 4, stderr: "lockctl: put /there: condition does not hold: /there has content generation 1, the condition was 9"},
	{args: "put /none x --if-generation 9", code: 3, stderr: "lockctl: put /none: no such node: /none does not exist"},
	{args: "put /there x --if-generation 0", code: 2, stderr: "lockctl: --if-generation 0 is no condition: a node's generation is 1 or more; for a node that must not exist there is put --if-absent", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there x --if-revision 0", code: 2, stderr: "lockctl: --if-revision 0 is no condition: was the number never set?", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "--cell _ get /there", code: 2, stderr: "lockctl: --cell is empty: give the name of the cell that is meant, or leave the flag out", usage: "lockctl get PATH [flags]"},
	{args: "-o _ ls", code: 2, stderr: `lockctl: unknown output "": table or json`, usage: "lockctl ls [PATH] [flags]"},
	{args: "put /there x --file _", code: 2, stderr: "lockctl: --file is empty: give the name of a file, or - for stdin", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "create /new --file _", code: 2, stderr: "lockctl: --file is empty: give the name of a file, or - for stdin", usage: "lockctl create PATH [CONTENT] [flags]"},
	{args: "put /there x --if-revision 5 --if-revision 6", code: 2, stderr: "lockctl: --if-revision is given twice", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there x --if-absent --if-absent", code: 2, stderr: "lockctl: --if-absent is given twice", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "rm /there --held-fence 5 --held-fence 5", code: 2, stderr: "lockctl: --held-fence is given twice", usage: "lockctl rm PATH [flags]"},
	{args: "create /new --while-held=lockd-hold1:1:1:0:/l --while-held=lockd-hold1:2:2:0:/l", code: 2, stderr: "lockctl: --while-held is given twice", usage: "lockctl create PATH [CONTENT] [flags]"},
	{args: "put /there --while-held lockd-hold1:1:1:0:/l", env: "LOCKD_HOLD=lockd-hold1:1:1:0:/l", code: 2, stderr: `lockctl: "lockd-hold1:1:1:0:/l" is a holding, not content: give it as --while-held=HOLD`, usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "create /new --while-held lockd-hold1:1:1:0:/l", env: "LOCKD_HOLD=lockd-hold1:1:1:0:/l", code: 2, stderr: `lockctl: "lockd-hold1:1:1:0:/l" is a holding, not content: give it as --while-held=HOLD`, usage: "lockctl create PATH [CONTENT] [flags]"},
	{args: "put /there x --if-absent --if-instance 5", code: 2, stderr: "lockctl: --if-absent and --if-instance contradict each other: the node cannot both be absent and exist", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there x --if-absent --held-fence 5", code: 2, stderr: "lockctl: --if-absent and --held-fence contradict each other: the node cannot both be absent and exist", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "put /there x -p --if-generation 5", code: 2, stderr: "lockctl: --parents and --if-generation contradict each other: the parents of a node that exists are there", usage: "lockctl put PATH [CONTENT] [flags]"},
	{args: "watch /there --children -r", code: 2, stderr: "lockctl: --children is part of --subtree: give one of them", usage: "lockctl watch PATH [flags]"},
	{args: "lock --wait -1ns /l -- true", code: 113, stderr: "lockctl: --wait -1ns: must not be negative", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --stop 0s /l -- true", code: 113, stderr: "lockctl: --stop 0s: must be positive", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "rm /there --held-fence _", code: 2, stderr: `lockctl: --held-fence "" is not a number`, usage: "lockctl rm PATH [flags]"},
	{args: "rm /there --if-generation x", code: 2, stderr: `lockctl: --if-generation "x" is not a number`, usage: "lockctl rm PATH [flags]"},
	{args: "rm /there --if-generation _", code: 2, stderr: `lockctl: --if-generation "" is not a number`, usage: "lockctl rm PATH [flags]"},
	{args: "rm /there --if-generation 9", code: 4, stderr: "lockctl: delete /there: condition does not hold: /there has content generation 1, the condition was 9"},
	{args: "create /eph/child", code: 4, stderr: "lockctl: create /eph/child: parent is ephemeral and cannot have children: /eph is ephemeral and can have no children"},
	{args: "break /held", code: 2, stderr: "lockctl: --fence N is needed: the fence of the grant to break, from 'lockctl why /held'", usage: "lockctl break PATH --fence N [flags]"},
	{args: "break /held --fence x", code: 2, stderr: `lockctl: --fence "x" is not a fence: 'lockctl why /held' shows that of the grant to break`, usage: "lockctl break PATH --fence N [flags]"},
	{args: "break /held --fence 12", code: 4, stderr: "lockctl: break /held: lock is lost: /held is not held under fence 12 ('lockctl why /held' shows who holds it, and under which fence)"},
	{args: "sequencer frob", code: 2, stderr: `lockctl: unknown command "frob" for "lockctl sequencer"`, usage: "lockctl sequencer [flags]"},
	{args: "sequencer check", code: 2, stderr: "lockctl: missing argument SEQ", usage: "lockctl sequencer check SEQ [flags]"},
	{args: "sequencer check nonsense", code: 2, stderr: `lockctl: sequencer check: not a sequencer: it does not begin with "lockd1:"`, usage: "lockctl sequencer check SEQ [flags]"},
	{args: "sequencer check lockd1:X:1:1:1:0:/held", code: 5, stderr: "lockctl: not valid: check: lock is lost: it was made by another cell (identity 0; this is e2e, {n})"},
	{args: "sequencer check lockd1:Z:1:1:1:0:/held", code: 2, stderr: `lockctl: sequencer check: not a sequencer: mode "Z", known are X and S`, usage: "lockctl sequencer check SEQ [flags]"},
	{args: "bench", code: 2, stderr: "lockctl: what to measure? Give one or more of write, read, lock, handoff, sessions", usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "bench fly", code: 2, stderr: `lockctl: "fly" is none of write, read, lock, handoff, sessions`, usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "bench write --clients 0", code: 2, stderr: "lockctl: --clients 0: must be between 1 and 10000", usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "bench write --clients x", code: 2, stderr: `lockctl: --clients "x": must be a whole number, without a unit`, usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "bench write --size -1", code: 2, stderr: "lockctl: --size -1: must be between 0 and 1048576", usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "bench write --duration 0s", code: 2, stderr: "lockctl: --duration 0s: must be positive", usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "bench write --duration 10", code: 2, stderr: `lockctl: --duration "10": must be a time with its unit, such as 500ms, 2s or 1m`, usage: "lockctl bench {write|read|lock|handoff|sessions}... [flags]"},
	{args: "demo x", code: 2, stderr: `lockctl: unknown command "x" for "lockctl demo"`, usage: "lockctl demo [flags]"},
	{args: "--endpoints 127.0.0.1 ls", code: 2, stderr: `lockctl: endpoint "127.0.0.1" is not HOST:PORT`, usage: "lockctl ls [PATH] [flags]"},
	{args: "--endpoints 127.0.0.1:99999 ls", code: 2, stderr: `lockctl: endpoint "127.0.0.1:99999": its port must be a number between 1 and 65535`, usage: "lockctl ls [PATH] [flags]"},
	{args: "--endpoints 127.0.0.1:http ls", code: 2, stderr: `lockctl: endpoint "127.0.0.1:http": its port must be a number between 1 and 65535`, usage: "lockctl ls [PATH] [flags]"},
	{args: "--endpoints _ ls", code: 2, stderr: "lockctl: no endpoints: give --endpoints HOST:PORT,... or LOCKCTL_ENDPOINTS", usage: "lockctl ls [PATH] [flags]"},
	{args: "get /there", env: "LOCKCTL_ENDPOINTS=x", code: 2, stderr: `lockctl: endpoint "x" is not HOST:PORT`, usage: "lockctl get PATH [flags]"},
	{args: "ls", env: "LOCKCTL_ENDPOINT={client}", code: 2, stderr: "lockctl: environment: LOCKCTL_ENDPOINT is not known: is it LOCKCTL_ENDPOINTS? Correct or unset it", usage: "lockctl ls [PATH] [flags]"},
	{args: "--endpoints {closed} --timeout 5s get /there", code: 6, stderr: "lockctl: connect: service is not available: no master within 5s: {closed}: dial tcp {closed}: connect: connection refused\nlockctl: is a cell running there? start one on this machine with 'lockd local', or point --endpoints / LOCKCTL_ENDPOINTS at yours"},
	{args: "--endpoints {closed} --timeout 5s put /there x", code: 6, stderr: "lockctl: dial: service is not available: no master within 5s: {closed}: dial tcp {closed}: connect: connection refused\nlockctl: is a cell running there? start one on this machine with 'lockd local', or point --endpoints / LOCKCTL_ENDPOINTS at yours"},
	{args: "--endpoints {closed} status", code: 6, stderr: "lockctl: status {closed}: service is not available: dial tcp {closed}: connect: connection refused\nlockctl: none of the endpoints is the master: is a cell running there? start one on this machine with 'lockd local', or point --endpoints / LOCKCTL_ENDPOINTS at yours"},
	{args: "--endpoints {peer} --timeout 5s get /there", code: 6, stderr: "lockctl: connect: service is not available: no master within 5s: {peer}: invalid argument: the service says: this is the port for other replicas: clients connect to {client}"},
	{args: "--endpoints {peer} status", code: 6, stderr: "lockctl: status {peer}: service is not available: the replica says: this is the port for other replicas: clients connect to {client} (BAD_MESSAGE)\nlockctl: none of the endpoints is the master"},
	{args: "--endpoints {http} --timeout 5s get /there", code: 6, stderr: "lockctl: connect: service is not available: no master within 5s: {http}: invalid argument: the service says: this is the HTTP port: clients connect to {client}"},
	{args: "--endpoints {http} status", code: 6, stderr: "lockctl: status {http}: service is not available: the replica says: this is the HTTP port: clients connect to {client} (BAD_MESSAGE)\nlockctl: none of the endpoints is the master"},
	{args: "--cell other get /there", code: 6, stderr: `lockctl: connect: {client}: wrong cell: the service says: this replica belongs to cell "e2e", the client means "other"; check the addresses or the cell's name`},
	{args: "--cell other status", code: 6, stderr: "lockctl: status {client}: wrong cell: it belongs to cell \"e2e\", not \"other\"\nlockctl: none of the endpoints is the master"},
	{args: "lock", code: 113, stderr: "lockctl: missing PATH of the lock", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock /l", code: 113, stderr: "lockctl: missing CMD: lock PATH -- CMD [ARG...]", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock /l --", code: 113, stderr: "lockctl: missing CMD: lock PATH -- CMD [ARG...]", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --frob /l -- true", code: 113, stderr: "lockctl: unknown flag: --frob", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --tyr /l -- true", code: 113, stderr: "lockctl: unknown flag: --tyr", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock /l --try -- true", code: 113, stderr: "lockctl: --try must come before PATH: lock's own flags go before PATH, CMD after --", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --try --wait 1s /l -- true", code: 113, stderr: "lockctl: --try does not wait: give --try or --wait, not both", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --wait -1s /l -- true", code: 113, stderr: "lockctl: --wait -1s: must not be negative", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --wait x /l -- true", code: 113, stderr: `lockctl: --wait "x": must be a time with its unit, such as 500ms, 2s or 1m`, usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --lease 10ms /l -- true", code: 113, stderr: "lockctl: --lease 10ms: must be between 1s and 10m", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --lease 1 /l -- true", code: 113, stderr: `lockctl: --lease "1": must be a time with its unit, such as 500ms, 2s or 1m`, usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --lock-delay 61s /l -- true", code: 113, stderr: "lockctl: --lock-delay 1m1s: must be between 0 and 60s", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --stop -1s /l -- true", code: 113, stderr: "lockctl: --stop -1s: must be positive", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --lease 2s --lock-delay 0 --stop 5s /l -- true", code: 113, stderr: "lockctl: --stop 5s: must be less than 687ms (lock-delay + 2/3 of the lease, less 646ms)", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock --timeout 0s /l -- true", code: 113, stderr: "lockctl: --timeout 0s: must be positive", usage: "lockctl lock [flags] PATH -- CMD [ARG...]"},
	{args: "lock l -- true", code: 113, stderr: `lockctl: lock "l": malformed path: it does not begin with /`},
	{args: "lock /a/../l -- true", code: 113, stderr: `lockctl: lock "/a/../l": malformed path: ".." is not allowed as a part; write the path out in full`},
	{args: "lock /l -- no-such-command", code: 127, stderr: `lockctl: cannot run no-such-command: exec: "no-such-command": executable file not found in $PATH`},
	{args: "lock /l -- {dir}/plain", code: 126, stderr: `lockctl: cannot run {dir}/plain: exec: "{dir}/plain": permission denied`},
	{args: "lock /l -- {dir}/missing", code: 127, stderr: `lockctl: cannot run {dir}/missing: exec: "{dir}/missing": stat {dir}/missing: no such file or directory`},
	{args: "lock /l -- {dir}", code: 126, stderr: `lockctl: cannot run {dir}: exec: "{dir}": is a directory`},
	{args: "lock /l -- sh -c exit~7", code: 7},
	{args: "lock /l -- sh -c kill~-9~$$", code: 137},
	{args: "lock --try /held -- true", code: 110, stderr: "lockctl: lock /held: held by holder on {host}, pid {n}, since {time}, fence {n}"},
	{args: "lock -q --wait 50ms /held -- true", code: 110, stderr: "lockctl: lock /held: not granted within {time}: held by holder on {host}, pid {n}, since {time}, fence {n}"},
	{args: "lock --endpoints {closed} --timeout 5s /l -- true", code: 112, stderr: "lockctl: lock /l: dial: service is not available: no master within 5s: {closed}: dial tcp {closed}: connect: connection refused\nlockctl: is a cell running there? start one on this machine with 'lockd local', or point --endpoints / LOCKCTL_ENDPOINTS at yours"},
	{args: "lock --endpoints {http} --timeout 5s /l -- true", code: 112, stderr: "lockctl: lock /l: dial: service is not available: no master within 5s: {http}: invalid argument: the service says: this is the HTTP port: clients connect to {client}"},
	{args: "lock --endpoints {peer} --timeout 5s /l -- true", code: 112, stderr: "lockctl: lock /l: dial: service is not available: no master within 5s: {peer}: invalid argument: the service says: this is the port for other replicas: clients connect to {client}"},
	{args: "lock --cell other /l -- true", code: 112, stderr: `lockctl: lock /l: dial: {client}: wrong cell: the service says: this replica belongs to cell "e2e", the client means "other"; check the addresses or the cell's name`},
	{args: "lock --endpoints x /l -- true", code: 113, stderr: `lockctl: endpoint "x" is not HOST:PORT`, usage: "lockctl lock [flags] PATH -- CMD [ARG...]"}}

// differs is what is not the same in each run, with what stands for it.
var differs = []struct {
	pattern *regexp.Regexp
	text    string
}{
	{regexp.MustCompile(`(?m)^time=.*\n`), ""}, // the log
	{regexp.MustCompile(`(pid|process) \d+`), "$1 {n}"},
	{regexp.MustCompile(`since \d\d:\d\d:\d\d`), "since {time}"},
	{regexp.MustCompile(`fence \d{6,}`), "fence {n}"},
	{regexp.MustCompile(`not granted within [^:]+:`), "not granted within {time}:"},
	{regexp.MustCompile(`held by holder on \S+, pid`), "held by holder on {host}, pid"},
	{regexp.MustCompile(`this is e2e, [0-9a-f]+\)`), "this is e2e, {n})"},
}

// bench is where mistakes are made: a cell, files, addresses.
type bench struct {
	*cell
	places *strings.Replacer
}

func newBench(t *testing.T) *bench {
	t.Helper()
	c := startCell(t, 1)
	free := freeAddresses(t, 4)
	b := &bench{cell: c, places: strings.NewReplacer(
		"{client}", c.ports[0], "{peer}", c.ports[1], "{http}", c.ports[2], "{dir}", c.dir,
		"{closed}", free[0], "{free1}", free[1], "{free2}", free[2], "{free3}", free[3],
		"{x65}", strings.Repeat("x", 65), "{x256}", strings.Repeat("x", 256), "{x1026}", strings.Repeat("/x", 513))}
	s := c.dial()
	for _, err := range []error{
		put(s, "/there"), put(s, "/dir"), put(s, "/dir/leaf"),
		os.WriteFile(filepath.Join(c.dir, "plain"), nil, 0o600),
		os.WriteFile(filepath.Join(c.dir, "big"), make([]byte, client.DataMax+1), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Create(t.Context(), "/eph", nil, client.Ephemeral()); err != nil {
		t.Fatal(err)
	}
	c.holding(t, "--name", "holder", "/held", "--", "sh", "-c", "echo started; exec sleep 600")
	b.otherReplica()
	return b
}

func put(s *client.Session, path string) error {
	_, err := s.Put(context.Background(), path, []byte("x"))
	return err
}

// otherReplica leaves the data of replica n1 of cell one in {dir}/other, and the
// same with a damaged log in {dir}/damaged.
func (b *bench) otherReplica() {
	b.t.Helper()
	other, damaged := filepath.Join(b.dir, "other"), filepath.Join(b.dir, "damaged")
	at := freeAddresses(b.t, 3)
	r := &replica{args: []string{"--cell", "one", "--data-dir", other, "--segment-bytes", "65536",
		"--listen-client", at[0], "--listen-peer", at[1], "--listen-http", at[2]}}
	b.start(r)
	eventually(b.t, "the other replica serves", func() bool {
		st, err := ask(b.t, at[0])
		return err == nil && st.Role == "master"
	})
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		b.t.Fatal(err)
	}
	<-r.ended
	if err := os.CopyFS(damaged, os.DirFS(other)); err != nil {
		b.t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(damaged, "log", "0000000000000001.seg"), os.O_WRONLY, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("garbage"), 8); err != nil {
		b.t.Fatal(err)
	}
}

// make makes a mistake, and returns what is said of it.
func (b *bench) make(name string, m misuse) (code int, stdout, stderr string) {
	var args []string
	for _, a := range strings.Fields(m.args) {
		if a == "_" {
			a = ""
		}
		args = append(args, b.places.Replace(strings.ReplaceAll(a, "~", " ")))
	}
	// What is taken against expectation runs until it is killed.
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(name), args...)
	cmd.Dir = b.dir
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "LOCK") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "LOCKCTL_ENDPOINTS="+b.ports[0])
	if m.env != "" {
		cmd.Env = append(cmd.Env, b.places.Replace(m.env))
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run() // the state tells how it ended
	stderr = errs.String()
	for _, d := range differs {
		stderr = d.pattern.ReplaceAllString(stderr, d.text)
	}
	return cmd.ProcessState.ExitCode(), out.String(), stderr
}

// want is the whole of stderr.
func (b *bench) want(name string, m misuse) string {
	want := b.places.Replace(m.stderr)
	if want != "" {
		want += "\n"
	}
	switch {
	case name == "lockd" && m.code == 2:
		if m.usage == "" {
			m.usage = name
		}
		want += "Nothing was started. `" + m.usage + " --help` lists the flags.\n"
	case m.usage != "":
		words := strings.Fields(m.usage)
		if i := slices.IndexFunc(words, func(w string) bool { return strings.Trim(w, "abcdefghijklmnopqrstuvwxyz") != "" }); i > 0 {
			words = words[:i]
		}
		want += "usage: " + m.usage + "\nSee '" + strings.Join(words, " ") + " --help'.\n"
	}
	return want
}

// TestMisuse fixes what is said of each mistake, to the letter, and how the
// programs exit.
func TestMisuse(t *testing.T) {
	b := newBench(t)
	try := func(name string, m misuse) {
		code, stdout, stderr := b.make(name, m)
		if want := b.want(name, m); code != m.code || stderr != want {
			t.Errorf("%s %s %s: exit code %d, want %d; stderr\n%swant\n%s", m.env, name, m.args, code, m.code, stderr, want)
		}
		if strings.Count(stderr, "\n") > 4 || m.code != 6 && stdout != "" {
			t.Errorf("%s %s: too much is said:\n%s%s", name, m.args, stdout, stderr)
		}
	}
	// Those that wait for a service that is not there do so together.
	var waits sync.WaitGroup
	for _, m := range ofLockctl {
		if strings.Contains(m.args, "--timeout 5s") {
			waits.Go(func() { try("lockctl", m) })
		}
	}
	for _, m := range ofLockd {
		try("lockd", m)
	}
	for _, m := range ofLockctl {
		if !strings.Contains(m.args, "--timeout 5s") {
			try("lockctl", m)
		}
	}
	waits.Wait()
	if _, err := os.Stat(filepath.Join(b.dir, "lockd-data")); err == nil {
		t.Error("a mistake has founded a cell in ./lockd-data")
	}
}

// TestHelpIsNoMistake: what was asked for goes to stdout.
func TestHelpIsNoMistake(t *testing.T) {
	b := &bench{cell: &cell{t: t, dir: t.TempDir(), ports: []string{"127.0.0.1:1"}}, places: strings.NewReplacer()}
	for _, line := range []string{"lockd --version", "lockd --help", "lockd -h", "lockd help", "lockd local --help", "lockd help local", "lockd completion bash",
		"lockctl", "lockctl --version", "lockctl --help", "lockctl help lock", "lockctl lock --help", "lockctl sequencer --help", "lockctl sequencer check -h",
		"lockctl get --help", "lockctl completion zsh", "lockctl completion"} {
		name, args, _ := strings.Cut(line, " ")
		if code, stdout, stderr := b.make(name, misuse{args: args}); code != 0 || strings.TrimSpace(stdout) == "" || stderr != "" {
			t.Errorf("%s: exit code %d, %d bytes of stdout, stderr %q", line, code, len(stdout), stderr)
		}
	}
}

// TestExitCodesAreDocumented: the documents list the exit codes that the table
// shows.
func TestExitCodesAreDocumented(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ofAll, ofLock, found := strings.Cut(read("lockctl.md"), "Of `lock`:")
	if !found {
		t.Fatal("docs/lockctl.md has no exit codes of lock")
	}
	for _, m := range ofLockctl {
		if !strings.HasPrefix(m.args, "lock ") && m.args != "lock" {
			if !strings.Contains(ofAll, fmt.Sprintf("\n| %d |", m.code)) {
				t.Errorf("lockctl %s: exit code %d is not in docs/lockctl.md", m.args, m.code)
			}
			continue
		}
		// Below 110 and from 128 on it is the command's own.
		if m.code >= 110 && m.code < 126 && !strings.Contains(ofLock, fmt.Sprintf("\n| %d |", m.code)) ||
			(m.code == 126 || m.code == 127) && !strings.Contains(ofLock, strconv.Itoa(m.code)+" not ") {
			t.Errorf("lockctl %s: exit code %d of lock is not in docs/lockctl.md", m.args, m.code)
		}
	}
	_, ofDaemon, found := strings.Cut(read("operations.md"), "Exit codes:")
	if ofDaemon, _, _ = strings.Cut(ofDaemon, "\n\n"); !found {
		t.Fatal("docs/operations.md has no exit codes")
	}
	for _, m := range ofLockd {
		if !strings.Contains(ofDaemon, fmt.Sprintf(" %d ", m.code)) {
			t.Errorf("lockd %s: exit code %d is not in docs/operations.md", m.args, m.code)
		}
	}
}
