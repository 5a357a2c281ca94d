package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/checkout"
	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// The subjects of the section on the command line.
const (
	noCommand      = "no command"
	lsCommand      = "joblock ls"
	explainCommand = "joblock explain"
	versionCommand = "joblock version"
)

// Titles of columns that Aims names.
const (
	columnFirstRow = "first row ms"
	columnWhole    = "command ms"
)

// lastPage is how long a server is busy, at most, with a page of a command that was stopped.
const lastPage = 5 * time.Millisecond

func operatorCase(w Walk) string { return walkCase(w, 0) }

func (b *Bench) operator(ctx context.Context) (s *report.Section, err error) {
	s = &report.Section{
		Name:  "operator",
		Title: "The command line among many keys",
		Note: "joblock only. A client sends PING every millisecond while somebody uses the command line on a server with many other keys. " +
			"ls lists all locks, and is stopped (SIGSTOP) half of the time. explain is started again and again, half of the time, each time for another lock. " +
			"The PINGs in the other half are those without a command. The server and the client of the PINGs share one core, and ls and explain have another one, as on a machine of their own. " +
			"First row: from the start of the process to its first line; command: to its end, without the time in which it is stopped. " +
			fmt.Sprintf("version only starts and ends. Rounds: %d.", b.Scale.Fewest()),
		Base: noCommand,
		Columns: []report.Column{
			{Title: "PING p50 µs", Ratio: true},
			{Title: columnPing99, Ratio: true},
			{Title: columnFirstRow, Digits: 1},
			{Title: columnWhole, Digits: 1},
		},
	}
	ctx, cancel := context.WithTimeout(ctx, walkPatience)
	defer cancel()
	scale := b.Scale.Walk
	b.say("%s, %s", s.Name, operatorCase(scale))
	temp, err := os.MkdirTemp("", "joblock-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	dir, err := checkout.Here(ctx)
	if err != nil {
		return nil, err
	}
	o := &operator{scale: scale, program: filepath.Join(temp, "joblock")}
	if err := checkout.BuildCommand(ctx, dir, o.program); err != nil {
		return nil, err
	}
	server, err := rig.Start(ctx, b.Program)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	o.url = "redis://" + server.Addr()
	if err := fillOthers(ctx, server, scale.Others); err != nil {
		return nil, err
	}
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { err = errors.Join(err, rdb.Close()) }()
	if err := parkMany(ctx, redisstore.New(rdb, nil), scale.Locks); err != nil {
		return nil, err
	}
	commands := []struct {
		subject string
		run     func(context.Context) (commandResult, error)
	}{{lsCommand, o.ls}, {explainCommand, o.explain}}
	for round := range b.Scale.Fewest() {
		for i := range commands {
			c := commands[(i+round)%len(commands)]
			var r commandResult
			without, with, err := pingDuring(ctx, server, &o.runs, func() (err error) {
				r, err = c.run(ctx)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.subject, err)
			}
			name := operatorCase(scale) + ", " + strings.TrimPrefix(c.subject, "joblock ")
			s.Add(name, noCommand, report.Quantile(without, 0.5), report.Quantile(without, 0.99), 0, 0)
			s.Add(name, c.subject, report.Quantile(with, 0.5), report.Quantile(with, 0.99), r.first, r.whole)
		}
		r, err := o.times(ctx, func(int) []string { return []string{"version"} })
		if err != nil {
			return nil, err
		}
		s.Add(startCase, versionCommand, 0, 0, r.first, r.whole)
	}
	return s, nil
}

const startCase = "start of the program"

// operator runs the command line.
type operator struct {
	scale        Walk
	program, url string
	runs         stretches // a command is running, and not stopped
}

// commandResult is how long a command took to its first line and to its end, in ms.
type commandResult struct{ first, whole float64 }

// command starts the program, calls began at its first line, and returns when the program has ended.
func (o *operator) command(ctx context.Context, args []string, began func(*os.Process)) (r commandResult, lines int, err error) {
	cmd := exec.CommandContext(ctx, o.program, args...)
	cmd.Env = append(os.Environ(), "JOBLOCK_REDIS="+o.url)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		return r, 0, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return r, 0, err
	}
	for text := bufio.NewReader(out); ; {
		_, err := text.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = cmd.Process.Kill()
			}
			break
		}
		if lines++; lines == 1 {
			r.first = millis(time.Since(start))
			began(cmd.Process)
		}
	}
	if err := cmd.Wait(); err != nil {
		return r, lines, fmt.Errorf("joblock %s: %w: %s", strings.Join(args, " "), err, said.String())
	}
	r.whole = millis(time.Since(start))
	return r, lines, nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// ls lists all locks. From its first row on the command is stopped half of the time.
func (o *operator) ls(ctx context.Context) (commandResult, error) {
	pause(ctx, o.scale.Slice)
	o.runs.begin()
	defer o.runs.end()
	ctx, ended := context.WithCancel(ctx)
	defer ended()
	stood := make(chan time.Duration, 1)
	r, lines, err := o.command(ctx, []string{"ls", "--output", "jsonl"}, func(p *os.Process) {
		go func() { stood <- o.halt(ctx, p) }()
	})
	ended()
	if lines > 0 {
		r.whole -= millis(<-stood)
	}
	if err == nil && lines < o.scale.Locks {
		err = fmt.Errorf("%d of %d locks were listed", lines, o.scale.Locks)
	}
	return r, err
}

// halt stops p for a slice, and lets p go on for a slice, until ctx or p has ended. It returns for how long p stood still.
func (o *operator) halt(ctx context.Context, p *os.Process) (stood time.Duration) {
	for {
		if pause(ctx, o.scale.Slice); ctx.Err() != nil {
			return stood
		}
		began := time.Now()
		if p.Signal(syscall.SIGSTOP) != nil {
			return stood
		}
		pause(ctx, lastPage)
		o.runs.end()
		pause(ctx, o.scale.Slice)
		if p.Signal(syscall.SIGCONT) != nil {
			return stood
		}
		o.runs.begin()
		stood += time.Since(began)
	}
}

// explain explains one lock after the other. After each slice of such commands there are none for a slice.
func (o *operator) explain(ctx context.Context) (commandResult, error) {
	return o.times(ctx, func(i int) []string {
		return []string{"explain", fmt.Sprintf("export:acct-%013d", i*7919%o.scale.Locks)}
	})
}

// times runs the command of argsOf once for each number below Walk.Commands, and returns the medians.
func (o *operator) times(ctx context.Context, argsOf func(i int) []string) (r commandResult, err error) {
	var first, whole []float64
	pause(ctx, o.scale.Slice)
	o.runs.begin()
	defer o.runs.end()
	stop := time.Now().Add(o.scale.Slice)
	for i := range o.scale.Commands {
		one, lines, err := o.command(ctx, argsOf(i), func(*os.Process) {})
		if err == nil && lines == 0 {
			err = fmt.Errorf("joblock %s has printed nothing", strings.Join(argsOf(i), " "))
		}
		if err != nil {
			return r, err
		}
		first, whole = append(first, one.first), append(whole, one.whole)
		if !time.Now().Before(stop) {
			o.runs.end()
			pause(ctx, o.scale.Slice)
			o.runs.begin()
			stop = time.Now().Add(o.scale.Slice)
		}
	}
	return commandResult{report.Quantile(first, 0.5), report.Quantile(whole, 0.5)}, nil
}
