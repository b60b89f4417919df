package main

import (
	"context"
	"net"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/version"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
)

// probeTime bounds the question to one replica.
const probeTime = 500 * time.Millisecond

// master asks the running replicas which of them serves as master; "" if none
// says that it does.
func (c *cell) master(ctx context.Context) string {
	for _, m := range c.members {
		if c.children[m.name] != nil && servesAsMaster(ctx, m.client) {
			return m.name
		}
	}
	return ""
}

// servesAsMaster says hello to a replica. Whatever goes wrong means no.
func servesAsMaster(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	w := wire.NewConn(nc, wire.Options{ReadTimeout: probeTime, PrefaceTimeout: probeTime})
	defer func() { _ = w.Close() }() // it returns nothing else
	if w.Handshake(ctx) != nil {
		return false
	}
	hello := &pb.Hello{VersionMin: 2, VersionMax: 2, Client: "lockd local " + version.Version}
	if w.Queue(wire.KindClient, &pb.ClientMessage{Body: &pb.ClientMessage_Hello{Hello: hello}}) != nil {
		return false
	}
	for {
		kind, payload, err := w.Read()
		if err != nil {
			return false
		}
		var m pb.ServerMessage
		if kind != wire.KindServer {
			continue
		}
		if proto.Unmarshal(payload, &m) != nil {
			return false
		}
		if r := m.GetHello(); r != nil {
			return r.GetMaster()
		}
		if m.GetError().GetFatal() {
			return false
		}
	}
}
