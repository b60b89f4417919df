package storage_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed70370324/lockd/replog/ondisk"
	"github.com/seed70370324/lockd/replog/storage"
	"github.com/seed70370324/lockd/replog/vfs"
	"github.com/seed70370324/lockd/replog/vfs/faultfs"
)

func TestForeignData(t *testing.T) {
	base := faultfs.New()
	o := open(t, base)
	write(t, o.Storage, 1, 3, 40)
	for _, ask := range [][2]string{{"other", "n1"}, {"demo", "n2"}} {
		fsys := base.Kill()
		before := contents(t, fsys)
		opt := options(fsys)
		opt.Cell, opt.Replica = ask[0], ask[1]
		_, err := storage.Open(opt)
		var foreign *ondisk.ForeignError
		if !errors.As(err, &foreign) || foreign.FoundCell != "demo" || foreign.FoundReplica != "n1" ||
			foreign.AskedCell != ask[0] || foreign.AskedReplica != ask[1] {
			t.Errorf("asked for %q: %v", ask, err)
		}
		if contents(t, fsys) != before {
			t.Errorf("asked for %q: files were changed", ask)
		}
	}
	// A segment of another life, copied in.
	other := faultfs.New()
	opt := options(other)
	opt.NewIncarnation = func() uint64 { return 12 }
	if _, err := storage.Open(opt); err != nil {
		t.Fatal(err)
	}
	segment, err := other.ReadFile(firstSegment)
	must(t, err)
	fsys := base.Kill()
	must(t, fsys.WriteFile(firstSegment, segment))
	_, err = storage.Open(options(fsys))
	var foreign *ondisk.ForeignError
	if !errors.As(err, &foreign) || foreign.FoundIncarnation != 12 || foreign.Wanted != 4711 {
		t.Errorf("a segment of another life: %v", err)
	}
}

func TestDirectoryThatIsNotOurs(t *testing.T) {
	for _, name := range []string{"letters.txt", "log/0000000000000002.seg", "log/0000000000000001.seg", "snap/0000000000000001.snap"} {
		fsys := faultfs.New()
		must(t, fsys.MkdirAll("log"))
		must(t, fsys.MkdirAll("snap"))
		must(t, fsys.WriteFile(name, []byte("something")))
		before := contents(t, fsys)
		_, err := storage.Open(options(fsys))
		var foreign *ondisk.ForeignError
		if !errors.As(err, &foreign) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
		if contents(t, fsys) != before {
			t.Errorf("%s: files were changed", name)
		}
	}
	// The identity alone taken away from real data.
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	write(t, st, 1, 2, 40)
	must(t, st.Close())
	must(t, fsys.Remove("identity"))
	_, err := storage.Open(options(fsys))
	var foreign *ondisk.ForeignError
	if !errors.As(err, &foreign) || !strings.Contains(err.Error(), "no file identity") || !strings.Contains(err.Error(), "put the very same file back") {
		t.Errorf("data without identity: %v", err)
	}
}

func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	first := openOS(t, dir, 1)
	fsys, err := vfs.NewOSFS(dir)
	must(t, err)
	_, err = storage.Open(options(fsys))
	var inUse *vfs.InUseError
	if !errors.As(err, &inUse) || inUse.PID != os.Getpid() || inUse.Dir != dir {
		t.Fatalf("opened twice: %v", err)
	}
	must(t, first.Storage.Close())
	o, err := storage.Open(storage.Options{FS: fsys, Cell: "demo", Replica: "n1", NewIncarnation: func() uint64 { return 1 }})
	must(t, err)
	if o.Empty || o.Identity.Incarnation != 77 {
		t.Errorf("opened again: %+v", o)
	}
	must(t, o.Storage.Close())
}

func TestErrorsNameTheDirectory(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "notes"), []byte("mine"), 0o600))
	fsys, err := vfs.NewOSFS(dir)
	must(t, err)
	if _, err := storage.Open(options(fsys)); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v", err)
	}
	if _, err := fsys.Create("../escape"); err == nil {
		t.Error("a name outside of the directory was accepted")
	}
}

func TestFoundedStays(t *testing.T) {
	fsys := faultfs.New()
	st := open(t, fsys).Storage
	must(t, st.SetFounded(0xabc))
	must(t, st.SetFounded(0xabc))
	if err := st.SetFounded(0xdef); err == nil {
		t.Error("a second cell identity was accepted")
	}
	o := open(t, fsys.CrashLost())
	if o.Empty || o.Identity.CellIdentity != 0xabc || o.Identity.Incarnation != 4711 {
		t.Errorf("found %v", o.Identity)
	}
}
