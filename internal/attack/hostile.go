package main

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/seed70370324/lockd/internal/wire/pb"
	storepb "github.com/seed70370324/lockd/store/pb"
	"google.golang.org/protobuf/proto"
)

// conn is a client's connection that keeps to the framing and to nothing else.
type conn struct {
	net.Conn
	in *bufio.Reader
}

const dialTime = 5 * time.Second

// dial connects and says Hello.
func dial(address string) (*conn, error) {
	nc, err := net.DialTimeout("tcp", address, dialTime)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, in: bufio.NewReader(nc)}
	if err := c.hello(); err != nil {
		_ = nc.Close()
		return nil, err
	}
	return c, nil
}

func (c *conn) hello() error {
	b := append([]byte("LKD1"), frame(1, &pb.ClientMessage{Body: &pb.ClientMessage_Hello{
		Hello: &pb.Hello{VersionMin: 1, VersionMax: 99, Client: "attack"}}})...)
	if _, err := c.Write(b); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(dialTime)); err != nil {
		return err
	}
	var preface [4]byte
	if _, err := io.ReadFull(c.in, preface[:]); err != nil {
		return err
	}
	m, err := c.receive()
	if err != nil {
		return err
	}
	if m.GetHello() == nil {
		return fmt.Errorf("no hello: %v", m)
	}
	return c.SetReadDeadline(time.Time{})
}

// dialMaster finds the master among the replicas.
func dialMaster(targets []target) (*conn, error) {
	var errs []error
	for _, t := range targets {
		c, err := dial(t.client)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// A stale status tells the role.
		m, err := c.ask(&pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{
			Id: 1, Level: pb.ReadLevel_STALE, Op: &pb.Read_Status{Status: &pb.ReadStatus{}}}}})
		if err == nil && m.GetRead().GetStatus().GetRole() == "master" {
			return c, nil
		}
		_ = c.Close()
	}
	return nil, errors.Join(append(errs, errors.New("no replica is master"))...)
}

// frame encodes a message with its header.
func frame(kind byte, m proto.Message) []byte {
	payload, err := proto.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a message of our own cannot be encoded: %v", err))
	}
	return append(header(kind, len(payload)), payload...)
}

func header(kind byte, size int) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(size)), kind, 1, 0, 0)
}

func (c *conn) send(m *pb.ClientMessage) error {
	_, err := c.Write(frame(1, m))
	return err
}

func (c *conn) receive() (*pb.ServerMessage, error) {
	var h [8]byte
	if _, err := io.ReadFull(c.in, h[:]); err != nil {
		return nil, err
	}
	payload := make([]byte, binary.BigEndian.Uint32(h[:]))
	if _, err := io.ReadFull(c.in, payload); err != nil {
		return nil, err
	}
	m := new(pb.ServerMessage)
	return m, proto.Unmarshal(payload, m)
}

// ask sends a message and returns the next answer.
func (c *conn) ask(m *pb.ClientMessage) (*pb.ServerMessage, error) {
	if err := c.send(m); err != nil {
		return nil, err
	}
	if err := c.SetReadDeadline(time.Now().Add(dialTime)); err != nil {
		return nil, err
	}
	answer, err := c.receive()
	return answer, errors.Join(err, c.SetReadDeadline(time.Time{}))
}

// open opens a session and returns its number.
func (c *conn) open(lease time.Duration) (uint64, error) {
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return 0, err
	}
	m, err := c.ask(&pb.ClientMessage{Body: &pb.ClientMessage_Open{Open: &pb.OpenSession{
		Id: 1, Nonce: nonce, LeaseMs: uint64(lease / time.Millisecond)}}})
	if err != nil {
		return 0, err
	}
	if s := m.GetOpened().GetSession(); s != 0 {
		return s, nil
	}
	return 0, fmt.Errorf("no session: %v", m)
}

// request is a numbered request of a session.
func request(session, number uint64, c *storepb.Command) *pb.ClientMessage {
	c.Session, c.Number, c.LowestUnanswered = session, number, number
	return &pb.ClientMessage{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: c}}}
}

func put(path string, data []byte) *storepb.Command {
	return &storepb.Command{Op: &storepb.Command_Put{Put: &storepb.Put{Path: path, Data: data, Create: true, Parents: true}}}
}

// fill puts n nodes below dir, many at a time, and waits for the answers.
func (c *conn) fill(session uint64, dir string, n int, data []byte) error {
	const atOnce = 128
	answered := 0
	await := func(upTo int) error {
		for answered < upTo {
			if err := c.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				return err
			}
			m, err := c.receive()
			if err != nil {
				return err
			}
			if m.GetReply() != nil {
				answered++
			}
			if e := m.GetError(); e != nil {
				return fmt.Errorf("refused: %v %s", e.GetCode(), e.GetText())
			}
		}
		return nil
	}
	for i := range n {
		m := request(session, uint64(i+1), put(fmt.Sprintf("%s/%06d", dir, i), data))
		m.GetRequest().Command.LowestUnanswered = uint64(max(1, answered+1))
		if err := c.send(m); err != nil {
			return err
		}
		if err := await(i + 1 - atOnce); err != nil {
			return err
		}
	}
	return errors.Join(await(n), c.SetReadDeadline(time.Time{}))
}
