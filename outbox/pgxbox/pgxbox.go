// Package pgxbox adapts package outbox to the transactions and notifications of pgx.
package pgxbox

import (
	"context"
	"database/sql"
	"database/sql/driver"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Transaction adapts a transaction of pgx to outbox.Tx.
type Transaction struct {
	exec func(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Tx returns tx for Outbox.Enqueue. tx is a pgx.Tx, or another type with its method Exec. For outbox.New,
// stdlib.OpenDBFromPool of pgx makes a *sql.DB of a pgxpool.Pool.
func Tx(tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}) Transaction {
	return Transaction{tx.Exec}
}

// ExecContext calls Exec of the transaction.
func (a Transaction) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	tag, err := a.exec(ctx, query, args...)
	return driver.RowsAffected(tag.RowsAffected()), err
}

// Listen returns the function for outbox.Config.Listen. It opens a connection with the settings of conn, such as a
// connection string, and keeps it for as long as the relay works. The connection must reach PostgreSQL directly, or
// through a pooler in session mode: in transaction mode notifications are lost, and the relay finds rows when it polls.
func Listen(conn string) func(ctx context.Context, channel string, wake func()) error {
	return func(ctx context.Context, channel string, wake func()) error {
		c, err := pgx.Connect(ctx, conn)
		if err != nil {
			return err
		}
		defer c.Close(context.WithoutCancel(ctx))
		if _, err := c.Exec(ctx, "LISTEN "+pgx.Identifier{channel}.Sanitize()); err != nil {
			return err
		}
		for wake(); ; wake() { // rows may have come before LISTEN
			if _, err := c.WaitForNotification(ctx); err != nil {
				return err
			}
		}
	}
}
