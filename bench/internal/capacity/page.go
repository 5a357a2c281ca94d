package capacity

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// A page has the model's tables between lines such as these. What is between them is written by Fill.
//
//	<!-- capacity -jobs 50 -workers 2 -->
//	<!-- end -->
//
// In place of the flags, "costs" stands for the table of the costs.
const (
	opening = "<!-- capacity "
	closing = "<!-- end -->"
)

// Fill returns the page with all tables written anew. Lines that do not fit together are an error.
func Fill(c Costs, page string) (string, error) {
	var out strings.Builder
	inside := false
	for line := range strings.Lines(page) {
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, opening):
			if inside {
				return "", fmt.Errorf("%q comes before the end of the table above", bare)
			}
			inside = true
			out.WriteString(line)
			text, err := tableOf(c, strings.TrimSuffix(strings.TrimPrefix(bare, opening), " -->"))
			if err != nil {
				return "", fmt.Errorf("%q: %w", bare, err)
			}
			out.WriteString("\n" + text + "\n")
		case bare == closing:
			if !inside {
				return "", fmt.Errorf("%q ends nothing", bare)
			}
			inside = false
			out.WriteString(line)
		case !inside:
			out.WriteString(line)
		}
	}
	if inside {
		return "", fmt.Errorf("a table has no %q", closing)
	}
	return out.String(), nil
}

func tableOf(c Costs, args string) (string, error) {
	if args == "costs" {
		return c.Table(), nil
	}
	flags := flag.NewFlagSet("capacity", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var l Load
	l.Flags(flags)
	if err := flags.Parse(strings.Fields(args)); err != nil {
		return "", err
	}
	l = l.WithDefaults(c)
	if err := l.Check(); err != nil {
		return "", err
	}
	var b strings.Builder
	err := Predict(c, l).Table(&b, l)
	return b.String(), err
}

// Table returns the costs as tables in Markdown.
func (c Costs) Table() string {
	rows := [][]string{{"", "commands", "round trips", "server CPU µs", "bytes in", "bytes out", "asynq: commands", "asynq: server CPU µs", "own CPU µs"}}
	for _, op := range []struct {
		name string
		cost Cost
	}{
		{"acquire and release", c.Pair},
		{"renew a lease", c.Renewal},
		{"pass a lock to a waiter", c.Handover},
		{"a waiter asks", c.Poll},
		{"enqueue a job with its lock", c.Enqueue},
		{"run the job: resume, release", c.Job},
		{"check a parked lock", c.Check},
		{"ask which locks are due", c.Ask},
		{"a tick: each node", c.TickRead},
		{"the node that executes, more", c.Tick},
		{"an asynq server, per second", c.WorkerOwn},
	} {
		p, q := op.cost.Locks, op.cost.Asynq
		rows = append(rows, []string{
			op.name, small(p.Commands), small(p.Turns), small(p.Server), small(p.In), small(p.Out),
			small(q.Commands), small(q.Server), small(op.cost.Own),
		})
	}
	memory := [][]string{{"memory of a server", "bytes"}}
	for _, m := range []struct {
		name  string
		bytes float64
	}{
		{"a held lock", c.Memory.Held}, {"a parked lock, with its entry in the index", c.Memory.Parked},
		{"its task in asynq", c.Memory.Task}, {"a lock that was released", c.Memory.Released},
		{"a waiter", c.Memory.Waiter}, {"a cron entry", c.Memory.Ledger}, {"a connection in use", c.Memory.Busy}, {"an idle connection", c.Memory.Idle},
	} {
		memory = append(memory, []string{m.name, thousands(m.bytes)})
	}
	return fmt.Sprintf("Runs: %d; %s; %s.\nA bare `SET` takes the server %s µs when it comes alone, and %s µs on a busy server.\n\n",
		c.Runs, c.Server, c.Machine, small(c.Floor.Alone), small(c.Floor.Crowded)) + markdown(rows) + "\n" + markdown(memory)
}

// small writes a number with two digits that count.
func small(x float64) string {
	switch {
	case x < 0.0005:
		return "0"
	case x < 0.01:
		return fmt.Sprintf("%.4f", x)
	case x < 1:
		return fmt.Sprintf("%.2f", x)
	case x < 10:
		return fmt.Sprintf("%.1f", x)
	}
	return thousands(x)
}
