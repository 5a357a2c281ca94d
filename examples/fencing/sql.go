package fencing

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// ErrFenced says that a holder with a larger fence has written already.
var ErrFenced = errors.New("a later holder of the lock has written already")

// Schema makes the tables. SQLite and PostgreSQL take the same text.
const Schema = `
CREATE TABLE IF NOT EXISTS balances (
	account TEXT   PRIMARY KEY,
	amount  BIGINT NOT NULL,
	fence   BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS fences (
	resource TEXT   PRIMARY KEY,
	fence    BIGINT NOT NULL
)`

// SetBalance writes one row, unless a later holder has written the row.
func SetBalance(ctx context.Context, db *sql.DB, account string, amount, fence int64) error {
	res, err := db.ExecContext(ctx, `
		INSERT INTO balances (account, amount, fence) VALUES ($1, $2, $3)
		ON CONFLICT (account) DO UPDATE SET amount = excluded.amount, fence = excluded.fence
		WHERE balances.fence <= excluded.fence`, account, amount, fence)
	return written(res, err)
}

// Fenced runs fn in a transaction that only the latest holder can commit: for work on many rows or tables. Two holders
// are serialised by the row of the resource, so the smaller fence never overwrites the larger one, whichever comes first.
func Fenced(ctx context.Context, db *sql.DB, resource string, fence int64, fn func(tx *sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	res, err := tx.ExecContext(ctx, `
		INSERT INTO fences (resource, fence) VALUES ($1, $2)
		ON CONFLICT (resource) DO UPDATE SET fence = excluded.fence
		WHERE fences.fence <= excluded.fence`, resource, fence)
	if err := written(res, err); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func written(res sql.Result, err error) error {
	if err != nil {
		return err
	}
	n, err := res.RowsAffected()
	if err != nil {
		return fmt.Errorf("count the rows: %w", err)
	}
	if n == 0 {
		return ErrFenced
	}
	return nil
}
