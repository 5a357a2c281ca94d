package measure

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/bench/internal/report"
)

// The cases of the section on lines.
const (
	lineEnqueue = "enqueue at the end of the line"
	lineRun     = "run, release, start the next"
)

// Titles of columns that Aims names.
const (
	columnLineCommands = "commands/job"
	columnLineScripts  = "server's count µs/job"
)

const (
	// lineParts is how many parts a measurement of a line has. The figures are medians of the parts: see README.md.
	lineParts = 10

	// fewestLines is how many sequences there are where the lines are long.
	fewestLines = 8
)

func lineSubject(waiting int) string { return fmt.Sprintf("%d wait", waiting) }

func (b *Bench) lines(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "lines",
		Title: "Sequences with short and with long lines",
		Note: fmt.Sprintf("What one job costs where so many wait in its sequence: its enqueue, with EnqueueMany, and its run, with concurrency %d. "+
			"%d jobs, in %d sequences where the lines are long, and otherwise in as many sequences as jobs. The server's count is of scripts, "+
			"asynq's own among them. Commands are all that the process sends. Rounds: %d.",
			jobConcurrency, b.Scale.LineRuns, fewestLines, b.Scale.Few()),
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
	keys := keysOf("line", n)
	if waiting > 100 {
		keys = keys[:fewestLines]
	}
	if err := k.enqueueLines(ctx, keys, waiting+1); err != nil {
		return err
	}

	var enqueued parts
	if err := enqueued.next(ctx, b, k, 0); err != nil {
		return err
	}
	per := n / lineParts
	for part := range lineParts {
		into := make([]string, per)
		for i := range into {
			into[i] = keys[(part*per+i)%len(keys)]
		}
		if err := errors.Join(k.enqueueLines(ctx, into, 1), enqueued.next(ctx, b, k, per)); err != nil {
			return err
		}
	}
	s.Add(lineEnqueue, lineSubject(waiting), enqueued.commands(), enqueued.scripts())

	var ran parts
	var started atomic.Int64
	reached := make(chan struct{}, lineParts)
	server, mux := k.server(unlocked, asynq.Config{}) // the tasks bring their locks themselves
	mux.HandleFunc(jobType, func(context.Context, *asynq.Task) error {
		if at := started.Add(1); at%int64(per) == 0 && at <= int64(per*lineParts) {
			reached <- struct{}{}
		}
		return nil
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
