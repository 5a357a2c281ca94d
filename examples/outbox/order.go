package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/outbox"
	"github.com/joblock/toolkit/outbox/pgxbox"
)

// Shop takes orders.
type Shop struct {
	Pool *pgxpool.Pool
	Box  *outbox.Outbox
}

// NewShop sets the outbox up, and runs its relay in p.
func NewShop(ctx context.Context, p *toolkit.Process, pool *pgxpool.Pool) (*Shop, error) {
	db := stdlib.OpenDBFromPool(pool)
	if err := outbox.Migrate(ctx, db, outbox.Postgres); err != nil {
		return nil, err
	}
	box, err := outbox.New(p.Jobs, db, outbox.Postgres, &outbox.Config{Listen: pgxbox.Listen(pool.Config().ConnString())})
	if err != nil {
		return nil, err
	}
	p.Go(box.Run) // in every process: one works, the others stand by
	return &Shop{pool, box}, nil
}

// Ship is what the job of an order is about.
type Ship struct{ Order int64 }

// Order writes an order and its job in one transaction. The jobs of a customer run one after the other.
func (s *Shop) Order(ctx context.Context, customer, item string) (id int64, err error) {
	tx, err := s.Pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(ctx) // does nothing after Commit
	if err := tx.QueryRow(ctx, "INSERT INTO orders (customer, item) VALUES ($1, $2) RETURNING id", customer, item).Scan(&id); err != nil {
		return 0, err
	}
	payload, err := json.Marshal(Ship{id})
	if err != nil {
		return 0, err
	}
	line := handoff.Sequence{Key: joblock.Key("customer", customer)}
	task := asynq.NewTask("ship", payload, asynq.MaxRetry(5)) // asynq's default of 25 retries could stop the line for up to 20 days
	if _, err := s.Box.Enqueue(ctx, pgxbox.Tx(tx), line, task); err != nil {
		return 0, err
	}
	return id, tx.Commit(ctx)
}

// Cancel cancels an order under a lock that the caller has, so that a second click is refused even before the first
// one's commit. The lock is the job's when the transaction is committed, and the caller's again if it is rolled back.
func (s *Shop) Cancel(ctx context.Context, lock *joblock.Lock, order int64) error {
	tx, err := s.Pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, "UPDATE orders SET cancelled = true WHERE id = $1 AND NOT shipped", order); err != nil {
		return err
	}
	job, err := s.Box.Enqueue(ctx, pgxbox.Tx(tx), handoff.Carry(lock), asynq.NewTask("refund", fmt.Append(nil, order), asynq.MaxRetry(5)))
	if err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return errors.Join(err, s.Box.Reclaim(ctx, job))
	}
	return nil
}
