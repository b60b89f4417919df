package admin

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
)

// goodbyeTime is how long the answer to a client at the wrong port may take.
const goodbyeTime = time.Second

// hintListener tells clients of lockd that come to the HTTP port where to go: an
// HTTP server would wait for the rest of what is no request, and they for it.
type hintListener struct {
	net.Listener
	text string
}

// Accept waits for a connection.
func (l hintListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &hintConn{Conn: c, text: l.text}, nil
}

// hintConn looks at what arrives first.
type hintConn struct {
	net.Conn
	text  string
	first sync.Once
}

// Read gives what arrives, or the end after a client was told where to go.
func (c *hintConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	wrong := false
	c.first.Do(func() { wrong = strings.HasPrefix(string(p[:n]), wire.Preface) })
	if !wrong {
		return n, err
	}
	w := wire.NewConn(&readAgain{Conn: c.Conn, rest: string(p[:n])}, wire.Options{Accepted: true, PrefaceTimeout: goodbyeTime, WriteTimeout: goodbyeTime})
	if w.Handshake(context.Background()) == nil {
		// A client that does not take it has gone.
		_ = w.Queue(wire.KindServer, &pb.ServerMessage{Body: &pb.ServerMessage_Error{Error: &pb.Error{
			Code: pb.ErrorCode_BAD_MESSAGE, Text: c.text, Fatal: true}}})
		_ = w.CloseAfterFlush(goodbyeTime)
	}
	_ = w.Close()
	return 0, io.EOF
}

// readAgain gives again what has been read.
type readAgain struct {
	net.Conn
	rest string
}

func (c *readAgain) Read(p []byte) (int, error) {
	if c.rest == "" {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
