package environ

import (
	"strings"
	"testing"

	"github.com/seed70370324/lockd/internal/fuzzing"
)

var known = []string{"LOCKD_NAME", "LOCKD_DATA_DIR", "LOCKD_LISTEN_CLIENT", "LOCKD_LISTEN_HTTP", "LOCKD_CELL"}

func TestCheck(t *testing.T) {
	for _, tc := range []struct{ env, mistyped, meant, strange string }{
		{"PATH=/bin LOCKD_NAME=n1 LOCKCTL_CELL=x", "", "", ""},
		{"LOCKD_DATADIR=/x", "LOCKD_DATADIR", "LOCKD_DATA_DIR", ""},
		{"LOCKD_data_dir=/x", "LOCKD_data_dir", "LOCKD_DATA_DIR", ""},
		{"LOCKD_LISTEN_CLIENTS=x", "LOCKD_LISTEN_CLIENTS", "LOCKD_LISTEN_CLIENT", ""},
		{"LOCKD_NAEM=x", "LOCKD_NAEM", "LOCKD_NAME", ""},
		{"LOCKD_FENCE=1 LOCKD_SEQUENCER=2 LOCKD_LOCK=/a", "", "", "LOCKD_FENCE LOCKD_LOCK LOCKD_SEQUENCER"},
		{"LOCKD_SERVICE_HOST=1 LOCKD_PORT=tcp LOCKD_PORT_7101_TCP=x", "", "", "LOCKD_PORT LOCKD_PORT_7101_TCP LOCKD_SERVICE_HOST"},
	} {
		mistyped, meant, strange := Check(strings.Fields(tc.env), "LOCKD_", known)
		if mistyped != tc.mistyped || mistyped != "" && meant != tc.meant || strings.Join(strange, " ") != tc.strange {
			t.Errorf("%s: %q for %q, strange %q", tc.env, mistyped, meant, strange)
		}
	}
}

// FuzzCheck: no environment fails, what is known is never complained of, and
// everything else is, once.
func FuzzCheck(f *testing.F) {
	fuzzing.Seed(f, "some", "LOCKD_NAME=n1\x00LOCKD_DATADIR=/x\x00LOCKD_X")
	fuzzing.Seed(f, "bare", "LOCKD_\x00LOCKD_=\x00=x\x00")
	f.Fuzz(func(t *testing.T, text string) {
		env := strings.Split(text, "\x00")
		mistyped, meant, strange := Check(env, "LOCKD_", known)
		ours := 0
		for _, e := range env {
			name, _, _ := strings.Cut(e, "=")
			good := false
			for _, k := range known {
				good = good || k == name
			}
			if strings.HasPrefix(name, "LOCKD_") && !good {
				ours++
			}
			if good && name == mistyped {
				t.Fatalf("%s is known", name)
			}
		}
		if mistyped == "" && len(strange) != ours || mistyped != "" && (meant == "" || ours == 0) {
			t.Fatalf("%q: %q for %q, %q", env, mistyped, meant, strange)
		}
	})
}
