//go:build servers

package outbox

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/sqltest"
	"github.com/joblock/toolkit/joblock"
)

func TestAnOrderIsShippedAndACancelledOneRefunded(t *testing.T) {
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pool, err := pgxpool.New(ctx, sqltest.Postgres(t, "fsync=off"))
	must(err)
	defer pool.Close()
	_, err = pool.Exec(ctx, `CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL,
		item text NOT NULL, shipped boolean NOT NULL DEFAULT false, cancelled boolean NOT NULL DEFAULT false)`)
	must(err)
	p, err := toolkit.New(asynq.RedisClientOpt{Addr: redistest.Start(t).Addr()}, nil)
	must(err)
	shop, err := NewShop(ctx, p, pool)
	must(err)
	s, err := p.NewServer(asynq.Config{LogLevel: asynq.FatalLevel})
	must(err)
	shipped, refunded := make(chan int64, 1), make(chan string, 1)
	mux := asynq.NewServeMux()
	mux.HandleFunc("ship", func(ctx context.Context, task *asynq.Task) error {
		var ship Ship
		if err := json.Unmarshal(task.Payload(), &ship); err != nil {
			return err
		}
		_, err := pool.Exec(ctx, "UPDATE orders SET shipped = true WHERE id = $1", ship.Order)
		shipped <- ship.Order
		return err
	})
	mux.HandleFunc("refund", func(ctx context.Context, _ *asynq.Task) error {
		lock, _ := joblock.FromContext(ctx)
		refunded <- lock.Key()
		return nil
	})
	must(s.Start(mux))

	order, err := shop.Order(ctx, "7", "a chair")
	must(err)
	if got := <-shipped; got != order {
		t.Errorf("shipped %d, want %d", got, order)
	}
	lock, err := p.Locks.TryAcquire(ctx, joblock.Key("order", "1"))
	must(err)
	must(shop.Cancel(ctx, lock, order))
	if got := <-refunded; got != "order:1" {
		t.Errorf("refunded under %q", got)
	}
	must(p.Close(context.Background()))
}
