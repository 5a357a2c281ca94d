package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/ncruces/go-sqlite3/driver"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// kit is an outbox, with a Redis in memory.
type kit struct {
	*Outbox
	t   *testing.T
	p   *toolkit.Process
	rdb *redis.Client
	log *testkit.Log

	mini interface{ SetError(text string) } // what Redis answers to each command, unless empty
}

// newKit returns one that is closed with the test.
func newKit(t *testing.T, cfg *Config) *kit {
	t.Helper()
	mini := redistest.Mini(t)
	rdb := redistest.MiniClient(t, mini)
	k := &kit{t: t, rdb: rdb, log: &testkit.Log{}, mini: mini}
	logger := slog.New(slog.NewTextHandler(k.log, nil))
	k.p = must(toolkit.NewFromRedisClient(rdb, &toolkit.Config{Logger: logger}))(t)
	t.Cleanup(func() {
		if err := k.p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	full := Config{Logger: logger}
	if cfg != nil {
		full = *cfg
		full.Logger = logger
	}
	db, d := database(t)
	k.Outbox = must(New(k.p.Jobs, db, d, &full))(t)
	if err := Migrate(t.Context(), k.db, k.dialect); err != nil {
		t.Fatal(err)
	}
	return k
}

// database opens an empty database: in SQLite, unless another file of this package says otherwise.
var database = func(t *testing.T) (*sql.DB, Dialect) {
	return sqlite(t, filepath.Join(t.TempDir(), "db")), SQLite
}

// exec runs a statement, whose parameters are question marks.
func (k *kit) exec(query string, args ...any) {
	k.t.Helper()
	must(k.db.Exec(k.dialect.sql(query), args...))(k.t)
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// sqlite opens the database in a file.
func sqlite(t testing.TB, file string) *sql.DB {
	t.Helper()
	db := must(openSQLite(file))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func openSQLite(file string) (*sql.DB, error) {
	return driver.Open("file:" + file + "?_pragma=busy_timeout(10000)&_pragma=journal_mode(wal)&_pragma=synchronous(normal)&_txlock=immediate")
}

// in runs f in a transaction, and commits it or rolls it back.
func (k *kit) in(commit bool, f func(tx *sql.Tx)) {
	k.t.Helper()
	tx := must(k.db.BeginTx(context.Background(), nil))(k.t)
	f(tx)
	end := tx.Rollback
	if commit {
		end = tx.Commit
	}
	if err := end(); err != nil {
		k.t.Fatal(err)
	}
}

// put writes a job in a transaction of its own.
func (k *kit) put(how handoff.How, task *asynq.Task, opts ...asynq.Option) (job Job) {
	k.t.Helper()
	k.in(true, func(tx *sql.Tx) { job = must(k.Enqueue(context.Background(), tx, how, task, opts...))(k.t) })
	return job
}

// relayAll runs rounds until no row is due.
func (k *kit) relayAll() {
	k.t.Helper()
	for {
		full, err := k.round(context.Background())
		if err != nil {
			k.t.Fatal(err)
		}
		if !full {
			return
		}
	}
}

// hurry makes all rows due that wait.
func (k *kit) hurry() {
	k.t.Helper()
	k.exec("UPDATE joblock_outbox SET due_ms = 0 WHERE state = 0")
}

// states returns how many rows are pending, sent and refused.
func (k *kit) states() string {
	k.t.Helper()
	var n [3]int
	for state := range n {
		if err := k.db.QueryRow(k.dialect.sql("SELECT COUNT(*) FROM joblock_outbox WHERE state = ?"), state).Scan(&n[state]); err != nil {
			k.t.Fatal(err)
		}
	}
	return fmt.Sprintf("%d pending, %d sent, %d refused", n[0], n[1], n[2])
}

func (k *kit) wantStates(want string) {
	k.t.Helper()
	if got := k.states(); got != want {
		k.t.Errorf("rows: %s, want %s", got, want)
	}
}

// errorOf returns the error in the row of a job.
func (k *kit) errorOf(job Job) (text string) {
	k.t.Helper()
	if err := k.db.QueryRow(k.dialect.sql("SELECT error FROM joblock_outbox WHERE uid = ?"), job.uid).Scan(&text); err != nil {
		k.t.Fatal(err)
	}
	return text
}

// tasks returns the payloads of the tasks of a queue that wait, pending ones first.
func (k *kit) tasks() (out []string) {
	k.t.Helper()
	for _, list := range []func(string, ...asynq.ListOption) ([]*asynq.TaskInfo, error){k.p.Inspector.ListPendingTasks, k.p.Inspector.ListScheduledTasks} {
		infos, err := list("default", asynq.PageSize(1000))
		if err != nil {
			continue // there is no queue yet
		}
		for _, info := range infos {
			out = append(out, string(info.Payload))
		}
	}
	return out
}

// key returns the status of a key.
func (k *kit) key(key string) joblock.Status {
	k.t.Helper()
	return must(k.p.Locks.Status(context.Background(), key))(k.t)[0]
}

// serve runs a server with handler, and returns a function that stops it.
func (k *kit) serve(handler func(ctx context.Context, task *asynq.Task) error) (stop func()) {
	k.t.Helper()
	s := must(k.p.NewServer(asynq.Config{Concurrency: 8, LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 100 * time.Millisecond}))(k.t)
	if err := s.Start(asynq.HandlerFunc(handler)); err != nil {
		k.t.Fatal(err)
	}
	return s.Shutdown
}

func task(payload string) *asynq.Task { return asynq.NewTask("work", []byte(payload)) }

// newProcess returns another process with the database and the Redis of k.
func newProcess(t *testing.T, k *kit) (*kit, error) {
	t.Helper()
	n := *k
	n.t = t
	var err error
	if n.p, err = toolkit.NewFromRedisClient(k.rdb, &toolkit.Config{Logger: k.cfg.Logger}); err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		if err := n.p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	cfg := k.cfg
	n.Outbox, err = New(n.p.Jobs, k.db, k.dialect, &cfg)
	return &n, err
}
