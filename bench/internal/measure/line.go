package measure

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/handoff"
)

// lineRun is the only case of the section on lines.
const lineRun = "a job runs, and another one lines up"

// Titles of columns that Aims names.
const (
	columnLineCommands = "commands/job"
	columnLineScripts  = "server's count µs/job"
)

const (
	// lineParts is how many parts a measurement of a line has. The figures are medians of the parts: see README.md.
	lineParts = 10

	// lineKeys is how many sequences there are.
	lineKeys = 8
)

func lineSubject(waiting int) string { return fmt.Sprintf("%d wait", waiting) }

func (b *Bench) lines(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "lines",
		Title: "Sequences with short and with long lines",
		Note: fmt.Sprintf("What one job costs where so many wait in its sequence. %d sequences, concurrency %d, and %d jobs, each of which enqueues another one "+
			"at the end of its own line: EnqueueInSequence, resume, run, release, and start the next. The server's count is of scripts, asynq's own among "+
			"them. Commands are all that the process sends. Rounds: %d.", lineKeys, jobConcurrency, b.Scale.LineRuns, b.Scale.Few()),
		Base: lineSubject(b.Scale.Lines[0]),
		Columns: []report.Column{
			{Title: columnLineCommands, Digits: 2, Ratio: true},
			{Title: columnLineScripts, Digits: 1, Ratio: true},
		},
	}
	b.say("%s", s.Name)
	return s, eachRound(ctx, b, b.Scale.Few(), b.Scale.Lines, func(_ int, waiting int) error {
		return b.lineRound(ctx, s, waiting)
	})
}

func (b *Bench) lineRound(ctx context.Context, s *report.Section, waiting int) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	k, err := b.newJobKit()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	n := b.Scale.LineRuns
	if err := k.enqueueLines(ctx, keysOf("line", lineKeys), waiting+1); err != nil {
		return err
	}
	per := n / lineParts
	var ran parts
	var started atomic.Int64
	reached := make(chan struct{}, lineParts)
	server, mux := k.server(unlocked, asynq.Config{}) // the tasks bring their locks themselves
	mux.HandleFunc(jobType, func(ctx context.Context, task *asynq.Task) error {
		at := started.Add(1)
		if at > int64(per*lineParts) {
			return nil
		}
		if at%int64(per) == 0 {
			reached <- struct{}{}
		}
		_, err := k.jobs.EnqueueInSequence(ctx, handoff.Sequence{Key: string(task.Payload())}, asynq.NewTask(jobType, task.Payload()))
		return err
	})
	if err := ran.next(ctx, b, k, 0); err != nil {
		return err
	}
	if err := server.Start(mux); err != nil {
		return err
	}
	defer server.Shutdown()
	for range lineParts {
		before := started.Load()
		select {
		case <-reached:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d jobs were run: %w", before, n, context.Cause(ctx))
		}
		if err := ran.next(ctx, b, k, per); err != nil {
			return err
		}
	}
	s.Add(lineRun, lineSubject(waiting), ran.commands(), ran.scripts())
	return nil
}

// parts is what the parts of a measurement have cost, per job.
type parts struct {
	usage      usage
	sent       int64
	sends, all []float64
}

// next ends a part of so many jobs, and begins another one. The first call only begins one.
func (p *parts) next(ctx context.Context, b *Bench, k *jobKit, jobs int) error {
	now, sent, err := usage{}, k.wire.Count().Commands, error(nil)
	if now, err = used(ctx, b.Server); err != nil {
		return err
	}
	if jobs > 0 {
		p.sends = append(p.sends, float64(sent-p.sent)/float64(jobs))
		p.all = append(p.all, micros(now.since(p.usage, "evalsha").calls.Time)/float64(jobs))
	}
	p.usage, p.sent = now, sent
	return nil
}

func (p *parts) commands() float64 { return report.Quantile(p.sends, 0.5) }
func (p *parts) scripts() float64  { return report.Quantile(p.all, 0.5) }
