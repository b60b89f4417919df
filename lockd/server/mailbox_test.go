package server

import "testing"

// Requests that come while a flush is under way wait for its end, together;
// anything else takes them along at once.
func TestRequestsGatherDuringAFlush(t *testing.T) {
	request, other := letter{size: 1, patient: true}, letter{size: 2}
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
			m.swap(nil, tc.gather)
			for _, l := range tc.put {
				if !m.put(l) {
					t.Fatal("the mailbox is closed")
				}
			}
			if got := woken(m); got != tc.wakes {
				t.Errorf("wakes the loop: %v, want %v", got, tc.wakes)
			}
			if got := len(m.swap(nil, tc.gather)); got != tc.taken {
				t.Errorf("%d letters are taken, want %d", got, tc.taken)
			}
			if got := len(m.swap(nil, 0)); got != len(tc.put)-tc.taken {
				t.Errorf("%d letters are taken after the flush, want %d", got, len(tc.put)-tc.taken)
			}
		})
	}
}

// What was put before the flush began is not held back by it.
func TestFlushHoldsNothingBackThatCameBefore(t *testing.T) {
	m := newMailbox()
	m.swap(nil, 0)
	m.put(letter{patient: true})
	if got := len(m.swap(nil, 9)); got != 1 {
		t.Errorf("%d letters are taken, want 1", got)
	}
}
