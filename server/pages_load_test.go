package server

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// BenchmarkPagesOnRedis tells, with 10,000 locks, 1,000 jobs and 500 cron jobs on a real Redis: how long each page takes
// to be made, the first time and then, and how much of a core Redis uses while one page is open, for ten seconds each.
// One iteration is enough: -benchtime 1x.
func BenchmarkPagesOnRedis(b *testing.B) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	rdb := redistest.Start(b).Client(b)
	quiet := slog.New(slog.DiscardHandler)
	store := testkit.Must(redisstore.New(rdb, nil))
	locks, err := joblock.New(store, &joblock.Config{Logger: quiet})
	testkit.WantNil(b, "New", err)
	defer func() { _ = locks.Close(context.Background()) }()
	fillForLoad(b, ctx, rdb, locks)
	inspector := asynq.NewInspectorFromRedisClient(rdb)
	end := func(s *Server) {
		end, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		testkit.WantNil(b, "Close", s.Close(end))
	}
	open := func() (*Server, *Pages) {
		s, err := New(Config{Locks: locks, Authorize: Anyone(), Store: store, Redis: rdb, CronScopes: []string{"shop"}, Logger: quiet, Databases: []Database{{Name: "jobs", Inspector: inspector}}})
		testkit.WantNil(b, "New", err)
		p, err := s.Pages(PagesConfig{})
		testkit.WantNil(b, "Pages", err)
		return s, p
	}
	get := func(p *Pages, path string) time.Duration {
		began := time.Now()
		r := httptest.NewRequest(http.MethodGet, "http://localhost/"+path, nil)
		w := httptest.NewRecorder()
		p.Root().ServeHTTP(w, r)
		if w.Code != http.StatusOK {
			b.Fatalf("%s: %d %s", path, w.Code, w.Body)
		}
		return time.Since(began)
	}
	paths := []string{"", "locks", "lock?key=k:00001", "jobs", "job?job=default/500", "sequences", "limits", "cron", "cronjob?scope=shop&name=job-001", "events", "nodes", "doctor", "audit", "help"}
	rest := usedBy(b, ctx, rdb)
	fmt.Printf("at rest: %.2f %% of a core of Redis\n", 100*rest) // of b.Log, ten lines are shown
	for range b.N {
		for _, path := range paths {
			s, p := open() // without a visitor so far
			web := httptest.NewServer(p.Root())
			first := get(p, path)
			time.Sleep(3 * time.Second) // the first walk
			var all []time.Duration
			for range 20 {
				all = append(all, get(p, path))
				time.Sleep(50 * time.Millisecond)
			}
			slices.Sort(all)
			name, _, _ := strings.Cut(path, "?")
			share := "has no stream"
			if !slices.Contains([]string{"doctor", "audit", "help"}, name) {
				share = fmt.Sprintf("%.2f %% of a core of Redis", 100*(withStream(b, ctx, rdb, web.URL+"/live?page="+cmp.Or(strings.Replace(path, "?", "&", 1), "overview"))-rest))
			}
			fmt.Printf("%-10s first %6.1f ms, then %5.1f ms (the slowest of 20: %5.1f ms); open: %s\n", "/"+name,
				first.Seconds()*1e3, all[10].Seconds()*1e3, all[19].Seconds()*1e3, share)
			end(s)
			web.Close()
		}
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		fmt.Printf("load average: %s", load)
	}
}

func fillForLoad(b *testing.B, ctx context.Context, rdb *redis.Client, locks *joblock.Locker) {
	const all, jobs, cron = 10_000, 1000, 500
	client := asynq.NewClientFromRedisClient(rdb)
	enqueue, err := handoff.NewClient(locks, client, asynq.NewInspectorFromRedisClient(rdb), nil)
	testkit.WantNil(b, "NewClient", err)
	b.Cleanup(func() { _ = enqueue.Close(context.Background()) })
	var group sync.WaitGroup
	for worker := range 32 {
		group.Go(func() {
			for i := worker; i < all; i += 32 {
				l, err := locks.TryAcquire(ctx, fmt.Sprintf("k:%05d", i), joblock.TTL(time.Hour), joblock.NoRenew(), joblock.Holder(fmt.Sprint("web", i%20)))
				if err != nil {
					b.Error(err)
					return
				}
				switch {
				case i < jobs:
					_, err = enqueue.Enqueue(ctx, handoff.Carry(l), asynq.NewTask("export", nil), asynq.TaskID(strconv.Itoa(i)), asynq.ProcessIn(time.Hour))
				case i%3 == 0:
					_, err = l.Park(ctx, joblock.Reserve(time.Hour))
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	node, err := scheduler.New(locks, &scheduler.Config{Scope: "shop", Node: "n1", Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(b, "scheduler.New", err)
	for i := range cron {
		testkit.WantNil(b, "Func", node.Func(fmt.Sprintf("job-%03d", i), "0 3 * * *", func(context.Context) error { return nil }, scheduler.RunAtStart("1")))
	}
	over := make(chan struct{})
	go func() { defer close(over); _ = node.Run(ctx) }()
	b.Cleanup(func() { <-over })
	for until := time.Now().Add(2 * time.Minute); time.Now().Before(until); time.Sleep(time.Second) {
		entries, err := admin.Of(node).Entries(ctx)
		if err == nil && len(entries) == cron && !slices.ContainsFunc(entries, func(e admin.Entry) bool { return e.Counts.Done == 0 }) {
			return
		}
	}
	b.Fatal("the cron jobs have not all run")
}

// usedBy returns how much of a core Redis uses.
func usedBy(b *testing.B, ctx context.Context, rdb *redis.Client) float64 {
	const long = 10 * time.Second
	used := func() (sum float64) {
		text, err := rdb.Info(ctx, "cpu").Result()
		testkit.WantNil(b, "INFO", err)
		for line := range strings.Lines(text) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name == "used_cpu_sys" || name == "used_cpu_user" {
				n, _ := strconv.ParseFloat(value, 64)
				sum += n
			}
		}
		return sum
	}
	before := used()
	time.Sleep(long)
	return (used() - before) / long.Seconds()
}

// withStream is usedBy while a page is open.
func withStream(b *testing.B, ctx context.Context, rdb *redis.Client, url string) float64 {
	open, leave := context.WithCancel(ctx)
	defer leave()
	r, err := http.NewRequestWithContext(open, http.MethodGet, url, nil)
	testkit.WantNil(b, "NewRequest", err)
	res, err := http.DefaultClient.Do(r)
	testkit.WantNil(b, "Do", err)
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s", url, res.Status)
	}
	go func() { _, _ = io.Copy(io.Discard, res.Body) }()
	time.Sleep(3 * time.Second)
	share := usedBy(b, ctx, rdb)
	return share
}
