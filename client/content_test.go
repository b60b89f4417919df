package client_test

import (
	"context"
	"testing"

	"github.com/seed70370324/lockd/client"
)

// The first Put to the node of a lock makes it permanent: what was acknowledged
// is there after the release.
func TestContentOfLocksNode(t *testing.T) {
	c := newCell(t)
	s := c.dial()
	ctx := within(t)
	err := s.Do(ctx, "/checkpoint", func(ctx context.Context, l *client.Lock) error {
		_, err := l.Txn().Put("/checkpoint", []byte("offset 12")).Commit(ctx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := must(s.Get(ctx, "/checkpoint"))(t); string(n.Data) != "offset 12" || n.Stat.Kind != client.KindPermanent {
		t.Fatalf("%q, %+v", n.Data, n.Stat)
	}
	// One that is empty too.
	l := must(s.Lock(ctx, "/empty"))(t)
	must(s.Put(ctx, "/empty", nil))(t)
	if err := l.Release(ctx); err != nil {
		t.Fatal(err)
	}
	must(s.Get(ctx, "/empty"))(t)
}
