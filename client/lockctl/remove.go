package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/seed70370324/lockd/client"
)

const (
	// removeBatch is how many nodes, with what is below them, are deleted at once.
	removeBatch = 500
	// removeList is how many children are listed before they are deleted.
	removeList = 10 * removeBatch
)

// remover deletes a tree that is too large for one command, in parts, from the
// leaves up.
type remover struct {
	s       *client.Session
	timeout time.Duration         // of each part
	options []client.DeleteOption // for what is below the path given
	path    string                // the path given
	checks  []client.CheckOption  // of path, in each part
	deleted int                   // nodes named in a Delete that was done
}

// removeTree deletes path and all below it: all or nothing if it is little
// enough for one command, else in parts, each within the timeout. last are the
// options for path itself, checks its conditions, which each part demands too.
func (a *app) removeTree(ctx context.Context, s *client.Session, path string, below, last []client.DeleteOption, checks []client.CheckOption) error {
	r := remover{s: s, timeout: a.timeout, options: append([]client.DeleteOption{client.Recursive()}, below...), path: path, checks: checks}
	whole := func() error {
		ctx, cancel := context.WithTimeout(ctx, r.timeout)
		defer cancel()
		return s.Delete(ctx, path, last...)
	}
	err := whole()
	if !errors.Is(err, client.ErrLimit) {
		return err
	}
	if err = r.clear(ctx, path); err == nil {
		err = whole()
	}
	if errors.Is(err, client.ErrNotFound) {
		return nil // a container goes with the last node below it
	}
	return partly(err, r.deleted)
}

// partlyError is the error of a command that has done a part of its work.
type partlyError struct{ err error }

// Error is error's.
func (e *partlyError) Error() string {
	return e.err.Error() + "; it was too large to be deleted all or nothing: a part of it is gone already, rm -r again deletes the rest"
}

// Unwrap returns the error that stopped it.
func (e *partlyError) Unwrap() error { return e.err }

// partly returns the error of a deletion in parts of which so many are done.
func partly(err error, deleted int) error {
	if err == nil || deleted == 0 {
		return err
	}
	return &partlyError{err}
}

// clear deletes all below path.
func (r *remover) clear(ctx context.Context, path string) error {
	for {
		children, err := r.list(ctx, path)
		if errors.Is(err, client.ErrNotFound) {
			return nil // somebody else was faster
		}
		if err != nil || len(children) == 0 {
			return err
		}
		for batch := range slices.Chunk(children, removeBatch) {
			if err := r.remove(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// list returns the paths of the first children of path.
func (r *remover) list(ctx context.Context, path string) (children []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	for c, err := range r.s.List(ctx, path) {
		if err != nil {
			return nil, err
		}
		children = append(children, strings.TrimSuffix(path, "/")+"/"+c.Name)
		if len(children) == removeList {
			break
		}
	}
	return children, nil
}

// remove deletes nodes with all below them. If they are too many together, each
// half is tried; a single one is cleared first.
func (r *remover) remove(ctx context.Context, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	txn := r.s.Txn()
	if len(r.checks) > 0 {
		txn.Check(r.path, r.checks...)
	}
	for _, p := range paths {
		txn.Delete(p, r.options...)
	}
	err := r.commit(ctx, txn)
	switch {
	case err == nil:
		r.deleted += len(paths)
		return nil
	case errors.Is(err, client.ErrNotFound) && len(paths) == 1:
		return nil // somebody else was faster
	case errors.Is(err, client.ErrLimit) && len(paths) == 1:
		if err := r.clear(ctx, paths[0]); err != nil {
			return err
		}
		return r.remove(ctx, paths)
	case errors.Is(err, client.ErrLimit), errors.Is(err, client.ErrNotFound):
		half := len(paths) / 2
		if err := r.remove(ctx, paths[:half]); err != nil {
			return err
		}
		return r.remove(ctx, paths[half:])
	}
	return err
}

func (r *remover) commit(ctx context.Context, txn *client.Txn) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	_, err := txn.Commit(ctx)
	return err
}
