package enqueue

import (
	"context"
	"fmt"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
)

// permit is the kind of a Unique with a Limit: the enqueue takes a permit, and hands it over as a request would.
type permit struct {
	parking
	of Unique
}

func (p *permit) keys() (named, alone []string) { return []string{p.of.Key}, []string{p.of.Key} }

// enter takes the permit.
func (p *permit) enter(ctx context.Context) (leave func(error) error, err error) {
	lock, err := limit.New(p.c.locks, p.of.Limit).TryAcquire(ctx, p.of.Key)
	if err != nil {
		return nil, p.wrap(err)
	}
	p.locks = joblock.Locks{lock}
	return func(err error) error {
		if err == nil || lock.Err() != nil { // the job has the permit, or may have it
			return err
		}
		(*core.Lock)(lock).StopRenewing()
		dctx, cancel := settling(ctx)
		defer cancel()
		if failed := lock.Release(dctx); failed != nil {
			err = fmt.Errorf("%w; could not release the permit, which is freed when its lease ends: %w", err, failed)
		}
		return err
	}, nil
}

func (p *permit) ask(b *batch) {
	if p.locks == nil { // EnqueueMany calls no enter
		p.askErr = Invalid(opEnqueue, p.of.Key, "Unique.Limit is %d, must be 0 with EnqueueMany: use Enqueue", p.of.Limit)
	}
	p.parking.ask(b)
}
