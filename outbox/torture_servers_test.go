//go:build servers

package outbox

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

func init() {
	roles["app"] = func() int { return play(playApp) }
	roles["worker"] = func() int { return play(playWorker) }
}

// customers is how many customers each application has. No other process writes their orders, as if their rows were locked.
const customers = 16

// playApp writes orders in transactions, and into a file of its own which of them it has rolled back.
func playApp(ctx context.Context, a *app) error {
	file, err := ownFile("rolledback")
	if err != nil {
		return err
	}
	defer file.Close()
	var all sync.WaitGroup
	for c := range customers {
		all.Go(func() {
			for ctx.Err() == nil {
				if err := a.order(ctx, fmt.Sprintf("%s:%d", os.Getenv("JOBLOCK_OUTBOX_NAME"), c), file); err != nil && ctx.Err() == nil {
					fmt.Fprintln(os.Stderr, "order:", err)
				}
				time.Sleep(rand.N(120 * time.Millisecond))
			}
		})
	}
	all.Wait()
	return nil
}

// order runs one transaction, which is rolled back once in ten times. Now and then it forgets to reclaim the lock that it has
// carried, as if the process had died.
func (a *app) order(ctx context.Context, customer string, rolledBack io.Writer) (err error) {
	kind := "seq"
	switch rand.N(10) {
	case 0:
		kind = "unique"
	case 1:
		kind = "carry"
	}
	key := joblock.Key(kind, customer)
	var how handoff.How = handoff.Sequence{Key: key}
	if kind == "unique" {
		how = handoff.Unique{Key: key}
	}
	if kind == "carry" {
		lock, err := a.p.Locks.TryAcquire(ctx, key)
		if errors.Is(err, joblock.ErrHeld) {
			return nil // the last job of the key is not done
		} else if err != nil {
			return err
		}
		defer lock.Release(context.WithoutCancel(ctx)) // ErrNotOwner, if the job has the lock
		how = handoff.Carry(lock)
	}
	tx, err := a.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after Commit
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
	if _, err := fmt.Fprintln(rolledBack, uid); err != nil {
		return err
	}
	if rand.N(20) == 0 {
		return nil
	}
	return a.box.Reclaim(ctx, job)
}

// playWorker runs jobs, and writes into a file of its own when each starts and ends.
func playWorker(ctx context.Context, a *app) error {
	file, err := ownFile("runs")
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

// Transactions in two applications, with a tenth rolled back, while applications and relays are killed and Redis is
// restarted: each committed order is done, and no other; those of one key are done one at a time, in order.
// The locks that a rolled back transaction has carried are free in the time that the package comment says.
//
// JOBLOCK_OUTBOX is the number of orders in each database, such as 100000, which then take five minutes or more; by default a
// thousand, in a few seconds. JOBLOCK_OUTBOX_IN names one database of the three.
func TestOrdersSurviveKilledProcesses(t *testing.T) {
	for _, d := range []Dialect{Postgres, MySQL, SQLite} {
		if in := os.Getenv("JOBLOCK_OUTBOX_IN"); in == "" || in == d.String() {
			t.Run(d.String(), func(t *testing.T) { ordersSurvive(t, d) })
		}
	}
}

// ordeal is how much a run of orders has to survive.
type ordeal struct {
	orders    int
	atLeast   time.Duration
	killEvery time.Duration
	restarts  int // of Redis
	long      bool
}

func readOrdeal(t *testing.T) ordeal {
	long := os.Getenv("JOBLOCK_OUTBOX")
	if long == "" {
		t.Parallel()
		return ordeal{orders: 1000, killEvery: 500 * time.Millisecond, restarts: 1}
	}
	return ordeal{orders: must(strconv.Atoi(long))(t), atLeast: 5 * time.Minute, killEvery: 3 * time.Second, restarts: 2, long: true}
}

func ordersSurvive(t *testing.T, d Dialect) {
	o := readOrdeal(t)
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s := &scene{t: t, d: d, sqlAddr: startSQL(t, d), redisAddr: server.Addr(), dir: t.TempDir()}
	a := newApp(t, d, s.sqlAddr, s.redisAddr, false)
	must(a.db.Exec("CREATE TABLE orders (uid varchar(36) PRIMARY KEY, k varchar(64) NOT NULL, n integer NOT NULL)"))(t)
	must(a.db.Exec("CREATE UNIQUE INDEX orders_k ON orders (k, n)"))(t)
	count := func(query string) (n int) {
		t.Helper()
		if err := a.db.QueryRow(query).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}

	s.start("worker", "worker")
	relays := []*exec.Cmd{s.start("relay", "r0"), s.start("relay", "r1")}
	apps := []*exec.Cmd{s.start("app", "a0"), s.start("app", "a1")}
	watched := watch(a)
	began, kills, restarted, deepest := time.Now(), 0, 0, 0
	for written := 0; written < o.orders || restarted < o.restarts || time.Since(began) < o.atLeast; written = count("SELECT COUNT(*) FROM orders") {
		time.Sleep(o.killEvery)
		deepest = max(deepest, count("SELECT COUNT(*) FROM joblock_outbox WHERE state = 0"))
		victims, role, name := apps, "app", "a"
		if kills%2 == 0 {
			victims, role, name = relays, "relay", "r"
		}
		i := kills / 2 % 2
		end(victims[i], syscall.SIGKILL)
		victims[i] = s.start(role, fmt.Sprint(name, i))
		kills++
		if restarted < o.restarts && written > o.orders*(restarted+1)/(o.restarts+1) {
			restarted++
			server.Kill()
			server.Restart()
		}
	}
	for _, cmd := range apps {
		end(cmd, syscall.SIGKILL)
	}
	wrote := time.Since(began)
	var l ledger
	committed := count("SELECT COUNT(*) FROM orders")
	for ; ; time.Sleep(100 * time.Millisecond) {
		if count("SELECT COUNT(*) FROM joblock_outbox WHERE state = 0") > 0 {
			continue
		}
		if l = s.ledger(); len(l.done) >= committed {
			break
		}
	}
	rolledBack := s.rolledBack()
	t.Logf("%s: %d transactions committed and %d rolled back in %s, %d processes killed, Redis restarted %d times, at most %d rows behind; all done %s later; %d runs, %d of them again",
		d, committed, len(rolledBack), wrote.Round(time.Millisecond), kills+2, restarted, deepest, (time.Since(began) - wrote).Round(time.Millisecond), len(l.runs), len(l.runs)-len(l.done))
	if part := float64(len(rolledBack)) / float64(committed+len(rolledBack)); part < 0.05 || part > 0.2 {
		t.Errorf("%.0f%% of the transactions were rolled back, want a tenth", 100*part)
	}
	if n := count("SELECT COUNT(*) FROM joblock_outbox WHERE state = 2"); n > 0 {
		t.Errorf("%d rows were refused", n)
	}
	s.check(a, l, rolledBack)
	s.checkKeys(a, o, watched)
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
	for _, name := range s.files("runs") {
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

// rolledBack returns the orders that applications have rolled back.
func (s *scene) rolledBack() (uids []string) {
	s.t.Helper()
	for _, name := range s.files("rolledback") {
		uids = append(uids, strings.Fields(string(must(os.ReadFile(name))(s.t)))...)
	}
	return uids
}

// check compares the runs with the orders.
func (s *scene) check(a *app, l ledger, rolledBack []string) {
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
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	for _, uid := range rolledBack {
		if committed[uid] {
			t.Errorf("order %s was rolled back, and is in the table", uid)
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
}

// checkKeys waits until all keys are free: in the short run without those whose transaction died, which the keeper frees.
func (s *scene) checkKeys(a *app, o ordeal, w *watcher) {
	t := s.t
	patience := 10 * time.Second
	if o.long {
		patience = promised
	}
	began := time.Now()
	for {
		var taken []string
		for st, err := range a.p.Locks.List(t.Context(), joblock.ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			carried := !o.long && strings.HasPrefix(st.Key, "carry:")
			if st.Locked() && !strings.HasPrefix(st.Key, "%") && !carried {
				taken = append(taken, fmt.Sprintf("%s for %q", st.Key, st.Job))
			}
		}
		if len(taken) == 0 {
			break
		}
		if time.Since(began) > patience {
			t.Errorf("still taken after %s: %q", patience, taken)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("%s: all keys free %s after the last job", s.d, time.Since(began).Round(100*time.Millisecond))
	w.stop()
	died := 0
	var longest time.Duration
	for job, stay := range w.parked {
		_, id, _ := strings.Cut(job, "/")
		var n int
		if err := a.db.QueryRow(a.box.dialect.sql("SELECT COUNT(*) FROM joblock_outbox WHERE job LIKE ?"), `%"id":"`+id+`"%`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			died++
			longest = max(longest, stay.last.Sub(stay.first))
		}
	}
	if o.long {
		t.Logf("%s: %d locks of rolled back transactions were not reclaimed; the keeper freed each within %s", s.d, died, longest.Round(time.Second))
		if died == 0 || longest > promised {
			t.Errorf("%s: want some locks, and all free within %s", s.d, promised)
		}
	}
}

// promised is when the lock of a transaction that died is free: a minute or two after Enqueue, and three more for a busy machine
// and for restarts of Redis.
const promised = 5 * time.Minute

// stay is the time for which a lock was seen parked.
type stay struct{ first, last time.Time }

// watcher sees how long locks are parked for the same job.
type watcher struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	parked map[string]*stay // by job; stays of some seconds
}

// watch watches the locks that orders carry, until stop is called.
func watch(a *app) *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{cancel: cancel, parked: make(map[string]*stay)}
	w.done.Go(func() {
		for ctx.Err() == nil {
			seen := make(map[string]*stay)
			for st, err := range a.p.Locks.List(ctx, joblock.ListOptions{Prefix: "carry:"}) {
				if err != nil {
					seen = w.parked // Redis restarts: as if nothing had changed
					break
				}
				if st.State != joblock.StateParked {
					continue
				}
				s := w.parked[st.Job]
				if s == nil {
					s = &stay{first: time.Now()}
				}
				s.last = time.Now()
				seen[st.Job] = s
			}
			for job, s := range w.parked {
				if seen[job] == nil && s.last.Sub(s.first) > 10*time.Second {
					seen[job] = s
				}
			}
			w.parked = seen
			select {
			case <-ctx.Done():
			case <-time.After(500 * time.Millisecond):
			}
		}
	})
	return w
}

func (w *watcher) stop() {
	w.cancel()
	w.done.Wait()
}
