package outbox

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"strconv"
	"strings"
)

// Dialect is the SQL of a database.
type Dialect uint8

// The databases that keep an outbox. Postgres needs PostgreSQL 10 or later, MySQL needs MySQL 5.7 or MariaDB 10.3, and
// SQLite needs 3.9.
const (
	Postgres Dialect = iota + 1
	MySQL            // and MariaDB
	SQLite
)

var dialects = [...]string{Postgres: "postgres", MySQL: "mysql", SQLite: "sqlite"}

func (d Dialect) String() string {
	if d.known() {
		return dialects[d]
	}
	return fmt.Sprintf("Dialect(%d)", uint8(d))
}

func (d Dialect) known() bool { return d >= Postgres && d <= SQLite }

//go:embed schema
var schema embed.FS

// Schema returns the statements that make the table and its indexes. A statement does nothing if its table or index
// exists. The directory schema of this module has the same text as files for goose, golang-migrate and Atlas.
func (d Dialect) Schema() string {
	if !d.known() {
		return ""
	}
	text, err := schema.ReadFile("schema/" + d.String() + "/001_joblock_outbox.up.sql")
	if err != nil {
		panic(err) // embedded
	}
	return string(text)
}

// Migrate makes the table of the outbox and its indexes in db, unless they exist. An application with migrations of its
// own uses the files of the directory schema instead. The error is the database's, or joblock.ErrInvalid for a nil db
// or an unknown dialect.
func Migrate(ctx context.Context, db *sql.DB, d Dialect) error {
	if db == nil || !d.known() {
		return invalid("migrate", "db must not be nil, and the dialect must be Postgres, MySQL or SQLite; it is %s", d)
	}
	for statement := range strings.SplitSeq(d.Schema(), ";") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("outbox: migrate: %w", err)
		}
	}
	return nil
}

// now returns the SQL of the time at which the statement began, in Unix milliseconds. With a time that changes during
// the statement, databases would not use an index.
func (d Dialect) now() string {
	switch d {
	case Postgres:
		return "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)"
	case MySQL:
		return "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000"
	}
	return "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)"
}

// pending returns the SQL that makes a database read pending rows by their index. Without it, MySQL would walk the
// primary key, over all rows that were sent in the last hour.
func (d Dialect) pending() string {
	if d == MySQL {
		return "FORCE INDEX (joblock_outbox_pending)"
	}
	return ""
}

// sql returns query for d: {now} is the time, {pending} follows a table, and each ? is a parameter.
func (d Dialect) sql(query string) string {
	query = strings.NewReplacer("{now}", d.now(), "{pending}", d.pending()).Replace(query)
	if d != Postgres {
		return query
	}
	var out strings.Builder
	for i, part := range strings.Split(query, "?") {
		if i > 0 {
			out.WriteString("$" + strconv.Itoa(i))
		}
		out.WriteString(part)
	}
	return out.String()
}

// marks returns n parameter marks, separated by commas.
func marks(n int) string { return strings.Repeat(",?", n)[1:] }
