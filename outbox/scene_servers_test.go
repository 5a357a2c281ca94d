//go:build servers

package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/outbox/pgxbox"
)

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
	roles["relay"] = func() int { return play(func(ctx context.Context, a *app) error { return a.box.Run(ctx) }) }
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
		err = errors.Join(err, a.p.Close(closing), a.db.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
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

// ownFile opens the file of this process in the directory of its scene: kind, and the process's id.
func ownFile(kind string) (*os.File, error) {
	name := filepath.Join(os.Getenv("JOBLOCK_OUTBOX_DIR"), fmt.Sprint(kind, os.Getpid()))
	return os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// files returns the names of the files of a kind.
func (s *scene) files(kind string) []string {
	s.t.Helper()
	return must(filepath.Glob(filepath.Join(s.dir, kind+"*")))(s.t)
}
