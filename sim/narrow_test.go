package sim

import (
	"strings"
	"testing"
)

// playNarrow plays a script and returns its world.
func playNarrow(t *testing.T, text string) *World {
	t.Helper()
	script := mustParse(t, text)
	w := newWorld(scriptPlan(script))
	d := &director{w: w, names: map[string]*process{}, values: map[uint64]string{}}
	w.guard(func() {
		for i := 0; i < len(script.steps) && w.failure == nil; i++ {
			d.step = &script.steps[i]
			d.step.do(d)
		}
		if w.failure == nil {
			w.over = true
			w.checkEnd()
		}
	})
	if w.failure != nil {
		t.Fatal(w.failure)
	}
	return w
}

// TestNarrowLinks: bytes take their time, large messages go in parts, and what is
// narrow becomes fast again.
func TestNarrowLinks(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		check  func(w *World) string
	}{
		"parts": {"start 3\nslow-link all all 12mbit 5ms\nlarge x 1 500000\nexpect x 1\nslow-link all all fast\nexpect equal",
			func(w *World) string {
				if w.counts.parts < 20 {
					return "no parts were sent"
				}
				return ""
			}},
		"fast again": {"start 3\nslow-link all all 1mbit 20ms\nlarge x 1 300000\nslow-link all all fast\nexpect equal\nwrite y 1\nexpect equal",
			func(w *World) string {
				for i := range w.net.narrow {
					for k := range w.net.narrow[i] {
						if w.net.narrow[i][k] != nil {
							return "a link is narrow still"
						}
					}
				}
				return ""
			}},
		"full queues": {"start 3\nslow-link all all 2mbit 5ms queue 3000\nlarge x 1 300000\nexpect c1 answered within 60s\nheal\nexpect x 1\nexpect equal",
			func(w *World) string {
				if w.counts.overflows == 0 {
					return "no queue was ever full"
				}
				return ""
			}},
		"a cut amid a large message": {"start 3\nslow-link all all 4mbit 20ms\nc1 large x 1 900000 &\nwait 500ms\npartition master from followers\nwait 8s\nheal\nexpect c1 answered within 60s\nexpect x 1\nexpect equal",
			func(w *World) string { return "" }},
		"a killed follower amid a large message": {"start 3\nslow-link all all 4mbit 20ms\nc1 large x 1 900000 &\nwait 500ms\nlet f = follower\nkill f\nwait 1s\nstart f\nexpect c1 answered within 60s\nheal\nexpect x 1\nexpect equal",
			func(w *World) string { return "" }},
		"a new master amid a large message": {"start 3\nslow-link all all 2mbit 20ms\nc1 large x 1 900000 &\nwait 700ms\nlet m = master\nfreeze m\nwait 5s\nthaw m\nexpect c1 answered within 60s\nheal\nexpect x 1\nexpect equal",
			func(w *World) string {
				if w.counts.superseded == 0 {
					return "nothing was given up"
				}
				return ""
			}},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			if text := c.check(playNarrow(t, c.script)); text != "" {
				t.Error(text)
			}
		})
	}
}
