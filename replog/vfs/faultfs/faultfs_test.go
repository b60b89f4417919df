package faultfs

import (
	"bytes"
	"errors"
	"io/fs"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed70370324/lockd/replog/vfs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, f *FS, name string) vfs.File {
	t.Helper()
	h, err := f.Create(name)
	must(t, err)
	return h
}

func put(t testing.TB, h vfs.File, off int64, data string) {
	t.Helper()
	_, err := h.WriteAt([]byte(data), off)
	must(t, err)
}

// content gives a file's content, "-" if it is not there.
func contentOf(t testing.TB, f *FS, name string) string {
	t.Helper()
	b, err := f.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	must(t, err)
	return string(b)
}

func TestWhatIsNotSyncedIsLost(t *testing.T) {
	f := New()
	h := create(t, f, "a")
	put(t, h, 0, "content")
	must(t, h.Sync())
	if got := contentOf(t, f.CrashLost(), "a"); got != "-" {
		t.Errorf("the name was not synced, and is there: %q", got)
	}
	must(t, f.SyncDir(""))
	put(t, h, 0, "CONTENT and more")
	if got := contentOf(t, f.CrashLost(), "a"); got != "content" {
		t.Errorf("after the crash: %q", got)
	}
	if got := contentOf(t, f.Kill().CrashLost(), "a"); got != "content" {
		t.Errorf("after the end of the process and a crash: %q", got)
	}
	if got := contentOf(t, f.Kill(), "a"); got != "CONTENT and more" {
		t.Errorf("after the end of the process: %q", got)
	}
	must(t, h.Truncate(3))
	must(t, h.Preallocate(6))
	if got := contentOf(t, f, "a"); got != "CON\x00\x00\x00" {
		t.Errorf("cut and made longer: %q", got)
	}
	must(t, h.Sync())
	if got := contentOf(t, f.CrashLost(), "a"); got != "CON\x00\x00\x00" {
		t.Errorf("the same after a crash: %q", got)
	}
}

func TestNamesThatAreNotSyncedAreLost(t *testing.T) {
	f := New()
	must(t, f.MkdirAll("d"))
	must(t, f.SyncDir(""))
	h := create(t, f, "d/old")
	put(t, h, 0, "x")
	must(t, h.Sync())
	must(t, f.SyncDir("d"))
	must(t, f.Rename("d/old", "d/new"))
	if names, _ := f.List("d"); !slices.Equal(names, []string{"new"}) {
		t.Errorf("names %q", names)
	}
	if got := contentOf(t, f.CrashLost(), "d/old"); got != "x" {
		t.Errorf("the rename was lost, but the old name is not there: %q", got)
	}
	must(t, f.SyncDir("d"))
	must(t, f.Remove("d/new"))
	if got := contentOf(t, f.CrashLost(), "d/new"); got != "x" {
		t.Errorf("the removal was lost, but the name is not there: %q", got)
	}
	if _, err := f.Open("d/new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
}

// A random crash keeps, of every sector, some state that it was in since the
// last sync, and the same random source gives the same crash.
func TestCrashKeepsAStateOfEachSector(t *testing.T) {
	lost, kept, between := 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		f := New()
		h, err := f.Create("a")
		if err != nil || h.Preallocate(4*sectorBytes) != nil || h.Sync() != nil || f.SyncDir("") != nil {
			t.Fatal("setting up")
		}
		states := [][]byte{make([]byte, 4*sectorBytes)}
		synced := 0
		for i := range rapid.IntRange(1, 6).Draw(t, "writes") {
			from := rapid.IntRange(0, 4*sectorBytes-1).Draw(t, "from")
			to := rapid.IntRange(from, 4*sectorBytes).Draw(t, "to")
			data := bytes.Repeat([]byte{byte(i + 1)}, to-from)
			if _, err := h.WriteAt(data, int64(from)); err != nil {
				t.Fatal(err)
			}
			next := slices.Clone(states[len(states)-1])
			copy(next[from:], data)
			states = append(states, next)
			if rapid.IntRange(0, 3).Draw(t, "sync") == 0 {
				if err := h.Sync(); err != nil {
					t.Fatal(err)
				}
				synced = len(states) - 1
			}
		}
		seed := rapid.Uint64().Draw(t, "seed")
		for _, crash := range []func(*rand.Rand) *FS{f.Crash, f.CrashOrdered} {
			after, err := crash(rand.New(rand.NewPCG(seed, 1))).ReadFile("a")
			if err != nil {
				t.Fatal(err)
			}
			again, _ := crash(rand.New(rand.NewPCG(seed, 1))).ReadFile("a")
			if !bytes.Equal(after, again) {
				t.Fatal("the same random source gave another crash")
			}
			for s := range 4 {
				sector := after[s*sectorBytes:][:sectorBytes]
				is := func(state []byte) bool { return bytes.Equal(sector, state[s*sectorBytes:][:sectorBytes]) }
				i := slices.IndexFunc(states[synced:], is)
				switch {
				case i < 0:
					t.Fatalf("sector %d is in a state in which it never was", s)
				case i == 0:
					lost++
				case is(states[len(states)-1]):
					kept++
				default:
					between++
				}
			}
		}
	})
	if lost == 0 || kept == 0 || between == 0 {
		t.Errorf("%d sectors lost, %d kept, %d in between: the crashes are not random", lost, kept, between)
	}
}

// An ordered crash keeps no write without all of those before it.
func TestOrderedCrash(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(200) {
		f := New()
		h := create(t, f, "a")
		must(t, h.Preallocate(3*pageBytes))
		must(t, h.Sync())
		must(t, f.SyncDir(""))
		for i := range int64(3) {
			put(t, h, i*pageBytes, "x")
		}
		must(t, f.MkdirAll("d"))
		must(t, f.MkdirAll("e"))
		after := f.CrashOrdered(rand.New(rand.NewPCG(seed, 2)))
		content := contentOf(t, after, "a")
		state := ""
		for i := range 3 {
			if content[i*pageBytes] == 'x' {
				state += "x"
			} else {
				state += "-"
			}
		}
		_, d := after.root.seen["d"]
		_, e := after.root.seen["e"]
		if e && !d {
			t.Error("a name is there without the one before it")
		}
		seen[state] = true
	}
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, []string{"---", "x--", "xx-", "xxx"}) {
		t.Errorf("states %q", got)
	}
}

func TestFailedSyncLosesForGood(t *testing.T) {
	f := New()
	h := create(t, f, "a")
	must(t, f.SyncDir(""))
	put(t, h, 0, "one")
	broken := errors.New("broken")
	f.Fail(Sync, 1, broken)
	if err := h.Sync(); !errors.Is(err, broken) {
		t.Fatalf("%v", err)
	}
	must(t, h.Sync())
	if contentOf(t, f, "a") != "one" || contentOf(t, f.CrashLost(), "a") == "one" {
		t.Error("a sync that says yes after one that failed must bring nothing back")
	}
}

func TestFaults(t *testing.T) {
	f := New()
	h := create(t, f, "a")
	f.Limit(10)
	put(t, h, 0, "0123456789")
	if n, err := h.WriteAt([]byte("abc"), 8); n != 2 || !errors.Is(err, ErrNoSpace) {
		t.Errorf("on a full disk: %d, %v", n, err)
	}
	must(t, f.Remove("a"))
	h = create(t, f, "b")
	put(t, h, 0, "0123456789")
	must(t, h.Sync())
	must(t, f.SyncDir(""))
	must(t, f.Flip("b", 0, 0))
	if got := contentOf(t, f.CrashLost(), "b"); got != "1123456789" {
		t.Errorf("flipped: %q", got)
	}
	ops := f.Ops()
	f.StopAfter(1)
	must(t, h.Sync())
	if err := h.Sync(); !errors.Is(err, ErrStopped) {
		t.Errorf("stopped: %v", err)
	}
	if f.Ops() != ops+1 {
		t.Errorf("%d operations counted", f.Ops()-ops)
	}
	release, err := f.Lock()
	must(t, err)
	var inUse *vfs.InUseError
	if _, err := f.Lock(); !errors.As(err, &inUse) {
		t.Errorf("locked twice: %v", err)
	}
	must(t, release())
	if _, err := f.Lock(); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

func BenchmarkCrash(b *testing.B) {
	f := New()
	h := create(b, f, "a")
	must(b, h.Preallocate(64<<20))
	for i := range int64(1000) {
		put(b, h, i*1000, string(make([]byte, 1000)))
	}
	must(b, h.Sync())
	must(b, f.SyncDir(""))
	put(b, h, 1_000_000, "unsynced")
	rng := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		f.Crash(rng)
	}
}

// TestCrashKeepKeepsWhatItIsTold: of what was not synced, the sectors that are
// named, and nothing else.
func TestCrashKeepKeepsWhatItIsTold(t *testing.T) {
	fsys := New()
	if err := fsys.WriteFile("a", make([]byte, 3*sectorBytes)); err != nil {
		t.Fatal(err)
	}
	f, err := fsys.Open("a")
	if err != nil {
		t.Fatal(err)
	}
	full := make([]byte, 3*sectorBytes)
	for i := range full {
		full[i] = 7
	}
	if fsys.Unsynced() != 0 {
		t.Fatalf("%d changes are unsynced before there is one", fsys.Unsynced())
	}
	if _, err := f.WriteAt(full, 0); err != nil {
		t.Fatal(err)
	}
	if fsys.Unsynced() != 1 {
		t.Fatalf("%d changes are unsynced, not 1", fsys.Unsynced())
	}
	after, err := fsys.CrashKeep(func(name string, offset int64) bool { return name == "a" && offset == sectorBytes }).ReadFile("a")
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range after {
		if want := i/sectorBytes == 1; (b == 7) != want {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
}

func TestReadsThatFail(t *testing.T) {
	f := New()
	h := create(t, f, "a")
	put(t, h, 0, "0123456789")
	must(t, h.Sync())
	must(t, f.SyncDir(""))
	broken := errors.New("broken")
	read := func(f *FS, off int64, n int) error {
		h, err := f.Open("a")
		must(t, err)
		_, err = h.ReadAt(make([]byte, n), off)
		return err
	}
	must(t, f.FailRead("a", 5, 1, broken))
	for _, ok := range [][2]int{{0, 5}, {6, 4}} {
		must(t, read(f, int64(ok[0]), ok[1]))
	}
	if err := read(f, 4, 2); !errors.Is(err, broken) {
		t.Errorf("reading a bad byte: %v", err)
	}
	must(t, read(f, 4, 2)) // once
	must(t, f.FailRead("a", 5, 1, broken))
	must(t, read(f.CrashLost(), 5, 1)) // what fails once is not taken over
	must(t, f.FailRead("a", 7, -1, broken))
	for what, after := range map[string]*FS{"now": f, "after a crash": f.CrashLost(), "after a kill": f.Kill()} {
		for range 3 {
			if err := read(after, 7, 1); !errors.Is(err, broken) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	must(t, f.MendReads("a"))
	must(t, read(f, 0, 10))
	if err := f.FailRead("b", 0, 1, broken); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestFailsFromThenOn(t *testing.T) {
	f := New()
	broken := errors.New("broken")
	f.FailFrom(Create, 2, broken)
	create(t, f, "a")
	for range 3 {
		if _, err := f.Create("b"); !errors.Is(err, broken) {
			t.Errorf("creating: %v", err)
		}
	}
	f.FailFrom(Create, 0, nil)
	create(t, f, "b")
	f.FailFrom(Remove, 1, broken)
	if err := f.Remove("a"); !errors.Is(err, broken) || contentOf(t, f, "a") == "-" {
		t.Errorf("removing: %v", err)
	}
}

func TestVanishedFile(t *testing.T) {
	f := New()
	must(t, f.MkdirAll("d"))
	h := create(t, f, "d/a")
	put(t, h, 0, "content")
	must(t, f.Vanish("d/a")) // its name was not synced yet
	must(t, f.SyncDir("d"))
	must(t, f.SyncDir(""))
	for what, after := range map[string]*FS{"now": f, "after a crash": f.CrashLost(), "after a kill": f.Kill()} {
		if got := contentOf(t, after, "d/a"); got != "-" {
			t.Errorf("%s: %q", what, got)
		}
	}
	if err := f.Vanish("d/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("again: %v", err)
	}
}

func TestFlippedBits(t *testing.T) {
	f := New()
	h := create(t, f, "a")
	put(t, h, 0, string(make([]byte, 64)))
	must(t, h.Sync())
	must(t, f.SyncDir(""))
	rng := rand.New(rand.NewPCG(1, 1))
	must(t, f.FlipBits(rng, "a", 8, 16, 5))
	count := 0
	for i, b := range []byte(contentOf(t, f.CrashLost(), "a")) {
		n := bits.OnesCount8(b)
		if n > 0 && (i < 8 || i >= 16) {
			t.Errorf("byte %d is changed", i)
		}
		count += n
	}
	if count != 5 {
		t.Errorf("%d bits are flipped", count)
	}
	must(t, f.FlipBits(rng, "a", 20, 21, 100)) // no more than there are
	if got := contentOf(t, f, "a")[20]; got != 0xff {
		t.Errorf("all bits of a byte: %x", got)
	}
}
