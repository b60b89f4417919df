package client

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/seed70370324/lockd/internal/version"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// statusTimeout bounds Status if its context does not.
const statusTimeout = 5 * time.Second

// Status asks one replica, master or not, how it sees itself and its cell. It
// takes five seconds at most.
func Status(ctx context.Context, address string) (ReplicaStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	s, err := askStatus(ctx, address)
	if err != nil {
		return ReplicaStatus{}, &Error{Op: "status", Path: address, Err: fmt.Errorf("%w: %w", ErrUnavailable, err)}
	}
	return replicaStatus(s), nil
}

func askStatus(ctx context.Context, address string) (*pb.StatusResult, error) {
	var nd net.Dialer
	nc, err := nd.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	conn := wire.NewConn(nc, wire.Options{MaxFrame: linkMaxFrame})
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = nc.Close() }) // ends the reading below
	defer stop()
	if err := conn.Handshake(ctx); err != nil {
		return nil, err
	}
	for _, msg := range []*pb.ClientMessage{
		{Body: &pb.ClientMessage_Hello{Hello: &pb.Hello{
			VersionMin: 2, VersionMax: 2, MaxFrame: linkMaxFrame, Client: "lockd-go/" + version.Version}}},
		{Body: &pb.ClientMessage_Read{Read: &pb.Read{
			Id: 1, Level: pb.ReadLevel_STALE, Op: &pb.Read_Status{Status: &pb.ReadStatus{}}}}},
	} {
		if err := conn.Queue(wire.KindClient, msg); err != nil {
			return nil, err
		}
	}
	for {
		msg, err := readMessage(conn)
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, err
		}
		if e := msg.GetError(); e != nil {
			return nil, fmt.Errorf("the replica says: %s (%s)", e.GetText(), e.GetCode())
		}
		if r := msg.GetRead(); r != nil {
			if r.GetCode() != storepb.Code_OK || r.GetStatus() == nil {
				return nil, fmt.Errorf("the replica gave no status: %s", r.GetDetail())
			}
			return r.GetStatus(), nil
		}
	}
}
