package layers

import (
	"slices"
	"strings"
	"testing"
)

// TestEachForbiddenImportIsFound: made-up packages, one breach each.
func TestEachForbiddenImportIsFound(t *testing.T) {
	for _, tc := range []struct {
		from, to string
		want     string // in the breach; "": it is allowed
	}{
		{"paxos", "internal/invariant", ""},
		{"paxos", "internal/wire", "paxos imports internal/wire"},
		{"paxos", "store", "paxos imports store"},
		{"paxos", "replog", "paxos imports replog"},
		{"store", "store/pb", ""},
		{"store", "paxos", "store imports paxos"},
		{"store/pb", "replog/pb", "store/pb imports replog/pb"},
		{"store", "internal/nodepath", ""},
		{"store", "internal/nodepathology", "store imports internal/nodepathology"},
		{"replog", "paxos", ""},
		{"replog", "internal/clock", ""},
		{"replog", "replog/codec", ""},
		{"replog", "replog/storage", "replog imports replog/storage"},
		{"replog", "replog/peer", "replog imports replog/peer"},
		{"replog", "store", "replog imports store"},
		{"replog/storage", "replog", ""},
		{"replog/storage", "replog/wal", ""},
		{"replog/storage", "lockd/master", "replog/storage imports lockd/master"},
		{"replog/wal", "replog/ondisk", ""},
		{"replog/wal", "replog", "replog/wal imports replog:"},
		{"replog/wal", "replog/snapfile", "replog/wal imports replog/snapfile"},
		{"replog/vfs", "paxos", "replog/vfs imports paxos"},
		{"replog/vfs/faultfs", "replog/vfs", ""},
		{"replog/peer", "replog/peer/lane", ""},
		{"replog/peer/lane", "replog/peer", "replog/peer/lane imports replog/peer"},
		{"replog/pb", "internal/invariant", "nothing of this module"},
		{"lockd", "lockd/server", ""},
		{"lockd/server", "store", ""},
		{"lockd/admin", "paxos", "lockd/admin imports paxos"},
		{"lockd/server", "client", "lockd/server imports client"},
		{"client", "internal/wire", ""},
		{"client/lockctl", "client", ""},
		{"client/lockctl", "store/pb", "client/lockctl imports store/pb"},
		{"client", "lockd/master", "client imports lockd/master"},
		{"client", "store", "client imports store:"},
		{"internal/wire", "internal/wire/pb", ""},
		{"internal/wire", "store/pb", "internal/wire imports store/pb"},
		{"internal/clock", "paxos", "internal/clock imports paxos"},
		{"sim", "lockd/server", ""},
		{"sim/cmd/sim", "sim", ""},
		{"internal/e2e", "sim", "internal/e2e imports sim, which nothing imports"},
		{"lockd/replica", "sim/cmd/sim", "lockd/replica imports sim/cmd/sim, which nothing imports"},
		{"tools", "paxos", "tools is in no layer"},
	} {
		got := checkImports([]pack{{name: tc.from, imports: []string{tc.to}}}, layers, nil)
		switch {
		case tc.want == "" && len(got) > 0:
			t.Errorf("%s may import %s: %q", tc.from, tc.to, got)
		case tc.want != "" && (len(got) != 1 || !strings.Contains(got[0], tc.want)):
			t.Errorf("%s imports %s, and the check says %q and not %q", tc.from, tc.to, got, tc.want)
		}
	}
	got := checkImports([]pack{{name: "store", tests: []string{"paxos", "sim"}}}, layers, nil)
	if len(got) != 1 || !strings.Contains(got[0], "a test of store imports sim") {
		t.Errorf("a test that imports sim: %q", got)
	}
}

// TestExceptions: one allows its own import alone, and must be needed.
func TestExceptions(t *testing.T) {
	allowed := []exception{{"client", "store/pb", "why"}, {"client", "store", "why"}}
	got := checkImports([]pack{{name: "client", imports: []string{"store/pb"}}, {name: "client/machine", imports: []string{"store/pb"}}}, layers, allowed)
	want := []string{"client/machine imports store/pb", "client does not import store any more"}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i, w := range want {
		if !strings.Contains(got[i], w) {
			t.Errorf("%q, want %q", got[i], w)
		}
	}
	for _, e := range exceptions {
		if e.reason == "" {
			t.Errorf("the exception of %s for %s has no reason", e.from, e.to)
		}
	}
}

// TestEachImpurityIsFound: made-up files, one breach each.
func TestEachImpurityIsFound(t *testing.T) {
	for _, tc := range []struct{ imports, body, want string }{
		{`"time"`, `var d = time.Second + time.Duration(3)`, ""},
		{`"time"`, `func f() { time.Now() }`, "uses time.Now"},
		{`clock "time"`, `func f() { clock.Now() }`, "uses time.Now"},
		{`. "time"`, `func f() { Now() }`, "imports time without its name"},
		{`"time"`, `var now = time.Now`, "uses time.Now"},
		{`"time"`, `func f() { time.Since(x) }`, "uses time.Since"},
		{`"time"`, `func f() { time.Until(x) }`, "uses time.Until"},
		{`"time"`, `func f() { time.After(1) }`, "uses time.After"},
		{`"time"`, `func f() { time.AfterFunc(1, f) }`, "uses time.AfterFunc"},
		{`"time"`, `func f() { time.NewTimer(1) }`, "uses time.NewTimer"},
		{`"time"`, `func f() { time.NewTicker(1) }`, "uses time.NewTicker"},
		{`"time"`, `func f() { time.Tick(1) }`, "uses time.Tick"},
		{`"time"`, `func f() { time.Sleep(1) }`, "uses time.Sleep"},
		{`"os"`, ``, "imports os"},
		{`"os/exec"`, ``, "imports os/exec"},
		{`"net"`, ``, "imports net"},
		{`"net/http"`, ``, "imports net/http"},
		{`"sync"`, ``, "imports sync"},
		{`"sync/atomic"`, ``, "imports sync/atomic"},
		{`_ "syscall"`, ``, "imports syscall"},
		{`"io/fs"`, ``, "imports io/fs"},
		{`"io"`, `var r io.Reader`, ""},
		{`"math/rand"`, ``, "imports math/rand"},
		{`"crypto/rand"`, ``, "imports crypto/rand"},
		{`"math/rand/v2"`, `var r = rand.New(rand.NewPCG(1, 2))`, ""},
		{`"math/rand/v2"`, `var r = rand.IntN(5)`, "uses math/rand/v2.IntN"},
		{`. "math/rand/v2"`, `var r = IntN(5)`, "imports math/rand/v2 without its name"},
		{``, `func f() { go f() }`, "starts a goroutine"},
		{``, `func f() { func() { go f() }() }`, "starts a goroutine"},
		{``, `func f() { select {} }`, "has a select statement"},
		{``, `var c = make(chan int)`, "has a channel"},
		{``, `func f(c <-chan int) {}`, "has a channel"},
		{``, `func Now() {}; func f() { Now() }`, ""},
	} {
		src := "package p\n"
		if tc.imports != "" {
			src += "import " + tc.imports + "\n"
		}
		got, err := checkPure("made-up.go", src+tc.body)
		switch {
		case err != nil:
			t.Errorf("%s %s: %v", tc.imports, tc.body, err)
		case tc.want == "" && len(got) > 0:
			t.Errorf("%s %s is pure: %q", tc.imports, tc.body, got)
		case tc.want != "" && !slices.ContainsFunc(got, func(b string) bool { return strings.HasSuffix(b, tc.want) }):
			t.Errorf("%s %s: the check says %q and not %q", tc.imports, tc.body, got, tc.want)
		}
	}
}
