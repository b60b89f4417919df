package server

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/internal/fuzzing"
	"github.com/seed70370324/lockd/internal/wire"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
	storepb "github.com/seed70370324/lockd/store/pb"
)

// FuzzDoor: bytes at the client port. The replica is told of the connection, of
// each message that stands in the stream, in order, and of the end; memory is
// bounded by what has arrived.
func FuzzDoor(f *testing.F) {
	stream := func(ms ...proto.Message) []byte {
		b := []byte(wire.Preface)
		for _, m := range ms {
			payload, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			b = binary.BigEndian.AppendUint32(b, uint32(len(payload)))
			b = append(append(b, wire.KindClient, 1, 0, 0), payload...)
		}
		return b
	}
	request := &pb.ClientMessage{Body: &pb.ClientMessage_Request{Request: &pb.Request{Command: &storepb.Command{Session: 1, Number: 1,
		Op: &storepb.Command_Acquire{Acquire: &storepb.Acquire{Path: "/a"}}}}}}
	read := &pb.ClientMessage{Body: &pb.ClientMessage_Read{Read: &pb.Read{Id: 1, Op: &pb.Read_Node{Node: &pb.ReadNode{Path: "/a"}}}}}
	fuzzing.Seed(f, "work", stream(hello("fuzz"), request, read), uint8(0))
	fuzzing.Seed(f, "pieces", stream(hello("fuzz"), request, read), uint8(1))
	fuzzing.Seed(f, "empty-messages", stream(&pb.ClientMessage{}, &pb.ClientMessage{}), uint8(0))
	fuzzing.Seed(f, "too-large", append(stream(), 0x7f, 0xff, 0xff, 0xff, wire.KindClient, 1, 0, 0), uint8(0))
	fuzzing.Seed(f, "other-kind", append(stream(), 0, 0, 0, 1, wire.KindPeer, 1, 0, 0, 'x'), uint8(0))
	fuzzing.Seed(f, "http", []byte("GET /metrics HTTP/1.1\r\n\r\n"), uint8(0))
	metrics := newShellMetrics()
	f.Fuzz(func(t *testing.T, in []byte, piece uint8) {
		c := Config{Limits: Limits{MaxPending: 1 << 40}}.withDefaults()
		d := newDoor(nil, c.Limits, newMailbox(), metrics, slog.New(slog.DiscardHandler))
		fuzzing.Bounded(t, 512*uint64(len(in))+2<<20, func() {
			d.open.Add(1)
			d.serve(&fuzzing.Conn{In: in, Piece: int(piece)})
		})
		if d.open.Load() != 0 {
			t.Fatal("the connection has ended, and counts as open")
		}
		letters := d.box.close()
		want, shaken := messagesIn(in, c.Limits.MaxFrame)
		if !shaken {
			if len(letters) > 0 {
				t.Fatalf("without a handshake the replica was told %+v", letters[0].event)
			}
			return
		}
		if n := len(letters); n != len(want)+2 {
			t.Fatalf("%d messages stand in the stream, the replica was told %d", len(want), n-2)
		}
		pending := 0
		for i, l := range letters {
			switch ev := l.event.(type) {
			case replica.ConnOpened:
				if i != 0 {
					t.Fatal("it opens twice")
				}
			case replica.ConnReceived:
				if i == 0 || i > len(want) || !proto.Equal(ev.Message, want[i-1]) {
					t.Fatalf("message %d is %v", i, ev.Message)
				}
				pending += l.size
			case replica.ConnClosed:
				if i != len(letters)-1 {
					t.Fatal("it ends before its end")
				}
			}
		}
		if got := letters[0].conn.pending.Load(); got != int64(pending) {
			t.Fatalf("%d bytes are said to wait, the messages weigh %d", got, pending)
		}
	})
}

// messagesIn reads a stream of its own.
func messagesIn(in []byte, limit int) (out []*pb.ClientMessage, shaken bool) {
	rest, ok := strings.CutPrefix(string(in), wire.Preface)
	if !ok {
		return nil, false
	}
	for len(rest) >= 8 {
		n := int(binary.BigEndian.Uint32([]byte(rest)))
		if rest[5] != 1 || rest[6] != 0 || rest[7] != 0 || n > limit || len(rest) < 8+n {
			break
		}
		if rest[4] == wire.KindPeer && len(out) == 0 {
			break // a replica, which is told that this is the wrong port
		}
		m := new(pb.ClientMessage)
		if rest[4] == wire.KindClient {
			if tooManyParts([]byte(rest[8:8+n])) != nil || proto.Unmarshal([]byte(rest[8:8+n]), m) != nil {
				break
			}
			if m.Body != nil {
				out = append(out, m)
			}
		}
		rest = rest[8+n:]
	}
	return out, true
}

// FuzzParseCluster: a list of members that is taken is sorted, names and
// addresses are there once, and it is the same when it is written out again.
func FuzzParseCluster(f *testing.F) {
	for name, text := range map[string]string{"three": "n1=127.0.0.1:7201,n2=127.0.0.1:7202,n3=127.0.0.1:7203", "blanks": " n2=b:2, n1=a:1",
		"twice": "a=h:1,a=h:2", "same-address": "a=h:1,b=h:1", "ipv6": "a=[::1]:7201", "no-port": "a=h", "port-0": "a=h:0", "comma": "a=h:1,", "padded": "a=h:01,b=h:1"} {
		fuzzing.Seed(f, name, text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ms, err := ParseCluster(text)
		if err != nil {
			var config *ConfigError
			if !errors.As(err, &config) || ms != nil {
				t.Fatalf("%q: %v, %v", text, ms, err)
			}
			return
		}
		var parts []string
		addresses := map[string]bool{}
		for i, m := range ms {
			if i > 0 && ms[i-1].Name >= m.Name {
				t.Fatalf("%q: %s stands behind %s", text, m.Name, ms[i-1].Name)
			}
			host, port, err := net.SplitHostPort(m.PeerAddress)
			n, nerr := strconv.Atoi(port)
			if at := fmt.Sprintf("%s %d", host, n); err != nil || nerr != nil || n < 1 || n > 65535 || addresses[at] {
				t.Fatalf("%q: %s has the address %q", text, m.Name, m.PeerAddress)
			} else {
				addresses[at] = true
			}
			parts = append(parts, m.Name+"="+m.PeerAddress)
		}
		if again, err := ParseCluster(strings.Join(parts, ",")); err != nil || !reflect.DeepEqual(ms, again) {
			t.Fatalf("%q gives %v, which gives %v, %v", text, ms, again, err)
		}
	})
}

// FuzzAddresses: a configuration that is taken can be listened on and, where
// others are told of it, connected to.
func FuzzAddresses(f *testing.F) {
	fuzzing.Seed(f, "default", "127.0.0.1:7101", "", false)
	fuzzing.Seed(f, "everywhere", "0.0.0.0:7101", "host:7101", true)
	fuzzing.Seed(f, "everywhere-untold", ":7101", "", true)
	fuzzing.Seed(f, "not-loopback", "10.0.0.1:7101", "", false)
	fuzzing.Seed(f, "ipv6", "[::1]:0", "[::]:9", false)
	fuzzing.Seed(f, "zone", "[::1%lo]:7101", "", false)
	fuzzing.Seed(f, "bad-port", "127.0.0.1:x", "", false)
	f.Fuzz(func(t *testing.T, listen, advertise string, insecure bool) {
		c := Config{Name: "n1", Cell: "c", DataDir: "d", ListenClient: listen, ListenPeer: "127.0.0.1:0", AdvertiseClient: advertise, Insecure: insecure}
		if err := c.check(); err != nil {
			var config *ConfigError
			if !errors.As(err, &config) {
				t.Fatal(err)
			}
			return
		}
		host, port, err := net.SplitHostPort(listen)
		if n, nerr := strconv.Atoi(port); err != nil || nerr != nil || n < 0 || n > 65535 {
			t.Fatalf("%q is taken", listen)
		}
		if ip := net.ParseIP(host); !insecure && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			t.Fatalf("%q is taken without --insecure", listen)
		}
		told := advertised(advertise, listen, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7})
		if err := checkAdvertised(told); err != nil {
			t.Fatalf("with %q and %q others are told %q: %v", listen, advertise, told, err)
		}
	})
}
