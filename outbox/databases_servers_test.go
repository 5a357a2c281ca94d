//go:build servers

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/sqltest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/outbox/pgxbox"
)

// openSQL opens the database of a dialect by its address: that of a server of sqltest, or the path of a file.
func openSQL(d Dialect, addr string) (*sql.DB, error) {
	switch d {
	case Postgres:
		return sql.Open("pgx", addr)
	case MySQL:
		cfg := mysql.NewConfig()
		addr, name, _ := strings.Cut(addr, "/")
		cfg.User, cfg.Net, cfg.Addr, cfg.DBName = "root", "tcp", addr, name
		c, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		return sql.OpenDB(c), nil
	}
	return openSQLite(addr)
}

// startSQL starts the server of a dialect, and returns the address of a database.
func startSQL(t *testing.T, d Dialect) (addr string) {
	t.Helper()
	switch d {
	case Postgres:
		return sqltest.Postgres(t, "fsync=off", "max_connections=200")
	case MySQL:
		addr := sqltest.MariaDB(t, "--innodb-flush-log-at-trx-commit=2")
		db := must(openSQL(MySQL, addr+"/"))(t)
		defer db.Close()
		must(db.Exec("CREATE DATABASE test"))(t)
		return addr + "/test"
	}
	return t.TempDir() + "/db"
}

// createDatabase makes another database on the server of addr, and returns its address.
func createDatabase(t *testing.T, d Dialect, addr, name string) string {
	t.Helper()
	if d == SQLite {
		return filepath.Join(t.TempDir(), name)
	}
	admin := must(openSQL(d, addr))(t)
	defer admin.Close()
	must(admin.Exec("CREATE DATABASE " + name))(t)
	addr = strings.Replace(addr, "/test", "/"+name, 1)
	return strings.Replace(addr, "dbname=postgres", "dbname="+name, 1)
}

// The tests of this package, in databases that are servers.
func TestInPostgres(t *testing.T) { inServer(t, Postgres) }

func TestInMariaDB(t *testing.T) { inServer(t, MySQL) }

func inServer(t *testing.T, d Dialect) {
	addr := startSQL(t, d)
	var number atomic.Int64
	inDatabase = append(inDatabase, func(sub *testing.T) (*sql.DB, Dialect) {
		if !strings.HasPrefix(sub.Name(), t.Name()+"/") {
			return nil, 0
		}
		db := must(openSQL(d, createDatabase(sub, d, addr, fmt.Sprint("t", number.Add(1)))))(sub)
		sub.Cleanup(func() { _ = db.Close() })
		return db, d
	})
	for name, test := range map[string]func(*testing.T){
		"commit": TestAJobExistsIfAndOnlyIfItsTransactionIsCommitted, "options": TestATaskHasItsHeadersAndOptions,
		"repeat": TestARepeatedEnqueueMakesNoSecondTask, "order": TestTheJobsOfAKeyAreEnqueuedInTheirOrder,
		"busy": TestAJobWhoseKeyIsTakenWaitsInTheTable, "policies": TestThePoliciesOfUniqueApplyAtTheRelay,
		"refused": TestWhatIsRefusedForGoodIsKeptWithItsError, "carry": TestALockThatIsCarriedIsTheJobsFromTheEnqueueOn,
		"reclaim": TestReclaimGivesTheLocksOfARolledBackTransactionBack, "outage": TestAnOutageOfRedisChargesNoRow,
		"clean": TestCleaningKeepsWhatIsNotOld, "plans": TestNoQueryReadsTheWholeTable, "late": aLateCommit, "unique": aRolledBackUnique,
	} {
		t.Run(name, test)
	}
}

// inDatabase has functions that open the databases of tests. The first one that does not return nil decides.
var inDatabase []func(t *testing.T) (*sql.DB, Dialect)

func init() {
	memory := database
	database = func(t *testing.T) (*sql.DB, Dialect) {
		for _, open := range inDatabase {
			if db, d := open(t); db != nil {
				return db, d
			}
		}
		return memory(t)
	}
}

// A row whose transaction commits after a row with a larger id was sent is sent, too. SQLite has one transaction at a time.
func aLateCommit(t *testing.T) {
	k := newKit(t, nil)
	first, second := must(k.db.BeginTx(t.Context(), nil))(t), must(k.db.BeginTx(t.Context(), nil))(t)
	must(k.Enqueue(t.Context(), first, handoff.Sequence{Key: "line"}, task("late")))(t)
	must(k.Enqueue(t.Context(), second, handoff.Sequence{Key: "line"}, task("early")))(t)
	if err := second.Commit(); err != nil {
		t.Fatal(err)
	}
	k.relayAll()
	k.wantStates("0 pending, 1 sent, 0 refused")
	if err := first.Commit(); err != nil {
		t.Fatal(err)
	}
	k.relayAll()
	k.wantStates("0 pending, 2 sent, 0 refused")
}

// A unique job is not lost because of another one of its key whose transaction is rolled back.
func aRolledBackUnique(t *testing.T) {
	k := newKit(t, nil)
	first, second := must(k.db.BeginTx(t.Context(), nil))(t), must(k.db.BeginTx(t.Context(), nil))(t)
	how := handoff.Unique{Key: "key", OnConflict: handoff.Skip}
	must(k.Enqueue(t.Context(), first, how, task("rolled back")))(t)
	must(k.Enqueue(t.Context(), second, how, task("committed")))(t)
	if err := errors.Join(second.Commit(), first.Rollback()); err != nil {
		t.Fatal(err)
	}
	k.relayAll()
	if got := k.tasks(); !slices.Equal(got, []string{"committed"}) {
		t.Errorf("tasks %q", got)
	}
}

// Notifications that never arrive, as behind a pooler in transaction mode, and a listener that fails delay a job by
// Config.Poll.
func TestTheRelayPollsWithoutNotifications(t *testing.T) {
	addr := startSQL(t, Postgres)
	server := redistest.Start(t)
	for name, listen := range map[string]func(ctx context.Context, _ string, _ func()) error{
		"lost":   func(ctx context.Context, _ string, _ func()) error { <-ctx.Done(); return ctx.Err() },
		"failed": func(context.Context, string, func()) error { return errors.New("no connection") },
	} {
		a := newApp(t, Postgres, addr, server.Addr(), true)
		cfg := a.box.cfg
		cfg.Name, cfg.Listen, cfg.Poll = name, listen, minPoll
		a.box = must(New(a.p.Jobs, a.db, Postgres, &cfg))(t)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- a.box.Run(ctx) }()
		for i := range 3 {
			tx := must(a.db.BeginTx(t.Context(), nil))(t)
			job := must(a.box.Enqueue(t.Context(), tx, handoff.Unique{Key: fmt.Sprint(name, i)}, task("one")))(t)
			if err := tx.Commit(); err != nil {
				t.Fatal(err)
			}
			for {
				if _, err := a.p.Inspector.GetTaskInfo(job.Queue, job.TaskID); err == nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// A transaction of pgx, and a relay that is notified of the commit.
func TestPgx(t *testing.T) {
	addr := startSQL(t, Postgres)
	server := redistest.Start(t)
	a := newApp(t, Postgres, addr, server.Addr(), true)
	conn := must(pgx.Connect(t.Context(), addr))(t)
	defer conn.Close(context.Background())
	a.p.Go(a.box.Run)
	put := func(commit bool, how handoff.How) (job Job) {
		tx := must(conn.Begin(t.Context()))(t)
		job = must(a.box.Enqueue(t.Context(), pgxbox.Tx(tx), how, task("one")))(t)
		end := tx.Rollback
		if commit {
			end = tx.Commit
		}
		if err := end(t.Context()); err != nil {
			t.Fatal(err)
		}
		return job
	}
	put(false, handoff.Unique{Key: "rolled back"})
	for i := range 3 { // the relay polls once a minute: without notifications each takes that long
		job := put(true, handoff.Sequence{Key: fmt.Sprint("key", i)})
		for {
			if _, err := a.p.Inspector.GetTaskInfo(job.Queue, job.TaskID); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	lock := must(a.p.Locks.TryAcquire(t.Context(), "lock"))(t)
	if err := a.box.Reclaim(t.Context(), put(false, handoff.Carry(lock))); err != nil {
		t.Error(err)
	}
	if err := a.box.Reclaim(t.Context(), put(true, handoff.Carry(lock))); !errors.Is(err, joblock.ErrBusy) {
		t.Errorf("Reclaim of a committed job: %v, want ErrBusy", err)
	}
}
