package server

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// listeners are the three sockets a replica is reached by; http may be nil.
type listeners struct {
	client, peer, http net.Listener
}

// bind takes every port before anything else is touched, so that a replica
// that cannot be reached does not begin to work.
func bind(c *Config) (*listeners, error) {
	l := &listeners{client: c.ClientListener, peer: c.PeerListener, http: c.HTTPListener}
	for _, b := range []struct {
		to            *net.Listener
		address, flag string
	}{
		{&l.client, c.ListenClient, "--listen-client"},
		{&l.peer, c.ListenPeer, "--listen-peer"},
		{&l.http, c.ListenHTTP, "--listen-http"},
	} {
		if *b.to != nil || b.address == "" {
			continue
		}
		ln, err := net.Listen("tcp", b.address)
		if err != nil {
			l.close()
			return nil, bindError(b.flag, b.address, err)
		}
		*b.to = ln
	}
	return l, nil
}

// bindError says which flag to change.
func bindError(flag, address string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%s %s: the port is taken by another process: stop it, or choose another port (%w)", flag, address, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%s %s: this machine has no such address (%w)", flag, address, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%s %s: not permitted: ports below 1024 need privileges, choose another (%w)", flag, address, err)
	}
	return fmt.Errorf("%s %s: %w", flag, address, err)
}

// close ends all of them; closing one twice does no harm.
func (l *listeners) close() {
	for _, ln := range []net.Listener{l.client, l.peer, l.http} {
		if ln != nil {
			// Nothing can be done about a listener that does not close.
			_ = ln.Close()
		}
	}
}
