//go:build linux

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/worker"
)

// onCallPage is the page whose commands and outputs the tests hold to the truth. With envWrite set, the tests write the
// outputs into the page.
const (
	onCallPage = "../../../../docs/on-call.md"
	envWrite   = "JOBLOCK_WRITE_ON_CALL"
)

// scene is a situation of the page, made for real: a Redis of its own, and processes.
type scene struct {
	*place
	asynq  *asynq.Inspector
	client *asynq.Client
	sender *handoff.Client
	steps  []step
	at     int               // the next step
	actual map[string]string // what stands in this run for a volatile text of the page
}

// step is a command of the page with its output.
type step struct {
	first, last int // the lines of the page: the command, and the line after the output
	command     string
	output      []string
}

// newScene returns the situation under a heading of the page.
func newScene(t *testing.T, heading string) *scene {
	t.Helper()
	server := redistest.Start(t, "--appendonly", "yes")
	p := &place{T: t, redis: server, prefix: keyspace.DefaultPrefix}
	p.locks = p.holder("web1:71")
	rdb := server.Client(t)
	s := &scene{place: p, asynq: asynq.NewInspectorFromRedisClient(rdb), client: asynq.NewClientFromRedisClient(rdb), actual: map[string]string{}}
	var err error
	if s.sender, err = handoff.NewClient(p.locks, s.client, s.asynq, &handoff.Config{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.sender.Close(context.Background()) })
	if s.steps = stepsOf(t, heading); len(s.steps) == 0 {
		t.Fatalf("the page has no commands under %q", heading)
	}
	return s
}

// holder returns a Locker whose locks show this label.
func (p *place) holder(label string) *joblock.Locker {
	p.Helper()
	locks, err := joblock.New(testkit.Must(redisstore.New(p.redis.Client(p.T), &redisstore.Config{Prefix: p.prefix})),
		&joblock.Config{Holder: label, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = locks.Close(context.Background()) })
	return locks
}

// stepsOf returns the commands under a heading of the page.
func stepsOf(t *testing.T, heading string) (steps []step) {
	t.Helper()
	in, block := false, false
	for i, line := range pageLines(t) {
		switch {
		case strings.HasPrefix(line, "## "):
			in = line == "## "+heading
		case !in:
		case strings.HasPrefix(line, "```"):
			if block && len(steps) > 0 {
				steps[len(steps)-1].last = i
			}
			block = line == "```console"
		case block && strings.HasPrefix(line, "$ "):
			if n := len(steps); n > 0 && steps[n-1].last == 0 {
				steps[n-1].last = i
			}
			steps = append(steps, step{first: i, command: strings.TrimPrefix(line, "$ ")})
		case block:
			steps[len(steps)-1].output = append(steps[len(steps)-1].output, line)
		}
	}
	return steps
}

func pageLines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(onCallPage)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// next runs the next command of the page, and holds its output against the page. The error output comes after
// the standard output, as the page has it.
func (s *scene) next() {
	s.Helper()
	if s.at == len(s.steps) {
		s.Fatal("the page has no further command")
	}
	st := &s.steps[s.at]
	s.at++
	s.finish(st, s.bash(s.inThisRun(st.command)))
}

// begin starts the next command of the page. The function that begin returns waits for its end, and holds its
// output against the page.
func (s *scene) begin() (finish func()) {
	s.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.next()
	}()
	return func() { <-done }
}

// finish runs a command of the page.
func (s *scene) finish(st *step, cmd *exec.Cmd) {
	s.Helper()
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.Fatalf("%s: %v", st.command, err)
	}
	text := strings.TrimSuffix(string(out), "\n")
	got := []string{}
	if text != "" {
		got = strings.Split(s.named(text), "\n")
	}
	s.learn(st.output, got)
	if os.Getenv(envWrite) != "" {
		st.output = got
		return
	}
	want, is := s.normal(st.output), s.normal(got)
	if !slices.Equal(want, is) {
		s.Errorf("%s\nprints\n%s\n\nthe page %s has\n%s\n\nnormalised:\n%s\n\nand\n%s\n\n"+
			"If the new output is right, run this test with "+envWrite+"=1, which writes the page.", st.command, strings.Join(got, "\n"), onCallPage,
			strings.Join(st.output, "\n"), strings.Join(is, "\n"), strings.Join(want, "\n"))
	}
}

// runs waits until a command runs under the lock with this fence, and is notified of a forced release at once.
func (s *scene) runs(fence int64) {
	s.Helper()
	mark := fmt.Appendf(nil, "JOBLOCK_FENCE=%d\x00", fence)
	s.until("the command runs", func() bool {
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		return slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && bytes.Contains(text, mark)
		})
	})
	s.until("joblock listens for forced releases", func() bool { return hears(s.T, s.redis.Addr(), s.prefix) })
}

// bash prepares a command line, in which "joblock" is this program.
func (s *scene) bash(line string) *exec.Cmd {
	s.Helper()
	cmd := exec.Command("/bin/bash", "-c", line)
	file, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	bin := s.TempDir()
	if err := os.Symlink(file, bin+"/joblock"); err != nil {
		s.Fatal(err)
	}
	cmd.Env = append(os.Environ(), envAs+"=1", envRedis+"=redis://"+s.redis.Addr(), "PATH="+bin+":"+os.Getenv("PATH"), "SUDO_USER=", envScope+"=", "NO_COLOR=1", "GORACE=atexit_sleep_ms=0", envHolder+"=")
	return cmd
}

// end checks that no command is left, and writes the page if asked to.
func (s *scene) end() {
	s.Helper()
	if s.at < len(s.steps) && !s.Failed() {
		s.Errorf("the test does not run %q", s.steps[s.at].command)
	}
	if os.Getenv(envWrite) == "" || s.Failed() {
		return
	}
	lines := pageLines(s.T)
	for _, st := range slices.Backward(s.steps) {
		lines = slices.Replace(lines, st.first, st.last, append([]string{"$ " + s.inThisRun(st.command)}, st.output...)...)
	}
	if err := os.WriteFile(onCallPage, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		s.Fatal(err)
	}
}

// named replaces what belongs to this machine by what the page has.
func (s *scene) named(text string) string {
	return strings.NewReplacer(s.redis.Addr(), "localhost:6379", operator(), "ann@ops1", hostname(), "ops1").Replace(text)
}

// volatile are the texts that differ from run to run, and what stands for them in a comparison. The first ones are also
// texts of the page that a later command may have: fences, and IDs.
var volatile = []struct {
	re   *regexp.Regexp
	mark string
}{
	{regexp.MustCompile(`\b1[0-9]{15}\b`), "<fence>"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "<id>"},
	{regexp.MustCompile(`#[0-9a-f]{8}\b`), "<owner>"},
	{regexp.MustCompile(`\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z| UTC)?`), "<time>"},
	{regexp.MustCompile(`\b(\d\d:\d\d:\d\d)( UTC)?\b`), "<time>"},
	{regexp.MustCompile(`\b(\d+d\d\dh|\d+h\d\dm|\d+m\d\ds|\d+(\.\d+)?(s|ms|µs))(\d+(\.\d+)?s)?\b`), "<span>"},
	{regexp.MustCompile(`\b\d+ (ms|s|min|h)( \d+ (s|min))?\b`), "<span>"},
	{regexp.MustCompile(`The (lease of <span> began|last renewal of the lease was) <span> ago; (a renewal|one) is due`), "<renewal>"},
	{regexp.MustCompile(`\b1\d{12}-\d+\b`), "<record>"},
	{regexp.MustCompile(`\b([a-z]+-\d+)-1\d{9}\b`), "$1-<unix>"}, // the step of a task
	{regexp.MustCompile(`\b(ops1):\d+`), "$1:<pid>"},
	{regexp.MustCompile(` {2,}`), " "},
}

// normal replaces what differs from run to run.
func (s *scene) normal(lines []string) []string {
	out := make([]string, len(lines))
	for i, line := range lines {
		for _, v := range volatile {
			line = v.re.ReplaceAllString(line, v.mark)
		}
		out[i] = strings.TrimRight(line, " ")
	}
	return out
}

// learn finds what stands in this run for the fences and IDs of the page.
func (s *scene) learn(page, run []string) {
	if fences := volatile[0].re.FindAllString(strings.Join(run, "\n"), -1); len(fences) > 0 {
		s.actual["FENCE"] = fences[len(fences)-1] // for a page whose outputs were never written
	}
	for _, v := range volatile[:2] {
		of := func(lines []string) []string { return v.re.FindAllString(strings.Join(lines, "\n"), -1) }
		theirs, ours := of(page), of(run)
		if len(theirs) != len(ours) {
			continue
		}
		for i, text := range theirs {
			s.actual[text] = ours[i]
		}
	}
}

// inThisRun returns a command of the page with the fences and IDs of this run.
func (s *scene) inThisRun(command string) string {
	for page, run := range s.actual {
		command = strings.ReplaceAll(command, page, run)
	}
	return command
}

// asRole is the first argument of a process that is part of a scene. The second argument is a roleConfig as JSON.
const asRole = "test-role"

// The specs of the cron jobs of the role "cron".
const (
	specInvoices = "CRON_TZ=Europe/Berlin 0 6 * * *"
	specRollup   = "CRON_TZ=Europe/Berlin 0 3 * * *"
)

// roleTable is a key in Redis without which the cron job "rollup" fails.
const roleTable = "sales_2026"

// roleConfig says what a process does.
type roleConfig struct {
	Role   string // "worker" or "cron"
	Redis  string
	Holder string // label of the process
}

// process starts a process of the scene, and waits until the process is ready. The process is killed at the
// end of the test.
func (s *scene) process(cfg roleConfig) *exec.Cmd {
	s.Helper()
	cfg.Redis = s.redis.Addr()
	text, err := json.Marshal(cfg)
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", asRole, string(text))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	ready := make([]byte, 5)
	if _, err := out.Read(ready); err != nil {
		s.Fatalf("the %s did not start: %v", cfg.Role, err)
	}
	return cmd
}

// playRole is the main function of a process of a scene. The process ends in good order at TERM.
func playRole(text string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	var cfg roleConfig
	fail(json.Unmarshal([]byte(text), &cfg))
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	quiet := slog.New(slog.DiscardHandler)
	rdb := redis.NewClient(&redis.Options{Addr: cfg.Redis})
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Holder: cfg.Holder, Logger: quiet})
	fail(err)
	switch cfg.Role {
	case "worker":
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		w, err := worker.New(locks, inspector, &worker.Config{Logger: quiet})
		fail(err)
		mux := asynq.NewServeMux()
		mux.Use(w.Middleware)
		mux.HandleFunc("export", func(ctx context.Context, _ *asynq.Task) error { // hangs
			<-ctx.Done()
			return ctx.Err()
		})
		mux.HandleFunc("webhook", func(_ context.Context, task *asynq.Task) error {
			if string(task.Payload()) == "bad" {
				return fmt.Errorf("the customer's server answers 410 Gone: %w", asynq.SkipRetry)
			}
			return nil
		})
		server := asynq.NewServerFromRedisClient(rdb, w.Configure(asynq.Config{
			Queues: map[string]int{"exports": 1, "webhooks": 1}, Concurrency: 4, LogLevel: asynq.FatalLevel,
			TaskCheckInterval: 100 * time.Millisecond, ShutdownTimeout: time.Second,
		}))
		fail(server.Start(mux))
		go func() { fail(w.RunKeeper(ctx)) }()
		fmt.Println("ready")
		<-ctx.Done()
		server.Shutdown()
		closing, done := context.WithTimeout(context.Background(), 5*time.Second)
		defer done()
		_ = w.Close(closing)
		_ = locks.Close(closing)
	case "cron":
		s, err := scheduler.New(locks, &scheduler.Config{Scope: "shop", Node: cfg.Holder, Sync: time.Second, Logger: quiet})
		fail(err)
		fail(s.Func("invoices", specInvoices, func(context.Context) error { return nil }, scheduler.RunAtStart("1")))
		fail(s.Func("rollup", specRollup, func(ctx context.Context) error {
			if rdb.Exists(ctx, roleTable).Val() > 0 {
				return nil
			}
			return errors.New("relation \"sales_2026\" does not exist")
		}, scheduler.RunAtStart("1")))
		fmt.Println("ready")
		_ = s.Run(ctx)
		_ = locks.Close(context.Background())
	}
	os.Exit(0)
}
