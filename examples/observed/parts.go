package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/promobserver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/metrics"
)

// scope is the scope of the cron jobs.
const scope = "shop"

const (
	accounts = 6
	shops    = 3
)

// web starts the web side: an export per account at a time, and webhooks of a shop in order.
func (all *parts) web(ctx context.Context, address string) (url string, err error) {
	p, err := all.open(ctx, "web1:80")
	if err != nil {
		return "", err
	}
	routes := http.NewServeMux()
	perAccount := (&handoff.Guard{Locks: p.Locks, Logger: quiet}).Middleware(func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account")), MaxWait: 2 * time.Second}, nil
	})
	routes.Handle("POST /exports/{account}", perAccount(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		task := asynq.NewTask("export", []byte(r.PathValue("account")), asynq.MaxRetry(2))
		if _, err := p.Jobs.Enqueue(r.Context(), handoff.Carry(lock), task); err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})))
	routes.HandleFunc("POST /webhooks/{shop}", func(w http.ResponseWriter, r *http.Request) {
		line := handoff.Sequence{Key: joblock.Key("webhooks", r.PathValue("shop")), MaxWaiting: 12}
		// Without MaxRetry, asynq's default of 25 retries could keep the key for up to 20 days.
		_, err := p.Jobs.Enqueue(r.Context(), line, asynq.NewTask("webhook", []byte(r.PathValue("shop")), asynq.MaxRetry(5)))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	})
	root := http.NewServeMux()
	root.Handle("/", all.traced(routes))
	root.Handle("GET /metrics", promhttp.HandlerFor(all.registry, promhttp.HandlerOpts{}))
	root.Handle("GET /traces", all.traces)
	return all.listen(address, &http.Server{Handler: root, ReadHeaderTimeout: 10 * time.Second})
}

// traced gives each request a span, as the instrumentation of net/http does (otelhttp).
func (all *parts) traced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, span := all.provider.Tracer("shop").Start(r.Context(), r.Method+" "+r.URL.Path, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// listen serves hs at address until the end.
func (all *parts) listen(address string, hs *http.Server) (url string, err error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return "", err
	}
	all.group.Go(func() { _ = hs.Serve(l) })
	all.later(hs.Shutdown)
	return "http://" + l.Addr().String(), nil
}

// workers starts two asynq servers, each with a keeper: one works, the other stands by.
func (all *parts) workers(ctx context.Context) error {
	for _, label := range []string{"jobs1:91", "jobs2:92"} {
		p, err := all.open(ctx, label)
		if err != nil {
			return err
		}
		s, err := p.NewServer(asynq.Config{
			Concurrency: 3, LogLevel: asynq.FatalLevel, TaskCheckInterval: 200 * time.Millisecond, DelayedTaskCheckInterval: time.Second,
			RetryDelayFunc:  func(int, error, *asynq.Task) time.Duration { return 10 * time.Second },
			ShutdownTimeout: time.Second,
		})
		if err != nil {
			return err
		}
		tasks := asynq.NewServeMux()
		tasks.HandleFunc("export", func(ctx context.Context, task *asynq.Task) error {
			_, span := all.provider.Tracer("shop").Start(ctx, "read the bank's statements")
			defer span.End()
			if err := takes(ctx, all.work); err != nil {
				return err
			}
			if retried, _ := asynq.GetRetryCount(ctx); string(task.Payload()) == "acct-3" && retried == 0 {
				return errors.New("the bank answers 503 Service Unavailable")
			}
			return nil
		})
		tasks.HandleFunc("webhook", func(ctx context.Context, _ *asynq.Task) error { return takes(ctx, all.work*3/4) })
		if err := s.Start(tasks); err != nil {
			return err
		}
	}
	return nil
}

// cron starts two nodes with the same jobs. Each tick runs on one of them.
func (all *parts) cron(ctx context.Context) error {
	for _, label := range []string{"cron1:71", "cron2:72"} {
		p, err := all.open(ctx, label)
		if err != nil {
			return err
		}
		s, err := newCron(p, label, all)
		if err != nil {
			return err
		}
		p.Go(func(ctx context.Context) error {
			if err := s.Run(ctx); !errors.Is(err, context.Canceled) {
				return err
			}
			return nil
		})
	}
	return nil
}

func newCron(p *toolkit.Process, node string, all *parts) (*scheduler.Scheduler, error) {
	s, err := scheduler.New(p.Locks, &scheduler.Config{Scope: scope, Node: node, Logger: quiet, Observe: all.journal.ObserveCron(scope)})
	if err != nil {
		return nil, err
	}
	return s, errors.Join(
		s.Func("rollup", "@every 10s", func(ctx context.Context) error { return takes(ctx, all.work/4) }),
		s.Func("rates", "@every 20s", func(ctx context.Context) error {
			if err := takes(ctx, all.work/8); err != nil || time.Now().Unix()%3 > 0 {
				return err
			}
			return errors.New("the exchange answers 503")
		}),
		s.Func("invoices", "CRON_TZ=Europe/Berlin 0 6 * * *", func(context.Context) error { return nil }),
	)
}

// server starts the lock server, with pages and with the metrics of the cluster. Here every user of this machine
// may do everything; docs/server.md has accounts.
func (all *parts) server(address string) (url string, err error) {
	rdb := redis.NewClient(&redis.Options{Addr: all.redis})
	all.later(func(context.Context) error { return rdb.Close() })
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		return "", err
	}
	locks, err := joblock.New(store, &joblock.Config{Holder: "locks1:7420", Logger: quiet})
	if err != nil {
		return "", err
	}
	all.later(locks.Close)
	databases := []server.Database{{Name: "jobs", Inspector: asynq.NewInspectorFromRedisClient(rdb)}}
	m, err := metrics.New(metrics.Config{
		Locks: locks, Store: store, Databases: databases, KeyGroup: promobserver.FirstPart, Every: 5 * time.Second, Logger: quiet,
	})
	if err != nil {
		return "", err
	}
	all.later(m.Close)
	s, err := server.New(server.Config{
		Locks: locks, Authorize: server.Anyone(), Store: store, Databases: databases, CronScopes: []string{scope}, Redis: rdb,
		Meter: m, Metrics: m.Handler(), Logger: quiet,
	})
	if err != nil {
		return "", err
	}
	pages, err := s.Pages(server.PagesConfig{})
	if err != nil {
		return "", errors.Join(err, s.Close(context.Background()))
	}
	url, err = all.listen(address, server.HTTPServer(pages.Root()))
	all.later(s.Close) // before Shutdown, which would wait for streams
	return url, err
}

// customers requests exports and webhooks, faster than the workers work.
func (all *parts) customers(app string) {
	ctx, stop := context.WithCancel(context.Background())
	var client http.Client
	random := rand.New(rand.NewPCG(1, 2))
	all.group.Go(func() {
		for n := 0; ; n++ {
			path := fmt.Sprintf("/exports/acct-%d", 1+random.IntN(accounts))
			if n%2 > 0 {
				path = fmt.Sprintf("/webhooks/shop-%d", 1+min(random.IntN(shops), random.IntN(shops))) // most for shop-1
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, app+path, nil)
			if err == nil {
				if resp, err := client.Do(req); err == nil { // the metrics and the traces show a refusal
					_ = resp.Body.Close()
				}
			}
			if takes(ctx, all.work/8) != nil {
				return
			}
		}
	})
	all.later(func(context.Context) error { stop(); client.CloseIdleConnections(); return nil })
}

// takes is work that takes a while.
func takes(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
