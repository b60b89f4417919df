package relay

import (
	"bytes"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// echo answers each connection with what it gets.
func echo(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c) // until the test ends it
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l
}

func dial(t *testing.T, r *Relay) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", r.Address())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What goes through arrives unchanged, no earlier than rate and delay allow.
func TestRateAndDelay(t *testing.T) {
	defer goleak.VerifyNone(t)
	l := echo(t)
	defer l.Close()
	const rate, delay, size = 1e6, 20 * time.Millisecond, 200_000
	r, err := Listen(l.Addr().String(), Options{Rate: rate, Delay: delay, Queue: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := dial(t, r)
	defer c.Close()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i * 31)
	}
	began := time.Now()
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(sent); err != nil {
			t.Error(err)
		}
	})
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	took := time.Since(began)
	if !bytes.Equal(got, sent) {
		t.Fatal("the bytes are not those that were sent")
	}
	least := 2*delay + time.Duration(float64(size)/rate*float64(time.Second))
	if took < least {
		t.Errorf("there and back took %v, less than %v", took, least)
	}
	if there, back := r.Carried(); there != size || back != size {
		t.Errorf("%d bytes went there and %d back", there, back)
	}
}

// Two connections share the wire.
func TestConnectionsShareTheWire(t *testing.T) {
	var o Options
	o.Rate, o.Delay, o.Queue = 1000, time.Second, 500
	var w wire
	began := time.Now()
	first, _ := w.take(&o, 400)
	second, wait := w.take(&o, 400)
	if d := second.Sub(first); d != 400*time.Millisecond {
		t.Errorf("the second piece arrives %v behind the first", d)
	}
	if d := first.Sub(began); d < 1400*time.Millisecond {
		t.Errorf("the first piece arrives after %v", d)
	}
	if wait <= 0 || wait > 300*time.Millisecond {
		t.Errorf("with 800 bytes in a queue of 500 it waits for %v", wait)
	}
}

// A connection that ends on one side ends on the other.
func TestEndIsPassedOn(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r, err := Listen(l.Addr().String(), Options{Delay: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for _, nearEnds := range []bool{true, false} {
		near := dial(t, r)
		far, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		ends, sees := near, far
		if !nearEnds {
			ends, sees = far, near
		}
		ends.Close()
		if n, err := sees.Read(make([]byte, 1)); err == nil {
			t.Errorf("instead of the end %d bytes came", n)
		}
		sees.Close()
	}
}
