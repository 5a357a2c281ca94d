//go:build servers

package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/joblock/toolkit/internal/enqueue"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// Two relays begin with a backlog, which has in its middle a row that can never be enqueued and a line of rows whose key
// another caller has. Halfway the one that works is killed. The relays' memory does not grow with the backlog, each row that
// can be sent is enqueued once, and jobs of a second application on the same servers go on meanwhile.
//
// JOBLOCK_BEHIND is the number of rows, such as 1000000, and of all three databases, unless JOBLOCK_BEHIND_IN names one.
func TestARelayCatchesUpWithALargeBacklog(t *testing.T) {
	text := os.Getenv("JOBLOCK_BEHIND")
	if text == "" {
		t.Skip("takes minutes: set JOBLOCK_BEHIND to a number of rows")
	}
	rows := must(strconv.Atoi(text))(t)
	for _, d := range []Dialect{Postgres, MySQL, SQLite} {
		if in := os.Getenv("JOBLOCK_BEHIND_IN"); in == "" || in == d.String() {
			t.Run(d.String(), func(t *testing.T) { catchUp(t, d, rows) })
		}
	}
}

const (
	perKey  = 20     // rows of a sequence
	blocked = 20_000 // rows whose key another caller has
	growth  = 64     // MB that a relay may have more than when it had sent a tenth
)

func catchUp(t *testing.T, d Dialect, rows int) {
	server := redistest.Start(t)
	s := &scene{t: t, d: d, sqlAddr: startSQL(t, d), redisAddr: server.Addr(), dir: t.TempDir()}
	a := newApp(t, d, s.sqlAddr, s.redisAddr, false)
	began := time.Now()
	fill(t, a, rows)
	lock := must(a.p.Locks.TryAcquire(t.Context(), "busy"))(t)
	t.Logf("%s: %d rows written in %s", d, rows, time.Since(began).Round(time.Second))

	second := newNeighbour(t, d, createDatabase(t, d, s.sqlAddr, "second"), server.Addr())
	second.measure("alone", 10*time.Second)

	relays := []*exec.Cmd{s.start("relay", "r0"), s.start("relay", "r1")}
	began = time.Now()
	stop := second.begin()
	var early, most int
	killed := false
	for next := 10; ; {
		time.Sleep(2 * time.Second) // Stats counts all rows of the backlog
		left := must(a.box.Stats(t.Context()))(t).Backlog - blocked
		sent := 100 * (rows - blocked - left) / (rows - blocked)
		memory := 0
		for _, r := range relays {
			memory = max(memory, rss(r))
		}
		most = max(most, memory)
		if sent >= next || left <= 0 {
			t.Logf("%s: %3d%% sent after %s; the relay has %d MB, Redis %s", d, sent, time.Since(began).Round(time.Second), memory,
				redisMemory(t, server))
			next = sent + 10
		}
		if early == 0 && sent >= 10 {
			early = memory
		}
		if st := must(a.p.Locks.Status(t.Context(), keyspace.Outbox("outbox")))(t)[0]; !killed && sent >= 50 {
			for i, r := range relays {
				if strings.HasSuffix(st.Holder, fmt.Sprint(":", r.Process.Pid)) {
					end(r, syscall.SIGKILL)
					relays = slices.Delete(relays, i, i+1)
					killed = true
					break
				}
			}
		}
		if left <= 0 {
			break
		}
	}
	took := time.Since(began)
	stop("meanwhile")
	if !killed {
		t.Error("no relay was killed halfway")
	}
	t.Logf("%s: caught up in %s, %.0f rows/s", d, took.Round(time.Second), float64(rows-blocked)/took.Seconds())
	if most > early+growth {
		t.Errorf("%s: the relay had %d MB with a tenth sent, and up to %d MB later", d, early, most)
	}
	stats := must(a.box.Stats(t.Context()))(t)
	if stats.Refused != 1 || stats.Backlog != blocked {
		t.Errorf("%s: %d rows were refused, and %d wait, want 1 and %d", d, stats.Refused, stats.Backlog, blocked)
	}
	info := must(a.p.Inspector.GetQueueInfo("default"))(t)
	if want := rows - blocked - 1; info.Size != want {
		t.Errorf("%s: asynq has %d tasks, want %d", d, info.Size, want)
	}
	// The line of the busy key goes on when the key is free.
	if err := lock.Release(t.Context()); err != nil {
		t.Error(err)
	}
	for must(a.box.Stats(t.Context()))(t).Backlog == blocked {
		time.Sleep(50 * time.Millisecond)
	}
}

// fill writes a backlog: rows of sequences, and in the middle a poison row and those of the busy key.
func fill(t *testing.T, a *app, rows int) {
	t.Helper()
	templates := make(map[bool]enqueue.Deferred) // of the busy key, and of all others
	for busy, how := range map[bool]handoff.How{true: handoff.Unique{Key: "busy"}, false: handoff.Sequence{Key: "line"}} {
		tx := must(a.db.BeginTx(t.Context(), nil))(t)
		templates[busy] = *must(a.box.Enqueue(t.Context(), tx, how, task("")))(t).kept
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
	}
	const chunk = 500
	payload := []byte(strings.Repeat("x", 200))
	lines := (rows - blocked) / perKey
	for from := 0; from < rows; from += chunk {
		var args []any
		n := min(chunk, rows-from)
		for i := from; i < from+n; i++ {
			of := i - rows/2
			busy := of > 0 && of <= blocked
			kept := templates[busy]
			key := "busy"
			if !busy {
				key = fmt.Sprint("line:", i%lines)
				kept.How = json.RawMessage(strings.Replace(string(kept.How), `"line"`, `"`+key+`"`, 1))
			}
			uid := uuid.NewString()
			kept.ID, kept.Keys, kept.Headers = uuid.NewString(), []string{key}, map[string]string{rowHeader: uid}
			text := string(must(json.Marshal(kept))(t))
			if of == 0 {
				text = text[:20] // poison
			}
			args = append(args, uid, key, "work", payload, text, time.Now().UnixMilli(), "")
		}
		query := "INSERT INTO joblock_outbox (uid, order_key, task_type, payload, job, created_ms, error) VALUES " +
			strings.Repeat(",(?,?,?,?,?,?,?)", n)[1:]
		must(a.db.Exec(a.box.dialect.sql(query), args...))(t)
	}
}

// rss returns the memory of a process in MB.
func rss(cmd *exec.Cmd) int {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "status"))
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	var kb int
	_, _ = fmt.Sscan(after, &kb)
	return kb / 1024
}

func redisMemory(t *testing.T, server *redistest.Server) string {
	text := must(server.Client(t).Info(t.Context(), "memory").Result())(t)
	_, after, _ := strings.Cut(text, "used_memory_human:")
	used, _, _ := strings.Cut(after, "\r\n")
	return used
}

// neighbour is another application, with an outbox and a database of its own on the same servers.
type neighbour struct {
	t     *testing.T
	a     *app
	began chan time.Time // of jobs
}

func newNeighbour(t *testing.T, d Dialect, sqlAddr, redisAddr string) *neighbour {
	n := &neighbour{t: t, began: make(chan time.Time, 1)}
	n.a = newApp(t, d, sqlAddr, redisAddr, false)
	cfg := n.a.box.cfg
	cfg.Name = "second"
	n.a.box = must(New(n.a.p.Jobs, n.a.db, d, &cfg))(t)
	n.a.p.Go(n.a.box.Run)
	server := must(n.a.p.NewServer(asynq.Config{
		Concurrency: 4, Queues: map[string]int{"second": 1}, LogLevel: asynq.FatalLevel, TaskCheckInterval: 5 * time.Millisecond,
	}))(t)
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		n.began <- time.Now()
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Shutdown)
	return n
}

// begin commits one job after the other, until the returned function ends that and logs the times from the commit to the
// start of the job.
func (n *neighbour) begin() (stop func(when string)) {
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var times []time.Duration
	done.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			tx, err := n.a.db.BeginTx(context.Background(), nil)
			if err != nil {
				n.t.Error(err)
				return
			}
			_, err = n.a.box.Enqueue(context.Background(), tx, handoff.Unique{Key: joblock.Key("second", strconv.Itoa(i))}, task(""), asynq.Queue("second"))
			if err == nil {
				err = tx.Commit()
			}
			if err != nil {
				if rollback := tx.Rollback(); !errors.Is(rollback, sql.ErrTxDone) {
					err = errors.Join(err, rollback)
				}
				n.t.Error(err)
				return
			}
			committed := time.Now()
			times = append(times, (<-n.began).Sub(committed))
			time.Sleep(20 * time.Millisecond)
		}
	})
	return func(when string) {
		cancel()
		done.Wait()
		slices.Sort(times)
		at := func(share int) time.Duration { return times[(len(times)-1)*share/100].Round(100 * time.Microsecond) }
		n.t.Logf("%s: the second application %s: %d jobs, commit → job p50 %s, p99 %s, longest %s", n.a.box.dialect, when, len(times), at(50), at(99), at(100))
	}
}

func (n *neighbour) measure(when string, length time.Duration) {
	stop := n.begin()
	time.Sleep(length)
	stop(when)
}
