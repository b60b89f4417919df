package store

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/seed70370324/lockd/store/pb"
)

// FuzzDecodeLikeProto compares the fast codec with the one that defines the
// format: both take the same bytes, for the same message.
func FuzzDecodeLikeProto(f *testing.F) {
	for _, c := range []*pb.Command{
		{Session: 7, Number: 1, Op: &pb.Command_Put{Put: &pb.Put{Path: "/a", Data: []byte("x"), HasData: true}}},
		{Session: 7, Number: 2, Op: &pb.Command_Acquire{Acquire: &pb.Acquire{Path: "/a", WaitMs: 3}}},
		{Op: &pb.Command_OpenSession{OpenSession: &pb.OpenSession{Nonce: []byte("0123456789abcdef"), Client: &pb.ClientInfo{Name: "n"}}}},
	} {
		b, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	bad, err := (&pb.Command{Session: 7, Op: &pb.Command_Put{Put: &pb.Put{Path: "/\xff"}}}).MarshalVT()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bad) // a path that is not UTF-8
	f.Fuzz(func(t *testing.T, b []byte) {
		slow, fast := new(pb.Command), new(pb.Command)
		errSlow, errFast := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, slow), fast.Decode(b)
		if errFast != nil && strings.Contains(errFast.Error(), "wrong wireType") {
			// A known field of another type: proto.Unmarshal keeps it as unknown.
			// No version of lockd writes one.
			return
		}
		if errSlow == nil && errFast != nil {
			t.Fatalf("%x: Decode says %v", b, errFast)
		}
		if errSlow != nil {
			// Decode is free to skip malformed groups of unknown fields, but strings
			// have to be what they are.
			if errFast == nil && strings.Contains(errSlow.Error(), "UTF-8") {
				t.Fatalf("%x: Decode does not see that %v", b, errSlow)
			}
			return
		}
		if !proto.Equal(slow, fast) {
			t.Fatalf("%x: proto.Unmarshal gives %v, Decode %v", b, slow, fast)
		}
		again, err := fast.MarshalVT()
		if err != nil {
			t.Fatal(err)
		}
		back := new(pb.Command)
		if err := proto.Unmarshal(again, back); err != nil || !proto.Equal(back, slow) {
			t.Fatalf("%x: encoded again it is %v, %v", b, back, err)
		}
		if n := fast.SizeVT(); n != len(again) {
			t.Fatalf("%x: size %d, %d bytes", b, n, len(again))
		}
	})
}
