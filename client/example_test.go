package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/seed70370324/lockd/client"
)

// Store is something outside of lockd that several writers share. It refuses a
// write whose fence is smaller than the largest it has seen: that is what makes
// the lock safe even if a holder is frozen and goes on later.
type Store interface {
	Write(ctx context.Context, fence uint64, data []byte) error
}

var store Store

func ExampleSession_Do() {
	ctx := context.Background()
	s, err := client.Dial(ctx, []string{"127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103"}, client.WithName("nightly"))
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	err = s.Do(ctx, "/jobs/nightly", func(ctx context.Context, l *client.Lock) error {
		return store.Write(ctx, l.Fence(), []byte("report"))
	}, client.Wait(10*time.Second))

	var held *client.HeldError
	switch {
	case errors.As(err, &held):
		fmt.Println("somebody else is at it:", held.Holders)
	case errors.Is(err, client.ErrLost):
		fmt.Println("the lock was lost before the work was done")
	case err != nil:
		fmt.Println(err)
	}
}

// What a lock guards in the same cell is written with its Txn: it is done only
// while the lock is held. The last write gives the lock up with it.
func ExampleLock_Txn() {
	ctx := context.Background()
	s, err := client.Dial(ctx, []string{"127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103"})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	err = s.Do(ctx, "/jobs/import", func(ctx context.Context, l *client.Lock) error {
		at, err := s.Get(ctx, "/jobs/import/offset")
		if err != nil {
			return err
		}
		next := append(at.Data, '1')
		// IfUnchanged: nothing but this call has written it since it was read.
		_, err = l.Txn().Put(at.Path, next, client.IfUnchanged(at.Stat)).Release().Commit(ctx)
		return err
	})
	if errors.Is(err, client.ErrConflict) {
		fmt.Println("somebody else has written the offset, or the lock was lost")
	}
}

func ExampleReader_Watch() {
	ctx := context.Background()
	r, err := client.Connect(ctx, []string{"127.0.0.1:7101"})
	if err != nil {
		log.Fatal(err)
	}
	defer r.Close()
	config := make(map[string][]byte)
	for e, err := range r.Watch(ctx, "/config", client.Subtree()) {
		if err != nil {
			log.Fatal(err)
		}
		switch e.Kind {
		case client.EventPresent, client.EventChanged:
			config[e.Path] = e.Data
		case client.EventDeleted:
			delete(config, e.Path)
		case client.EventReady:
			fmt.Println("complete as of revision", e.Revision)
		}
	}
}
