package sim

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

// TestIdleCellTellsNothingTwice: while nothing happens no line is told again that
// differs from an earlier one in its numbers alone, and a count is told in its place.
func TestIdleCellTellsNothingTwice(t *testing.T) {
	var story bytes.Buffer
	s, err := ParseScript("set lease 3s\nstart 3\nwrite x 1\nwait 20s")
	if err != nil {
		t.Fatal(err)
	}
	if r := RunScript(s, Options{Story: &story}); r.Failure != nil {
		t.Fatal(r.Failure)
	}
	_, idle, found := strings.Cut(story.String(), "wait 20s\n")
	if !found {
		t.Fatalf("the story has no idle part:\n%s", story.String())
	}
	number := regexp.MustCompile(`\b[0-9]+`) // the names of replicas and clients begin with a letter
	told := map[string]bool{}
	counts := 0
	for line := range strings.Lines(idle) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(text, ": the same ") {
			counts++
			continue
		}
		text = number.ReplaceAllString(text, "#")
		if told[text] {
			t.Errorf("told twice while nothing happens: %s", line)
		}
		told[text] = true
	}
	if counts < 6 {
		t.Errorf("%d counts of repeated messages are told, want those of four heartbeats and answers and of the KeepAlive:\n%s", counts, idle)
	}
}
