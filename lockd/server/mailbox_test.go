package server

import (
	"testing"

	"github.com/seed70370324/lockd/paxos"
)

// Requests that come while a flush is under way wait for its end, together;
// anything else takes them along at once.
func TestRequestsGatherDuringAFlush(t *testing.T) {
	request, other := letter{size: 1, wakes: gathered}, letter{size: 2}
	woken := func(m *mailbox) bool {
		select {
		case <-m.wake:
			return true
		default:
			return false
		}
	}
	for _, tc := range []struct {
		name   string
		gather int
		put    []letter
		wakes  bool
		taken  int // by a swap while the flush goes on
	}{
		{"a request with an idle disk", 0, []letter{request}, true, 1},
		{"requests during a flush", 3, []letter{request, request}, false, 0},
		{"enough requests during a flush", 3, []letter{request, request, request}, true, 3},
		{"something else during a flush", 3, []letter{other}, true, 1},
		{"something else behind requests", 4, []letter{request, request, other}, true, 3},
		{"requests behind something else", 3, []letter{other, request}, true, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMailbox()
			m.swap(nil, mood{gather: tc.gather})
			for _, l := range tc.put {
				if !m.put(l) {
					t.Fatal("the mailbox is closed")
				}
			}
			if got := woken(m); got != tc.wakes {
				t.Errorf("wakes the loop: %v, want %v", got, tc.wakes)
			}
			if got := len(m.swap(nil, mood{gather: tc.gather})); got != tc.taken {
				t.Errorf("%d letters are taken, want %d", got, tc.taken)
			}
			if got := len(m.swap(nil, mood{})); got != len(tc.put)-tc.taken {
				t.Errorf("%d letters are taken after the flush, want %d", got, len(tc.put)-tc.taken)
			}
		})
	}
}

// What was put before the flush began is not held back by it.
func TestFlushHoldsNothingBackThatCameBefore(t *testing.T) {
	m := newMailbox()
	m.swap(nil, mood{})
	m.put(letter{wakes: gathered})
	if got := len(m.swap(nil, mood{gather: 9})); got != 1 {
		t.Errorf("%d letters are taken, want 1", got)
	}
}

// A report wakes the loop only if something depends on it; with the next letter
// that does it is taken along.
func TestReportsThatNothingDependsOn(t *testing.T) {
	for _, tc := range []struct {
		name  string
		mood  mood
		put   wakes
		wakes bool
	}{
		{"a flush that counts", mood{flush: true}, ifFlush, true},
		{"a flush of a follower", mood{votes: 6}, ifFlush, false},
		{"a vote that counts", mood{votes: 6}, ifVotes, true},
		{"a vote for what is chosen", mood{votes: 7}, ifVotes, false},
		{"a vote when all is chosen", mood{flush: true, votes: paxos.NoSlot}, ifVotes, false},
		{"anything else", mood{votes: paxos.NoSlot}, always, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMailbox()
			m.swap(nil, tc.mood)
			m.put(letter{wakes: tc.put, vote: 7})
			if got := len(m.wake) == 1; got != tc.wakes {
				t.Errorf("wakes the loop: %v, want %v", got, tc.wakes)
			}
			m.put(letter{})
			if len(m.wake) != 1 || len(m.swap(nil, tc.mood)) != 2 {
				t.Error("it is not taken along with the next letter")
			}
		})
	}
}

// A vote that came while nothing depended on it, but before the loop looked
// again, counts as soon as something does.
func TestVoteThatCameBeforeTheLoopLookedAgain(t *testing.T) {
	m := newMailbox()
	m.swap(nil, mood{votes: paxos.NoSlot})
	m.put(letter{wakes: ifVotes, vote: 7})
	m.put(letter{wakes: gathered})
	if n := len(m.swap(nil, mood{gather: 9, votes: 6})); n != 2 {
		t.Errorf("%d letters are taken, want 2", n)
	}
}

// Who puts a letter takes the loop's turn, unless somebody is at it; then that
// one looks again, and has run look, when he lets go.
func TestLetterPutAmidATurnWakesRun(t *testing.T) {
	l := newLoop()
	l.stopped = true // turns do nothing here
	l.box = newMailbox()
	l.box.kick = l.kick
	l.box.put(letter{})
	if n := len(l.box.wake); n != 1 {
		t.Fatalf("%d signals for a letter that the turn left, want 1", n)
	}
	<-l.box.wake
	l.box.swap(nil, mood{})
	l.mu.Lock()
	l.box.put(letter{})
	if n := len(l.box.wake); n != 0 {
		t.Errorf("%d signals while somebody is at it, want none", n)
	}
	l.release()
	if n := len(l.box.wake); n != 1 {
		t.Errorf("%d signals when he has let go, want 1", n)
	}
	<-l.box.wake
	l.box.swap(nil, mood{})
	l.mu.Lock()
	l.box.put(letter{wakes: ifVotes, vote: 1})
	l.box.swap(nil, mood{})
	l.release()
	if n := len(l.box.wake); n != 0 {
		t.Errorf("%d signals for a letter that was taken, want none", n)
	}
}
