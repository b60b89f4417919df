package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/seed70370324/lockd/internal/clock"
	"github.com/seed70370324/lockd/internal/wire/pb"
	"github.com/seed70370324/lockd/lockd/replica"
)

// behindLimit is how many slots a replica may lag and still call itself caught
// up: under load there is always something on the way.
const behindLimit = 1000

// ready tells whether this replica can serve clients or send them to who can:
// it is master, or it knows the master and has applied what it knows chosen.
func (s *Server) ready(ctx context.Context) error {
	var status *pb.StatusResult
	var target uint64 // what it knows to be chosen anywhere, not only here
	err := s.ask(ctx, func(r *replica.Replica) { status, target = r.Status(clock.Now()), r.Metrics().Target })
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("the replica does not answer")
	case err != nil:
		return err
	case status.GetRole() == "master":
		return nil
	case status.GetRole() == "founding":
		return errors.New("the cell is not founded yet: every member of --initial-cluster must be running")
	case status.GetMasterName() == "":
		return errors.New("no master is known")
	case status.GetApplied()+behindLimit < target:
		return fmt.Errorf("catching up: applied slot %d of %d", status.GetApplied(), target)
	}
	return nil
}
