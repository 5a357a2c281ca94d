//go:build servers

package outbox

import (
	"bufio"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/outbox/pgxbox"
)

var pgxTx = pgxbox.Tx // of this package

// app is a process with an outbox.
type app struct {
	p   *toolkit.Process
	db  *sql.DB
	box *Outbox
}

// openApp makes one from the addresses of the database and Redis. With listen, in PostgreSQL, it polls once a minute.
func openApp(d Dialect, sqlAddr, redisAddr string, listen bool) (a *app, err error) {
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	if os.Getenv("JOBLOCK_OUTBOX_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	a = &app{}
	if a.p, err = toolkit.New(asynq.RedisClientOpt{Addr: redisAddr}, &toolkit.Config{
		Locks: &joblock.Config{TTL: 2 * time.Second}, Logger: logger,
	}); err != nil {
		return nil, err
	}
	if a.db, err = openSQL(d, sqlAddr); err != nil {
		return nil, err
	}
	cfg := &Config{Poll: 50 * time.Millisecond, Logger: logger}
	if listen {
		cfg.Poll, cfg.Listen = time.Minute, pgxbox.Listen(sqlAddr)
	} else if d == Postgres {
		cfg.Poll, cfg.Listen = time.Second, pgxbox.Listen(sqlAddr)
	}
	a.box, err = New(a.p.Jobs, a.db, d, cfg)
	return a, err
}

// newApp is openApp for this process.
func newApp(t *testing.T, d Dialect, sqlAddr, redisAddr string, listen bool) *app {
	t.Helper()
	a := must(openApp(d, sqlAddr, redisAddr, listen))(t)
	t.Cleanup(func() {
		if err := errors.Join(a.p.Close(context.Background()), a.db.Close()); err != nil {
			t.Error(err)
		}
	})
	if err := Migrate(t.Context(), a.db, d); err != nil {
		t.Fatal(err)
	}
	return a
}

func init() {
	roles["app"] = func() int { return play(playApp) }
	roles["relay"] = func() int { return play(func(ctx context.Context, a *app) error { return a.box.Run(ctx) }) }
	roles["worker"] = func() int { return play(playWorker) }
}

// play runs a role until the process is interrupted or killed.
func play(f func(ctx context.Context, a *app) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	d, _ := strconv.Atoi(os.Getenv("JOBLOCK_OUTBOX_DIALECT"))
	a, err := openApp(Dialect(d), os.Getenv("JOBLOCK_OUTBOX_SQL"), os.Getenv("JOBLOCK_OUTBOX_REDIS"), false)
	if err == nil {
		err = f(ctx, a)
		closing, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = a.p.Close(closing)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// customers is how many customers each application has. No other process writes their orders, as if their rows were locked.
const customers = 16

// playApp writes orders in transactions.
func playApp(ctx context.Context, a *app) error {
	var all sync.WaitGroup
	for c := range customers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := a.order(ctx, fmt.Sprintf("%s:%d", os.Getenv("JOBLOCK_OUTBOX_NAME"), c)); err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "order:", err)
				}
				time.Sleep(rand.N(120 * time.Millisecond))
			}
		})
	}
	all.Wait()
	return nil
}

// order runs one transaction, which is rolled back once in ten times.
func (a *app) order(ctx context.Context, customer string) error {
	kind := "seq"
	switch rand.N(10) {
	case 0:
		kind = "unique"
	case 1:
		kind = "carry"
	}
	key := joblock.Key(kind, customer)
	var how handoff.How = handoff.Sequence{Key: key}
	var lock *joblock.Lock
	switch kind {
	case "unique":
		how = handoff.Unique{Key: key}
	case "carry":
		var err error
		if lock, err = a.p.Locks.TryAcquire(ctx, key); errors.Is(err, joblock.ErrHeld) {
			return nil // the last job of the key is not done
		} else if err != nil {
			return err
		}
		defer lock.Release(context.WithoutCancel(ctx))
		how = handoff.Carry(lock)
	}
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	d := a.box.dialect
	var n int
	if err := tx.QueryRowContext(ctx, d.sql("SELECT COALESCE(MAX(n), 0) + 1 FROM orders WHERE k = ?"), key).Scan(&n); err != nil {
		return err
	}
	uid := uuid.NewString()
	if _, err := tx.ExecContext(ctx, d.sql("INSERT INTO orders (uid, k, n) VALUES (?, ?, ?)"), uid, key, n); err != nil {
		return err
	}
	job, err := a.box.Enqueue(ctx, tx, how, asynq.NewTask("order", fmt.Appendf(nil, "%s %s %d", uid, key, n)))
	if err != nil {
		return err
	}
	if rand.N(10) != 0 {
		return tx.Commit()
	}
	if err := tx.Rollback(); err != nil {
		return err
	}
	return a.box.Reclaim(ctx, job)
}

// playWorker runs jobs, and writes into a file of its own when each starts and ends.
func playWorker(ctx context.Context, a *app) error {
	file, err := os.OpenFile(filepath.Join(os.Getenv("JOBLOCK_OUTBOX_DIR"), fmt.Sprint("runs", os.Getpid())), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	s, err := a.p.NewServer(asynq.Config{Concurrency: 32, LogLevel: asynq.FatalLevel, TaskCheckInterval: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	if err := s.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		fmt.Fprintln(file, "start", string(task.Payload()), time.Now().UnixNano())
		time.Sleep(time.Millisecond)
		fmt.Fprintln(file, "end", string(task.Payload()), time.Now().UnixNano())
		return nil
	})); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// scene is a run of processes.
type scene struct {
	t                       *testing.T
	d                       Dialect
	sqlAddr, dir, redisAddr string
}

// start starts a process with a role.
func (s *scene) start(role, name string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "JOBLOCK_OUTBOX_ROLE="+role, "JOBLOCK_OUTBOX_NAME="+name, "JOBLOCK_OUTBOX_SQL="+s.sqlAddr,
		"JOBLOCK_OUTBOX_REDIS="+s.redisAddr, "JOBLOCK_OUTBOX_DIR="+s.dir, "JOBLOCK_OUTBOX_DIALECT="+strconv.Itoa(int(s.d)))
	if runtime.GOOS == "linux" {
		cmd.SysProcAttr = dieWithParent
	}
	if os.Getenv("JOBLOCK_OUTBOX_LOG") != "" {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { end(cmd, syscall.SIGKILL) })
	return cmd
}

func end(cmd *exec.Cmd, sig syscall.Signal) {
	if cmd.ProcessState == nil {
		_ = cmd.Process.Signal(sig)
		_ = cmd.Wait()
	}
}

// Transactions in two applications, with a tenth rolled back, while applications and relays are killed and Redis is
// restarted: each committed order is done, and no other; those of one key are done one at a time, in order.
//
// JOBLOCK_OUTBOX is the number of orders in each database; by default a few hundred, in a few seconds.
func TestOrdersSurviveKilledProcesses(t *testing.T) {
	for _, d := range []Dialect{Postgres, MySQL, SQLite} {
		t.Run(d.String(), func(t *testing.T) { ordersSurvive(t, d) })
	}
}

func ordersSurvive(t *testing.T, d Dialect) {
	orders, killEvery, restarts := 1000, 500*time.Millisecond, 1
	if long := os.Getenv("JOBLOCK_OUTBOX"); long != "" {
		orders, killEvery, restarts = must(strconv.Atoi(long))(t), 3*time.Second, 2
	} else {
		t.Parallel()
	}
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := &scene{t: t, d: d, sqlAddr: startSQL(t, d), redisAddr: server.Addr(), dir: t.TempDir()}
	a := newApp(t, d, s.sqlAddr, s.redisAddr, false)
	must(a.db.Exec("CREATE TABLE orders (uid varchar(36) PRIMARY KEY, k varchar(64) NOT NULL, n integer NOT NULL)"))(t)
	must(a.db.Exec("CREATE UNIQUE INDEX orders_k ON orders (k, n)"))(t)

	s.start("worker", "worker")
	relays := []*exec.Cmd{s.start("relay", "r0"), s.start("relay", "r1")}
	apps := []*exec.Cmd{s.start("app", "a0"), s.start("app", "a1")}
	began, kills := time.Now(), 0
	count := func(query string) (n int) {
		t.Helper()
		if err := a.db.QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	deepest := 0
	for written := 0; written < orders; written = count("SELECT COUNT(*) FROM orders") {
		time.Sleep(killEvery)
		deepest = max(deepest, count("SELECT COUNT(*) FROM joblock_outbox WHERE state = 0"))
		victims, role, name := apps, "app", "a"
		if kills%2 == 0 {
			victims, role, name = relays, "relay", "r"
		}
		i := kills / 2 % 2
		end(victims[i], syscall.SIGKILL)
		victims[i] = s.start(role, fmt.Sprint(name, i))
		if kills++; written > orders/2 && restarts > 0 || kills%10 == 5 && restarts > 1 {
			restarts--
			server.Kill()
			server.Restart()
		}
	}
	for _, cmd := range apps {
		end(cmd, syscall.SIGKILL)
	}
	wrote := time.Since(began)
	var l ledger
	for committed := count("SELECT COUNT(*) FROM orders"); ; time.Sleep(100 * time.Millisecond) {
		if l = s.ledger(); len(l.done) >= committed && count("SELECT COUNT(*) FROM joblock_outbox WHERE state = 0") == 0 {
			break
		}
	}
	t.Logf("%s: %d transactions in %s, %d processes killed, at most %d rows behind; all done %s later; %d runs, %d of them again", d, count("SELECT COUNT(*) FROM orders"),
		wrote.Round(time.Millisecond), kills+2, deepest, (time.Since(began) - wrote).Round(time.Millisecond), len(l.runs), len(l.runs)-len(l.done))
	if n := count("SELECT COUNT(*) FROM joblock_outbox WHERE state = 2"); n > 0 {
		t.Errorf("%d rows were refused", n)
	}
	s.check(a, l)
}

// run is one run of a job. end is 0 if it was cut short.
type run struct {
	uid, key   string
	n          int
	start, end int64
}

// ledger has all runs, and the jobs that were done.
type ledger struct {
	runs []*run
	done map[string]bool
}

// ledger reads what the workers have written.
func (s *scene) ledger() ledger {
	s.t.Helper()
	l := ledger{done: make(map[string]bool)}
	files := must(filepath.Glob(filepath.Join(s.dir, "runs*")))(s.t)
	for _, name := range files {
		open := make(map[string]*run)
		file := must(os.Open(name))(s.t)
		for lines := bufio.NewScanner(file); lines.Scan(); {
			var what, uid, key string
			var n int
			var at int64
			if _, err := fmt.Sscan(lines.Text(), &what, &uid, &key, &n, &at); err != nil {
				continue // the last line is being written
			}
			if what == "start" {
				r := &run{uid: uid, key: key, n: n, start: at}
				l.runs, open[uid] = append(l.runs, r), r
			} else {
				open[uid].end = at
				l.done[uid] = true
			}
		}
		file.Close()
	}
	return l
}

// check holds the runs against the orders.
func (s *scene) check(a *app, l ledger) {
	t := s.t
	committed := make(map[string]bool)
	rows := must(a.db.Query("SELECT uid FROM orders"))(t)
	defer rows.Close()
	for rows.Next() {
		var uid string
		if err := rows.Scan(&uid); err != nil {
			t.Fatal(err)
		}
		if committed[uid] = true; !l.done[uid] {
			t.Errorf("order %s was not done", uid)
		}
	}
	byKey := make(map[string][]*run)
	for _, r := range l.runs {
		if !committed[r.uid] {
			t.Errorf("order %s of %s was rolled back, and done", r.uid, r.key)
		}
		byKey[r.key] = append(byKey[r.key], r)
	}
	for key, runs := range byKey {
		slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.start, b.start) })
		last, seen := &run{}, make(map[string]bool)
		for _, r := range runs {
			if r.start < last.end {
				t.Errorf("%s: run %d began %s before the end of run %d", key, r.n, time.Duration(last.end-r.start), last.n)
			}
			if !seen[r.uid] && r.n < last.n {
				t.Errorf("%s: order %d ran after order %d", key, r.n, last.n)
			}
			if !seen[r.uid] {
				last, seen[r.uid] = r, true
			} else {
				last = &run{n: last.n, end: r.end}
			}
		}
	}
	// All keys are free; those of carried locks whose application was killed in its transaction after the keeper's minute.
	patience := 10 * time.Second
	if os.Getenv("JOBLOCK_OUTBOX") != "" {
		patience = 3 * time.Minute
	}
	began := time.Now()
	for {
		var taken []string
		for st, err := range a.p.Locks.List(t.Context(), joblock.ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			carried := patience < time.Minute && strings.HasPrefix(st.Key, "carry:")
			if st.Locked() && !strings.HasPrefix(st.Key, "%") && !carried {
				taken = append(taken, fmt.Sprintf("%s for %q", st.Key, st.Job))
			}
		}
		if len(taken) == 0 {
			t.Logf("%s: all keys free %s after the last job", s.d, time.Since(began).Round(100*time.Millisecond))
			return
		}
		if time.Since(began) > patience {
			t.Errorf("still taken after %s: %q", patience, taken)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
}
