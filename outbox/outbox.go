package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
)

// Config configures an Outbox. The zero value of each field means its default. All processes of an outbox need the same
// Name, and Listen in all of them or in none.
type Config struct {
	// Name distinguishes the outboxes whose processes keep their locks in the same place: each needs a name of its own,
	// because one relay works per name. At most 128 bytes, as for a part of joblock.Key. Default "outbox".
	Name string

	// Poll is how often the relay looks for rows that it was not notified of. From 10 ms to 1 min. Default 1 s.
	Poll time.Duration

	// Batch is how many rows the relay reads, enqueues and marks at a time, with their payloads in memory. From 1 to
	// 1,000. Default 200.
	Batch int

	// Retention is how long a row stays in the table after its task was enqueued, at most 366 days. A negative value
	// deletes the row at once. Rows that were refused are never deleted. Default 1 h.
	Retention time.Duration

	// Listen, unless nil, listens to channel in a PostgreSQL database until ctx ends, and calls wake after each
	// notification: see pgxbox.Listen. The relay calls Listen again when it returns an error. With Listen, Enqueue sends a
	// notification as part of the transaction. Default: the relay only polls. With another Dialect, Listen must be nil.
	Listen func(ctx context.Context, channel string, wake func()) error

	// Logger logs rows that are refused, and errors of the database and of Redis. Default slog.Default().
	Logger *slog.Logger
}

const (
	minPoll       = 10 * time.Millisecond
	maxPoll       = time.Minute
	maxBatch      = 1000
	maxRetention  = 366 * 24 * time.Hour
	maxName       = 128
	channel       = "joblock_outbox"
	rowHeader     = "joblock-outbox" // of a task: the uid of its row
	settleTimeout = 5 * time.Second  // for what must still be done after the end of a context
)

// taskRetention is how long asynq keeps a completed task, so that a relay that repeats the enqueue finds it.
var taskRetention = time.Minute

// Outbox enqueues tasks in database transactions. Make one per process and database with New. An Outbox is safe for
// concurrent use.
type Outbox struct {
	jobs    *enqueue.Client
	db      *sql.DB
	dialect Dialect
	cfg     Config
	wake    chan struct{} // has an element after a notification

	mu    sync.Mutex // guards the field below
	stats relayed
}

// New returns an Outbox whose table is in db: see Migrate. The relay enqueues with jobs, which is the Jobs of a
// toolkit.Process. New sends nothing. cfg may be nil. The error matches joblock.ErrInvalid if jobs or db is nil, if d
// is not known, or if a field of cfg is out of bounds. The Outbox closes neither jobs nor db.
func New(jobs *handoff.Client, db *sql.DB, d Dialect, cfg *Config) (*Outbox, error) {
	const op = "new"
	b := &Outbox{jobs: (*enqueue.Client)(jobs), db: db, dialect: d, wake: make(chan struct{}, 1)}
	if cfg != nil {
		b.cfg = *cfg
	}
	c := &b.cfg
	c.Name, c.Poll, c.Batch = cmp.Or(c.Name, "outbox"), cmp.Or(c.Poll, time.Second), cmp.Or(c.Batch, 200)
	c.Retention = cmp.Or(c.Retention, time.Hour)
	switch {
	case jobs == nil || b.jobs.Locks() == nil:
		return nil, invalid(op, "the handoff.Client is nil or was not made by handoff.NewClient")
	case db == nil:
		return nil, invalid(op, "the database is nil")
	case !d.known():
		return nil, invalid(op, "the dialect is %s, must be Postgres, MySQL or SQLite", d)
	case len(c.Name) > maxName || keyspace.CheckApplication(c.Name) != "" || joblock.Key(c.Name) != c.Name:
		return nil, invalid(op, "Config.Name is %q, must have at most %d bytes, and no '%%' and ':'", c.Name, maxName)
	case c.Poll < minPoll || c.Poll > maxPoll:
		return nil, invalid(op, "Config.Poll is %s, must be from %s to %s, or 0 for 1s", c.Poll, minPoll, maxPoll)
	case c.Batch < 1 || c.Batch > maxBatch:
		return nil, invalid(op, "Config.Batch is %d, must be from 1 to %d, or 0 for 200", c.Batch, maxBatch)
	case c.Retention > maxRetention:
		return nil, invalid(op, "Config.Retention is %s, must be at most %s", c.Retention, maxRetention)
	case c.Listen != nil && d != Postgres:
		return nil, invalid(op, "Config.Listen is set, must be nil with %s, which has no notifications", d)
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return b, nil
}

// Tx is the part of a transaction that Enqueue needs: a *sql.Tx, or a type with its method, such as *sqlx.Tx, or
// pgxbox.Tx for a transaction of pgx.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Job is a job that Enqueue has written into the table. It exists if the transaction is committed.
type Job struct {
	Queue, TaskID string // of the task that will be enqueued

	uid  string
	kept *enqueue.Deferred
}

// Enqueue writes a job into the table, as part of tx. If tx is committed, the relay enqueues the task as
// handoff.Client.Enqueue does with the same arguments. After a rollback there is no job.
//
// With handoff.Unique and handoff.Sequence the key is taken by the relay, and Enqueue needs no Redis. The package
// comment says what the relay does if another job has the key. With handoff.Carry, and Sequence.Lock, Enqueue parks the
// locks for the job at once, so that no other caller gets the key between the commit and the job. After a rollback give
// them back with Reclaim. A handoff.Chain must be under Carry, or under a Sequence with Lock. With Unique.Limit,
// Enqueue returns joblock.ErrInvalid.
//
// An asynq.ProcessIn counts from the call of Enqueue. Without asynq.TaskID the task gets an ID of its own, which the
// row keeps, and asynq keeps the completed task for a minute: however often the relay repeats the enqueue meanwhile,
// asynq has one task. With asynq.TaskID or asynq.Retention, the caller decides for how long asynq recognizes a repeated
// enqueue.
//
// The error is the database's, or matches a sentinel of joblock: ErrInvalid for bad arguments, and for Carry the errors
// of handoff.Client.Enqueue. After an error no row was written, and the caller has its locks, except after
// ErrUnavailable. PostgreSQL refuses all further statements of a transaction in which one has failed.
func (b *Outbox) Enqueue(ctx context.Context, tx Tx, how handoff.How, task *asynq.Task, opts ...asynq.Option) (Job, error) {
	const op = "enqueue"
	if b == nil || b.db == nil {
		return Job{}, invalid(op, "the Outbox was not made by New")
	}
	if tx == nil {
		return Job{}, invalid(op, "the transaction is nil")
	}
	kept, err := b.jobs.Defer(ctx, handoff.Item{How: how, Task: task, Opts: opts}.Request())
	if err != nil {
		return Job{}, err
	}
	job := Job{Queue: kept.Queue, TaskID: kept.ID, uid: uuid.Must(uuid.NewV7()).String(), kept: kept}
	if kept.Headers == nil {
		kept.Headers = make(map[string]string)
	}
	kept.Headers[rowHeader] = job.uid
	if kept.Options.Retention == nil && !kept.Named {
		kept.Options.Retention = &taskRetention
	}
	text, err := json.Marshal(kept)
	if err == nil {
		err = b.insert(ctx, tx, job, task, text)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		return Job{}, fmt.Errorf("outbox: enqueue %s/%s: %w", job.Queue, job.TaskID, errors.Join(err, kept.Undo(ctx)))
	}
	return job, nil
}

func (b *Outbox) insert(ctx context.Context, tx Tx, job Job, task *asynq.Task, text []byte) error {
	const insert = `INSERT INTO joblock_outbox (uid, order_key, task_type, payload, job, created_ms, error) VALUES (?, ?, ?, ?, ?, {now}, '')`
	query := insert
	if b.cfg.Listen != nil {
		query = "WITH written AS (" + insert + " RETURNING 1) SELECT pg_notify('" + channel + "', '') FROM written"
	}
	payload := task.Payload()
	if payload == nil {
		payload = []byte{}
	}
	_, err := tx.ExecContext(ctx, b.dialect.sql(query), job.uid, job.kept.Keys[0], task.Type(), payload, string(text))
	return err
}

// Reclaim gives the locks that Enqueue has parked back to their handles, after the transaction was rolled back, so that
// a deferred Release frees them. For a job without parked locks it does nothing. Without Reclaim, as when the process
// dies, the keeper of package worker frees the locks: it finds that their task does not exist, a minute or two after
// the Enqueue. After one of these errors the locks stay parked:
//
//	joblock.ErrBusy         the row is in the table: the transaction was committed, and the locks are the job's
//	joblock.ErrUnavailable  the database or the locks' store has not answered; call again
//	any other               the error of joblock.Lock.Reclaim
//
// A COMMIT whose answer was lost may still be under way. If it succeeds after Reclaim, the job waits until the locks are
// released.
func (b *Outbox) Reclaim(ctx context.Context, job Job) error {
	const op = "reclaim"
	if b == nil || b.db == nil || job.kept == nil {
		return invalid(op, "the Outbox was not made by New, or the Job was not made by Enqueue")
	}
	if job.kept.Locks == "" {
		return nil
	}
	var one int
	err := b.db.QueryRowContext(ctx, b.dialect.sql("SELECT 1 FROM joblock_outbox WHERE uid = ?"), job.uid).Scan(&one)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return job.kept.Undo(ctx)
	case err != nil:
		return failed(op, joblock.ErrUnavailable, "the table could not be read", err)
	}
	return failed(op, joblock.ErrBusy, "the transaction was committed, and the locks are the job's", nil)
}

// Stats is the state of the table.
type Stats struct {
	Backlog int           // rows to enqueue
	Oldest  time.Duration // how long the first of them has been in the table; 0 if there is none
	Refused int           // rows that the relay has given up
}

const (
	refusedRows = "SELECT COUNT(*) FROM joblock_outbox WHERE state = 2"
	oldestRow   = "SELECT created_ms FROM joblock_outbox {pending} WHERE state = 0 ORDER BY id LIMIT 1"
)

// Stats reads the state of the table, for metrics and health checks. The database counts the rows of the backlog, so
// call Stats every few seconds at most. The error is the database's.
func (b *Outbox) Stats(ctx context.Context) (Stats, error) {
	if b == nil || b.db == nil {
		return Stats{}, invalid("stats", "the Outbox was not made by New")
	}
	var s Stats
	var oldest sql.NullInt64
	query := "SELECT (SELECT COUNT(*) FROM joblock_outbox WHERE state = 0), (" + refusedRows + "), {now} - (" + oldestRow + ")"
	err := b.db.QueryRowContext(ctx, b.dialect.sql(query)).Scan(&s.Backlog, &s.Refused, &oldest)
	if err != nil {
		return Stats{}, fmt.Errorf("outbox: stats: %w", err)
	}
	s.Oldest = max(0, time.Duration(oldest.Int64)*time.Millisecond)
	return s, nil
}

func invalid(op, format string, args ...any) error {
	return failed(op, joblock.ErrInvalid, fmt.Sprintf(format, args...), nil)
}

func failed(op string, sentinel error, detail string, cause error) error {
	return fmt.Errorf("outbox: %w", &joblock.Error{Code: joblock.CodeOf(sentinel), Op: op, Detail: detail, Err: cause})
}
