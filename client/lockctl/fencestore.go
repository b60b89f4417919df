package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
)

// fenceStore is the smallest store that is safe to guard by a lock: it
// remembers the largest fence it has seen and refuses writes with a smaller
// one. One line a request, "FENCE TEXT"; one line an answer, "ok" or
// "refused LARGEST".
type fenceStore struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu      sync.Mutex
	largest uint64
	last    string
	conns   map[net.Conn]bool
}

func newFenceStore() (*fenceStore, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the store: %w", err)
	}
	s := &fenceStore{listener: l, conns: map[net.Conn]bool{}}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *fenceStore) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			return // closed
		}
		s.mu.Lock()
		s.conns[c] = true
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(c) })
	}
}

func (s *fenceStore) serve(c net.Conn) {
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		_ = c.Close() // nothing is left to write
	}()
	in := bufio.NewScanner(c)
	for in.Scan() {
		if _, err := fmt.Fprintln(c, s.write(in.Text())); err != nil {
			return
		}
	}
}

// write is the whole rule: never below the largest fence.
func (s *fenceStore) write(line string) string {
	number, text, _ := strings.Cut(line, " ")
	fence, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return "error: no fence"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fence < s.largest {
		return fmt.Sprintf("refused %d", s.largest)
	}
	s.largest, s.last = fence, text
	return "ok"
}

func (s *fenceStore) close() {
	_ = s.listener.Close()
	s.mu.Lock()
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// errRefused says that the store has seen a larger fence.
var errRefused = errors.New("refused")

// storeClient writes to a fenceStore.
type storeClient struct {
	conn net.Conn
	in   *bufio.Scanner
}

func dialStore(address string) (*storeClient, error) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("reach the store: %w", err)
	}
	return &storeClient{c, bufio.NewScanner(c)}, nil
}

func (c *storeClient) write(fence uint64, text string) error {
	if _, err := fmt.Fprintf(c.conn, "%d %s\n", fence, text); err != nil {
		return fmt.Errorf("write to the store: %w", err)
	}
	if !c.in.Scan() {
		return fmt.Errorf("write to the store: no answer: %w", c.in.Err())
	}
	switch answer := c.in.Text(); {
	case answer == "ok":
		return nil
	case strings.HasPrefix(answer, "refused "):
		return fmt.Errorf("%w: the store has seen fence %s", errRefused, strings.TrimPrefix(answer, "refused "))
	default:
		return fmt.Errorf("write to the store: %s", answer)
	}
}
