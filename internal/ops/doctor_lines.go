package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

const (
	// mostLines is how many lines Doctor checks: the longest of those in the part of the index that it has read.
	mostLines = 100

	// longLine is how many jobs may wait for a key without a Finding, the same as in the alert JoblockLineTooLong.
	longLine = 100
)

// sequences looks for lines of jobs that only grow: because the job in front has failed for good and halts its sequence,
// or because jobs arrive faster than they end.
func (c *checkup) sequences(ctx context.Context) error {
	var keys []string
	for key, line := range c.lines {
		if line.entries > 1 {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(c.lines[b].entries, c.lines[a].entries), cmp.Compare(a, b))
	})
	found, err := c.sequencesOf(ctx, keys[:min(len(keys), mostLines)], c.lines, c.keeper, false)
	if err != nil {
		return c.unread(ctx, "sequences", "", err)
	}
	var halted, long []Sequence
	jobs := 0 // how many jobs wait in halted sequences
	for _, s := range found {
		switch {
		case s.State == SequenceHalted && s.Waiting > 0:
			halted, jobs = append(halted, s), jobs+s.Waiting
		case s.Waiting > longLine:
			long = append(long, s)
		}
	}
	longest := func(a, b Sequence) int { return cmp.Compare(b.Waiting, a.Waiting) }
	slices.SortStableFunc(halted, longest)
	slices.SortStableFunc(long, longest)
	if n := len(halted); n > 0 {
		s := halted[0]
		text := fmt.Sprintf("the sequence %q has halted: its job %s failed for good at %s, and %s", s.Key, s.Job, moment(s.Since.Time), waitBehind(s.Waiting))
		if n > 1 {
			text += fmt.Sprintf("; %s, and %d jobs wait in all", haveHalted(n-1), jobs)
		}
		c.add(Warning, "sequences", "", text,
			"the jobs behind it do not run until an operator decides, and each further one, as of the ticks of a cron job, makes the line longer",
			"run the job again or skip it: joblock explain -- "+Shell(s.Key)+" has both commands, and joblock jobs sequences all that have halted")
	}
	if len(long) > 0 {
		s := long[0]
		text := fmt.Sprintf("%d wait for %q", s.Waiting, s.Key)
		if n := len(long) - 1; n > 0 {
			text += fmt.Sprintf(", and more than %d for %s", longLine, many(n, "other key"))
		}
		c.add(Warning, "sequences", "", text,
			"if the line grows, jobs come faster than they end, or what has the key does not end",
			"see joblock explain -- "+Shell(s.Key)+"; make the jobs faster or rarer, or bound the line (in Go: handoff.Sequence.MaxWaiting)")
	}
	return nil
}

func waitBehind(n int) string {
	if n == 1 {
		return "1 job waits behind it"
	}
	return fmt.Sprintf("%d jobs wait behind it", n)
}

func haveHalted(n int) string {
	if n == 1 {
		return "1 other has halted"
	}
	return fmt.Sprintf("%d others have halted", n)
}
