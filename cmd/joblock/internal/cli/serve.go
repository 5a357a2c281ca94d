package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/joblock/toolkit/cmd/joblock/internal/demo"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	lockserver "github.com/joblock/toolkit/server"
	"github.com/joblock/toolkit/server/compat"
	"github.com/joblock/toolkit/worker"
)

// defaultListen is the address where "serve" listens, and which "serve --check" checks.
const defaultListen = "127.0.0.1:7420"

// serveOptions holds the flags of "serve".
type serveOptions struct {
	server *server
	set    *pflag.FlagSet

	listen   lockserver.ListenConfig
	accounts string
	scopes   []string
	hosts    []string
	pages    bool
	demo     bool
	keeper   bool
	check    bool

	metricsListen string
	metricsGroups string
	journal       bool

	ttl, maxTTL               time.Duration
	maxWait                   time.Duration
	maxWaiting, maxWaitingOne int
	maxLocksOne               int
	rate                      float64
	burst                     int

	dapr        []string // NAME=PREFIX
	daprAlpha2  []string // PATH=PREFIX
	daprStream  []string // PATH=PREFIX
	daprMaxHold time.Duration
	forrst      []string // PATH
	saasignal   bool
	terraform   bool

	drainDelay, drainTimeout time.Duration
	logFormat, logLevel      string

	stores map[string]string // of --dapr
	below  []daprStore       // of --dapr-alpha2 and --dapr-alpha2-stream
}

// daprStore is a store of Dapr's proposal: its path, and the prefix of its keys.
type daprStore struct {
	path, prefix string
	stream       bool
}

func newServe(s *server) *cobra.Command {
	o := serveOptions{server: s}
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "serve locks over HTTP, for programs in every language",
		Long: `Serve is the lock server: locks over HTTP, with the routes of package server, which docs/server.md describes. Any number
of servers with the same Redis are replicas of each other.

When serve listens, it writes a line for the shell to the standard output, and from then on log lines to the standard
error. If Redis is unreachable, serve starts all the same: /readyz says that the server is not ready.

Serve listens on this machine alone, unless it has a certificate (--cert) and accounts (--accounts). Without --accounts
every caller has every right. "joblock token new" makes accounts. A changed file of accounts is read within a second.

Metrics for Prometheus are at /metrics, for callers with the scope read and without prefixes. With --metrics-listen
they are also served at a separate address, without TLS or tokens. That address must be on this machine; with
--insecure it may be another one, which only Prometheus should be able to reach.

INT and TERM end serve gracefully: /readyz fails, each lock of a stream is parked for its client, who resumes it at
another replica, and requests under way are finished. A second signal ends serve at once. Locks without a stream are
not affected: they are in Redis.

With --check, serve asks the server that listens at --listen whether it is ready, and ends: for health checks of
containers.

Exit codes:
  0         a signal has ended serve gracefully; with --check: the server is ready
  64        wrong usage; a bad file of accounts, a bad certificate
  69        with --check: the server is not ready, or there is none
  70        the server cannot listen, or did not end within --drain-timeout
  128+n     a second signal, n, has ended serve at once`,
		Example: `  joblock serve
  joblock serve --demo
  joblock serve --listen :7420 --cert tls.crt --key tls.key --accounts accounts.json --scope shop
  joblock serve --check --listen :7420 --cert tls.crt --key tls.key`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if o.check {
				return o.askReady(cmd.Context())
			}
			return o.run(cmd)
		},
	}
	f := cmd.Flags()
	o.set = f
	f.StringVar(&o.listen.Address, "listen", defaultListen, "`ADDRESS` as host:port; without a host every interface, with port 0 a free port")
	f.StringVar(&o.listen.CertFile, "cert", "", "`FILE` with the certificate of the server; --tls-cert is for the connection to Redis")
	f.StringVar(&o.listen.KeyFile, "key", "", "`FILE` with the key of --cert")
	f.StringVar(&o.listen.ClientCAFile, "client-ca", "", "`FILE` with the certificate authorities of clients' certificates, which accounts may name")
	f.BoolVar(&o.listen.Insecure, "insecure", false, "listen beyond this machine without TLS or accounts, behind a proxy that has both")
	f.StringVar(&o.accounts, "accounts", "", "`FILE` with the accounts of the callers (default: anyone has every right)")
	f.StringArrayVarP(&o.scopes, "scope", "s", nil, "`SCOPE` of cron jobs that callers may see and control; may be repeated (default $"+envScope+", else none)")
	f.StringArrayVar(&o.hosts, "host", nil, "`NAME` under which the server is reached, if there are no accounts; may be repeated (default: localhost)")
	f.BoolVar(&o.pages, "pages", true, "serve the pages for people on call, at /; --pages=false serves the API alone")
	f.BoolVar(&o.demo, "demo", false, "serve an embedded Redis with locks, waiters and jobs; see \"joblock demo\"")
	f.BoolVar(&o.keeper, "keeper", false, "also run the keeper of jobs' locks, with the databases of --asynq; see package worker")
	f.StringVar(&o.metricsListen, "metrics-listen", "", "`ADDRESS` as host:port at which only /metrics is served, without TLS and tokens (default: none)")
	f.StringVar(&o.metricsGroups, "metrics-groups", "none", "`GROUPS` of keys in the metrics: none, or first-part, the text before the first colon")
	f.BoolVar(&o.journal, "journal", true, "write what happens to the locks of this server's clients into the journal in Redis; see \"joblock events\"")
	f.BoolVar(&o.check, "check", false, "ask the server at --listen whether it is ready, and exit")
	f.DurationVar(&o.ttl, "ttl", 30*time.Second, "lease of a lock whose request sets none")
	f.DurationVar(&o.maxTTL, "max-ttl", 24*time.Hour, "longest lease or reservation that a request may ask for; Terraform's locks last that long")
	f.DurationVar(&o.maxWait, "max-wait", 45*time.Second, "longest wait of a request, from 1s to 1h, shorter than the timeouts of proxies in between; a stream may wait longer")
	f.IntVar(&o.maxWaiting, "max-waiting", 10_000, "how many waiting requests and open streams there may be, together")
	f.IntVar(&o.maxWaitingOne, "max-waiting-each", 1000, "the same for one account")
	f.IntVar(&o.maxLocksOne, "max-locks-each", 10_000, "how many locks one account may have without a stream, held or reserved, not counting those of jobs")
	f.Float64Var(&o.rate, "rate", 0, "requests per second of one account over time (default: no bound)")
	f.IntVar(&o.burst, "burst", 0, "requests of one account at once, with --rate (default: one second's)")
	f.StringArrayVar(&o.dapr, "dapr", nil, "serve Dapr's lock API for a store, `NAME=PREFIX` of its keys; may be repeated")
	f.StringArrayVar(&o.daprAlpha2, "dapr-alpha2", nil, "serve option 1 of Dapr's proposed lock API below a path, `PATH=PREFIX` of its keys, such as /v1.0-alpha2=shop:; may be repeated")
	f.StringArrayVar(&o.daprStream, "dapr-alpha2-stream", nil, "serve option 2, with streams, below a path, `PATH=PREFIX`; may be repeated")
	f.DurationVar(&o.daprMaxHold, "dapr-max-hold", time.Hour, "with --dapr-alpha2: how long to renew a lock that is not unlocked, from 1s to 8784h")
	f.StringArrayVar(&o.forrst, "forrst", nil, "serve the functions of Forrst's atomic locks at `PATH`, such as /rpc; may be repeated")
	f.BoolVar(&o.saasignal, "saasignal", false, "serve SaaSignal's locks API, at /infra/locks/")
	f.BoolVar(&o.terraform, "terraform", false, "serve the locking of Terraform's http backend: lock_address and unlock_address are …/terraform/NAME, and the key is terraform:NAME")
	f.DurationVar(&o.drainDelay, "drain-delay", 0, "after a signal, how long to go on serving while /readyz fails, at most 10m")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 20*time.Second, "how long a graceful shutdown may take, after --drain-delay")
	f.StringVar(&o.logFormat, "log-format", "text", "`FORMAT` of log lines: text or json")
	f.StringVar(&o.logLevel, "log-level", "info", "lowest `LEVEL` of log lines: debug, info, warn or error; each request is an info")
	return cmd
}

func (o *serveOptions) validate() error {
	if o.demo && (o.server.url != "" || o.server.prefix != keyspace.DefaultPrefix || len(o.server.asynq) > 0 || o.keeper) {
		return usage("--demo has a Redis and a keeper of its own, so --redis, --prefix, --asynq and --keeper make no sense with it")
	}
	if name := o.server.given("server", "server-token-file"); name != "" {
		return usage("%s makes no sense with serve, which is a lock server itself and asks Redis", name)
	}
	if _, _, err := net.SplitHostPort(o.listen.Address); err != nil {
		return usage("--listen is %q, must be host:port", o.listen.Address)
	}
	if o.metricsListen != "" {
		if _, _, err := net.SplitHostPort(o.metricsListen); err != nil {
			return usage("--metrics-listen is %q, must be host:port", o.metricsListen)
		}
	}
	if (o.listen.CertFile == "") != (o.listen.KeyFile == "") {
		return usage("--cert and --key must be used together")
	}
	if err := oneOf("metrics-groups", o.metricsGroups, []string{"none", "first-part"}); err != nil {
		return err
	}
	if err := oneOf("log-format", o.logFormat, []string{"text", "json"}); err != nil {
		return err
	}
	if new(slog.Level).UnmarshalText([]byte(o.logLevel)) != nil {
		return usage("--log-level is %q, must be debug, info, warn or error", o.logLevel)
	}
	for _, d := range []struct {
		name           string
		d, least, most time.Duration
	}{
		{"ttl", o.ttl, time.Second, driver.MaxPeriod}, {"max-ttl", o.maxTTL, o.ttl, driver.MaxPeriod},
		{"max-wait", o.maxWait, time.Second, time.Hour}, {"dapr-max-hold", o.daprMaxHold, time.Second, driver.MaxPeriod},
		{"drain-delay", o.drainDelay, 0, 10 * time.Minute}, {"drain-timeout", o.drainTimeout, time.Millisecond, 10 * time.Minute},
	} {
		if d.d < d.least || d.d > d.most {
			return usage("--%s is %s, must be from %s to %s", d.name, d.d, d.least, d.most)
		}
	}
	o.stores = make(map[string]string)
	for _, text := range o.dapr {
		name, prefix, ok := strings.Cut(text, "=")
		if !ok || name == "" {
			return usage("--dapr is %q, must be NAME=PREFIX", text)
		}
		if _, twice := o.stores[name]; twice {
			return usage("--dapr names the store %q twice", name)
		}
		o.stores[name] = prefix
	}
	if err := o.paths(); err != nil {
		return err
	}
	if len(o.scopes) == 0 && os.Getenv(envScope) != "" {
		o.scopes = []string{os.Getenv(envScope)}
	}
	if o.demo && len(o.scopes) == 0 {
		o.scopes = []string{demo.Scope}
	}
	return nil
}

// paths parses the flags with paths, and refuses a path that is in use.
func (o *serveOptions) paths() error {
	taken := []string{"/v1", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1.0-alpha1", "/infra/locks", "/terraform"}
	take := func(flag, at string) error {
		if at == "/" || !strings.HasPrefix(at, "/") || path.Clean(at) != at || strings.ContainsFunc(at, func(r rune) bool {
			return r <= ' ' || r > '~' || strings.ContainsRune("%?#{}\\", r)
		}) {
			return usage("--%s has the path %q, must be like /locks, without a slash at the end", flag, at)
		}
		for _, other := range taken {
			if at == other || strings.HasPrefix(at, other+"/") || strings.HasPrefix(other, at+"/") {
				return usage("--%s has the path %q, which %q already has", flag, at, other)
			}
		}
		taken = append(taken, at)
		return nil
	}
	o.below = nil
	for _, f := range []struct {
		flag   string
		values []string
	}{{"dapr-alpha2", o.daprAlpha2}, {"dapr-alpha2-stream", o.daprStream}} {
		for _, text := range f.values {
			at, prefix, ok := strings.Cut(text, "=")
			if !ok {
				return usage("--%s is %q, must be PATH=PREFIX", f.flag, text)
			}
			if err := take(f.flag, at); err != nil {
				return err
			}
			o.below = append(o.below, daprStore{at, prefix, f.flag == "dapr-alpha2-stream"})
		}
	}
	for _, at := range o.forrst {
		if err := take("forrst", at); err != nil {
			return err
		}
	}
	if o.set.Changed("dapr-max-hold") && len(o.daprAlpha2) == 0 {
		return usage("--dapr-max-hold needs --dapr-alpha2")
	}
	return nil
}

func (o *serveOptions) logger(w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(o.logLevel)) // checked
	opts := &slog.HandlerOptions{Level: level}
	if o.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// run serves until a signal comes.
func (o *serveOptions) run(cmd *cobra.Command) error {
	keepsPipes()
	ctx, second := stopSignals()
	if !o.demo {
		return o.serve(ctx, second, cmd)
	}
	world, end := context.WithCancel(context.Background())
	var err error
	demoErr := demo.Run(world, 0, func(url string) {
		defer end()
		o.server.url = url
		err = o.serve(ctx, second, cmd)
	})
	end()
	if demoErr != nil && err == nil {
		err = &exitError{exitFault, fmt.Errorf("demo: %w", demoErr)}
	}
	return err
}

// stopSignals returns a context that is cancelled at the first of INT, TERM and HUP, and one that is cancelled at the
// second. The cause of the second is an exitError.
func stopSignals() (first, second context.Context) {
	first, end := context.WithCancel(context.Background())
	second, kill := context.WithCancelCause(context.Background())
	caught := make(chan os.Signal, 2)
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signal.Notify(caught, s)
		}
	}
	go func() {
		<-caught
		end()
		n, _ := (<-caught).(syscall.Signal)
		kill(&exitError{code: exitSignal + int(n)})
	}()
	return first, second
}

// serving has the functions that close what "serve" has opened, in the order of opening.
type serving struct {
	closers []func(context.Context) error
}

func (s *serving) later(name string, end func(context.Context) error) {
	s.closers = append(s.closers, func(ctx context.Context) error {
		if err := end(ctx); err != nil && !errors.Is(err, redis.ErrClosed) {
			return fmt.Errorf("%s: %w", name, err)
		}
		return nil
	})
}

// close closes everything in reverse order.
func (s *serving) close(ctx context.Context) error {
	var errs []error
	for i := len(s.closers) - 1; i >= 0; i-- {
		errs = append(errs, s.closers[i](ctx))
	}
	return errors.Join(errs...)
}

// serve serves until first ends, and then shuts down gracefully, or at once when second ends.
func (o *serveOptions) serve(first, second context.Context, cmd *cobra.Command) (err error) {
	logger := o.logger(cmd.ErrOrStderr())
	var all serving
	ended := false
	defer func() {
		if !ended {
			ctx, cancel := context.WithTimeout(context.Background(), closePatience)
			defer cancel()
			_ = all.close(ctx)
		}
	}()
	h, err := o.open(&all, logger)
	if err != nil {
		return err
	}
	l, err := h.locks.Listen(o.listen)
	if err != nil {
		return listenProblem(err)
	}
	hs := lockserver.HTTPServer(h)
	hs.ErrorLog = slog.NewLogLogger(logger.Handler(), slog.LevelWarn)
	served := make(chan error, 1)
	go func() { served <- hs.Serve(l) }()
	fmt.Fprintf(cmd.OutOrStdout(), "export %s=%s\n", envServer, o.url(l.Addr()))
	logger.Info("serve: listening", "address", l.Addr().String(), "tls", o.listen.CertFile != "", "accounts", cmp.Or(o.accounts, "anyone"))
	select {
	case err := <-served:
		return &exitError{exitFault, err}
	case <-first.Done():
	}
	logger.Info("serve: shutting down", "delay", o.drainDelay, "timeout", o.drainTimeout)
	ended = true
	done := make(chan error, 1)
	go func() { done <- o.end(h, hs, &all) }()
	select {
	case err := <-done:
		if err != nil {
			return &exitError{exitFault, fmt.Errorf("shutdown failed: %w", err)}
		}
		logger.Info("serve: ended")
		return nil
	case <-second.Done():
		_ = hs.Close()
		return context.Cause(second)
	}
}

// end shuts down streams and waits first, then requests, then everything else.
func (o *serveOptions) end(h *handler, hs *http.Server, all *serving) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.drainDelay+o.drainTimeout)
	defer cancel()
	err := h.locks.Close(ctx)
	select {
	case <-time.After(o.drainDelay):
	case <-ctx.Done():
	}
	err = errors.Join(err, hs.Shutdown(ctx))
	if ctx.Err() != nil {
		_ = hs.Close()
	}
	return errors.Join(err, all.close(ctx))
}

// handler handles all requests: the Server, with what is mounted next to it.
type handler struct {
	http.Handler
	locks *lockserver.Server
}

// open opens the locks, asynq and the keeper, and returns the handler.
func (o *serveOptions) open(all *serving, logger *slog.Logger) (*handler, error) {
	s := o.server
	s.changed = func(flags string, err error) {
		if err != nil {
			logger.Error("serve: changed files are invalid; the previous contents stay in use", "flags", flags, "err", err)
			return
		}
		logger.Info("serve: reloaded changed files", "flags", flags)
	}
	redis, databases, err := s.databases(os.Getenv)
	if err != nil {
		return nil, err
	}
	tells, err := o.tell(all, redis, logger)
	if err != nil {
		return nil, err
	}
	session, err := s.open(os.Getenv, joblock.Config{
		TTL: o.ttl, MaxTTL: o.maxTTL, Holder: hostname() + ":" + strconv.Itoa(os.Getpid()) + " joblock serve", WatchForced: true, Logger: logger,
		Observer: tells.observer,
	})
	if err != nil {
		return nil, err
	}
	all.later("Redis", func(context.Context) error { return session.rdb.Close() })
	all.later("locks", session.Locker.Close)
	cfg := lockserver.Config{
		Locks: session.Locker, Authorize: lockserver.Anyone(), MaxWait: o.maxWait, MaxWaiting: o.maxWaiting, MaxWaitingEach: o.maxWaitingOne, MaxLocksEach: o.maxLocksOne,
		Rate: o.rate, Burst: o.burst, Store: session.store, CronScopes: o.scopes, Hosts: o.hosts, Redis: session.rdb, Logger: logger,
	}
	if o.accounts != "" {
		accounts, err := lockserver.OpenAccounts(o.accounts, logger)
		if err != nil {
			return nil, usage("--accounts: %w", err)
		}
		cfg.Authorize = accounts
	}
	for i, a := range databases {
		secure, err := s.tlsConfig(a)
		if err != nil {
			return nil, err
		}
		rdb := s.connect(a, secure, s.timeout)
		all.later("asynq "+a.name(), func(context.Context) error { return rdb.Close() })
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		cfg.Databases = append(cfg.Databases, lockserver.Database{Name: a.name(), Inspector: inspector})
		if i > 0 {
			continue // tasks are enqueued in the first database
		}
		jobs, err := handoff.NewClient(session.Locker, asynq.NewClientFromRedisClient(rdb), inspector, &handoff.Config{Logger: logger})
		if err != nil {
			return nil, err
		}
		all.later("jobs", jobs.Close)
		cfg.Jobs = jobs
	}
	if o.keeper {
		if err := startKeeper(all, session.Locker, cfg.Databases, logger); err != nil {
			return nil, err
		}
	}
	if err := o.measure(all, tells, &cfg); err != nil {
		return nil, err
	}
	locks, err := lockserver.New(cfg)
	if err != nil {
		return nil, usage("%w", err)
	}
	root, err := o.mount(locks)
	if err != nil {
		return nil, err
	}
	if err := o.listenMetrics(all, cfg.Metrics, logger); err != nil {
		return nil, err
	}
	logger.Info("serve: the locks are in Redis", "address", redis.name(), "prefix", s.prefix, "databases of asynq", len(databases), "keeper", o.keeper)
	return &handler{root, locks}, nil
}

func startKeeper(all *serving, locks *joblock.Locker, databases []lockserver.Database, logger *slog.Logger) error {
	cfg := &worker.Config{Logger: logger}
	for _, db := range databases[1:] {
		cfg.Inspectors = append(cfg.Inspectors, db.Inspector)
	}
	w, err := worker.New(locks, databases[0].Inspector, cfg)
	if err != nil {
		return err
	}
	all.later("keeper", w.Close)
	go func() {
		if err := w.RunKeeper(context.Background()); err != nil { // until Close
			logger.Error("serve: the keeper has ended", "err", err)
		}
	}()
	return nil
}

// mount returns the Server with the other handlers that the flags name.
func (o *serveOptions) mount(s *lockserver.Server) (http.Handler, error) {
	root := http.Handler(s)
	if o.pages {
		pages, err := s.Pages(lockserver.PagesConfig{})
		if err != nil {
			return nil, usage("%w", err)
		}
		root = pages.Root()
	}
	mounts := make(map[string]http.Handler) // at a path, or below one that ends with a slash
	if len(o.stores) > 0 {
		locks, err := compat.DaprAlpha1(s, o.stores)
		if err != nil {
			return nil, usage("%w", err)
		}
		mounts["/v1.0-alpha1/"] = locks
	}
	for _, at := range o.below {
		locks, err := compat.DaprAlpha2(s, compat.DaprAlpha2Config{Prefix: at.prefix, Stream: at.stream, MaxHold: o.daprMaxHold})
		if err != nil {
			return nil, usage("%w", err)
		}
		mounts[at.path+"/"] = http.StripPrefix(at.path, locks)
	}
	for _, at := range o.forrst {
		mounts[at] = compat.Forrst(s)
	}
	if o.saasignal {
		locks, err := compat.SaaSignal(s, "")
		if err != nil {
			return nil, usage("%w", err)
		}
		mounts["/infra/locks/"] = locks
	}
	if o.terraform {
		locks, err := compat.Terraform(s, "")
		if err != nil {
			return nil, usage("%w", err)
		}
		mounts["/terraform/"] = http.StripPrefix("/terraform", locks)
	}
	if len(mounts) == 0 {
		return root, nil
	}
	// An http.ServeMux would redirect unclean paths, and a client that follows would request another key.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for at, h := range mounts {
			if r.URL.Path == at || strings.HasSuffix(at, "/") && strings.HasPrefix(r.URL.Path, at) {
				h.ServeHTTP(w, r)
				return
			}
		}
		root.ServeHTTP(w, r)
	}), nil
}

// listenProblem returns the exit error for an error of Listen: a fault if the port is taken, otherwise wrong usage of the
// flags.
func listenProblem(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return &exitError{exitFault, err}
	}
	return usage("%w; see --listen, --cert, --key, --accounts and --insecure", err)
}

// url returns the URL of the server that listens at addr, as seen from this machine.
func (o *serveOptions) url(addr net.Addr) string {
	host, port, _ := net.SplitHostPort(o.listen.Address)
	if tcp, ok := addr.(*net.TCPAddr); ok {
		port = strconv.Itoa(tcp.Port)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	scheme := "http://"
	if o.listen.CertFile != "" {
		scheme = "https://"
	}
	return scheme + net.JoinHostPort(host, port)
}

// askReady asks the server at --listen whether it is ready.
func (o *serveOptions) askReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, o.server.timeout)
	defer cancel()
	at := o.url(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at+"/readyz", nil)
	if err != nil {
		return usage("--listen is %q, must be host:port", o.listen.Address)
	}
	transport := &http.Transport{
		// The certificate has the name by which clients know the server, not the name of this machine. The check sends no
		// secret, and its answer is only a status.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return &exitError{exitUnavailable, fmt.Errorf("no answer from the server at %s: %w", at, errors.Unwrap(err))}
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return &exitError{exitUnavailable, fmt.Errorf("the server at %s is not ready: %s", at, res.Status)}
	}
	return nil
}
