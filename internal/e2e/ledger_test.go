//go:build servers

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// ledger is a file to which all processes of a test append what happens to the jobs of sequences. The file is outside
// of Redis, so a lost or repeated write of Redis cannot hide a mistake. Each entry is one write to a file that is open
// for appending. So the order of the entries is the order in which the processes wrote them, and no entry of a process
// that was killed is lost.
type ledger struct{ file *os.File }

func openLedger(path string) (*ledger, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &ledger{file}, nil
}

func (l *ledger) close() error { return l.file.Close() }

// A verb is what an entry tells.
type verb string

const (
	started verb = "start"  // a run of a job begins, under its lock
	done    verb = "done"   // the run has done the job
	failed  verb = "failed" // the run has failed, and the job is to run again
	lost    verb = "lost"   // the run has lost its lock, has stopped for that reason, and the job is to run again
	killing verb = "kill"   // the process is about to be killed; the entry has nothing else
	given   verb = "given"  // asynq is about to be made to believe that the job's worker is dead, true or not
)

// ledgerEntry is a line of the ledger.
type ledgerEntry struct {
	verb    verb
	process string
	key     string // of the sequence
	job     int    // its number in the sequence
	fence   int64
	at      time.Time // when it was written
}

const entryFormat = "%s %s %s %d %d %d\n"

func (l *ledger) write(e ledgerEntry) error {
	if e.key == "" {
		e.key = "-"
	}
	_, err := fmt.Fprintf(l.file, entryFormat, e.verb, e.process, e.key, e.job, e.fence, time.Now().UnixMicro())
	return err
}

func readLedger(t *testing.T, path string) (all []ledgerEntry) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var e ledgerEntry
		var at int64
		if _, err := fmt.Sscanf(lines.Text()+"\n", entryFormat, &e.verb, &e.process, &e.key, &e.job, &e.fence, &at); err != nil {
			t.Fatalf("line %d of the ledger, %q: %v", len(all)+1, lines.Text(), err)
		}
		e.at = time.UnixMicro(at)
		all = append(all, e)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// The rules of sequences, as complaints name them.
const (
	ruleOrder  = "order"         // a job starts when all jobs before it are done, and not after the start of a job behind
	ruleSingle = "one at a time" // no two jobs of a sequence run at once
	ruleFence  = "fence"         // each run of a sequence has a greater fence than all runs before it
	ruleOnce   = "once"          // a job that is done runs again only if asynq may take its process for dead
	ruleFree   = "uncharged"     // a retry is charged only for a failure, or if asynq may take the job's process for dead
	ruleLost   = "none lost"     // every job is done
	ruleSense  = "ledger"        // each entry belongs to a run that has started
)

// verdict is what a ledger shows.
type verdict struct {
	runs, again, failed, lost, kills int // again: runs of jobs that were done before
	charged                          int // runs of jobs that were charged more retries than they have failed
	complaints                       []complaint
}

type complaint struct{ rule, what string }

func (v *verdict) complain(rule, format string, args ...any) {
	v.complaints = append(v.complaints, complaint{rule, fmt.Sprintf(format, args...)})
}

// rules returns which rules were broken, each once.
func (v *verdict) rules() (all []string) {
	for _, c := range v.complaints {
		all = append(all, c.rule)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (v *verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d runs, of which %d failed, %d lost their lock, %d were charged for a killed process, and %d were of jobs that had been done; %d processes were killed",
		v.runs, v.failed, v.lost, v.charged, v.again, v.kills)
	for i, c := range v.complaints {
		if i == 10 {
			fmt.Fprintf(&b, "\n\tand %d more", len(v.complaints)-i)
			break
		}
		fmt.Fprintf(&b, "\n\t%s: %s", c.rule, c.what)
	}
	return b.String()
}

// sequenceBook is what a judge knows of one sequence.
type sequenceBook struct {
	next  int            // the first job that is not done
	doers map[int]string // the process that has done each job
	given map[int]bool   // asynq was made to believe that the job's worker is dead
	fence int64          // the greatest so far
	last  int            // the greatest number of a job that has started
	open  []ledgerEntry  // the starts of runs that have not ended. The last one is the current run
}

// judge reads a ledger of sequences with so many jobs each, numbered from 0.
func judge(entries []ledgerEntry, jobs map[string]int) *verdict {
	v := new(verdict)
	killed := map[string]bool{}
	books := map[string]*sequenceBook{}
	for key := range jobs {
		books[key] = &sequenceBook{doers: map[int]string{}, given: map[int]bool{}}
	}
	for i, e := range entries {
		if e.verb == killing {
			killed[e.process] = true
			v.kills++
			continue
		}
		book := books[e.key]
		if book == nil || e.job < 0 || e.job >= jobs[e.key] {
			v.complain(ruleSense, "entry %d is of no job: %+v", i, e)
			continue
		}
		switch e.verb {
		case started:
			book.start(v, e, killed)
		case given:
			book.given[e.job] = true
		case charged:
			if v.charged++; !book.given[e.job] {
				v.complain(ruleFree, "%+v, and no process of the job was killed", e)
			}
		default:
			book.end(v, e)
		}
	}
	for key, book := range books {
		if book.next < jobs[key] {
			v.complain(ruleLost, "%s: %d of %d jobs were done", key, book.next, jobs[key])
		}
		for _, run := range book.open {
			if !killed[run.process] {
				v.complain(ruleSense, "a run has no end: %+v", run)
			}
		}
	}
	return v
}

func (b *sequenceBook) start(v *verdict, e ledgerEntry, killed map[string]bool) {
	v.runs++
	if e.fence <= b.fence {
		v.complain(ruleFence, "%+v after fence %d", e, b.fence)
	}
	b.fence = max(b.fence, e.fence)
	doer, before := b.doers[e.job]
	if before {
		v.again++
	}
	switch {
	case before && !killed[doer] && !b.given[e.job]:
		v.complain(ruleOnce, "%+v, but %s has done the job and was not killed", e, doer)
	case e.job > b.next:
		v.complain(ruleOrder, "%+v before job %d was done", e, b.next)
	case e.job < b.last && !b.given[e.job]:
		v.complain(ruleOrder, "%+v after the start of job %d", e, b.last)
	}
	b.last = max(b.last, e.job)
	b.open = append(b.open, e)
}

// end books the end of a run. A run that was overtaken by another must not have gone on as if it had the lock. To have
// lost the lock, and to say so, breaks no rule: a process that stands still for longer than its lease cannot prevent it.
func (b *sequenceBook) end(v *verdict, e ledgerEntry) {
	at := slices.IndexFunc(b.open, func(run ledgerEntry) bool {
		return run.process == e.process && run.job == e.job && run.fence == e.fence
	})
	if at < 0 {
		v.complain(ruleSense, "an end without a start: %+v", e)
		return
	}
	if at != len(b.open)-1 && e.verb != lost {
		v.complain(ruleSingle, "%+v while %+v", e, b.open[len(b.open)-1])
	}
	b.open = slices.Delete(b.open, at, at+1)
	switch e.verb {
	case done:
		b.doers[e.job] = e.process
		for b.doers[b.next] != "" {
			b.next++
		}
	case failed:
		v.failed++
	case lost:
		v.lost++
	}
}

// Each rule is looked at: a ledger that breaks the rule is found out, and the ledger of what may happen is not.
func TestJudgeOfLedgers(t *testing.T) {
	run := func(process string, job int, fence int64, end verb) []ledgerEntry {
		return []ledgerEntry{
			{verb: started, process: process, key: "k", job: job, fence: fence}, {verb: end, process: process, key: "k", job: job, fence: fence},
		}
	}
	kill := ledgerEntry{verb: killing, process: "p"}
	all := func(parts ...[]ledgerEntry) []ledgerEntry { return slices.Concat(parts...) }
	begin := func(process string, job int, fence int64) []ledgerEntry { return run(process, job, fence, done)[:1] }
	end := func(process string, job int, fence int64, how verb) []ledgerEntry {
		return run(process, job, fence, how)[1:]
	}
	for name, tt := range map[string]struct {
		entries []ledgerEntry
		broken  []string
	}{
		"in order":                             {all(run("p", 0, 1, done), run("q", 1, 2, done)), nil},
		"a failure and its retry":              {all(run("p", 0, 1, failed), run("q", 0, 2, done), run("p", 1, 3, done)), nil},
		"the next overtakes a retry":           {all(run("p", 0, 1, failed), run("q", 1, 2, done), run("p", 0, 3, done)), []string{ruleOrder}},
		"out of order":                         {all(run("p", 1, 1, done), run("p", 0, 2, done)), []string{ruleOrder}},
		"two at once":                          {all(run("p", 0, 1, done), begin("p", 1, 2), begin("q", 1, 3), end("p", 1, 2, done), end("q", 1, 3, done)), []string{ruleSingle}},
		"two at once, out of order":            {all(begin("p", 0, 1), begin("q", 1, 2), end("p", 0, 1, done), end("q", 1, 2, done)), []string{ruleSingle, ruleOrder}},
		"the earlier one failed meanwhile":     {all(begin("p", 0, 1), begin("q", 0, 2), end("p", 0, 1, failed), end("q", 0, 2, done), run("q", 1, 3, done)), []string{ruleSingle}},
		"the earlier one had to stop":          {all(begin("p", 0, 1), begin("q", 0, 2), end("p", 0, 1, lost), end("q", 0, 2, done), run("q", 1, 3, done)), nil},
		"killed while it ran":                  {all(begin("p", 0, 1), []ledgerEntry{kill}, run("q", 0, 2, done), run("q", 1, 3, done)), nil},
		"killed, and goes on":                  {all(begin("p", 0, 1), []ledgerEntry{kill}, begin("q", 0, 2), end("p", 0, 1, done), end("q", 0, 2, done), run("q", 1, 3, done)), []string{ruleSingle}},
		"killed when it was done":              {all(run("p", 0, 1, done), []ledgerEntry{kill}, run("q", 0, 2, done), run("q", 1, 3, done)), nil},
		"killed when it was done, and is late": {all(run("p", 0, 1, done), []ledgerEntry{kill}, run("q", 1, 2, done), run("q", 0, 3, done)), []string{ruleOrder}},
		"asynq believes that it is dead":       {all(run("p", 0, 1, done), []ledgerEntry{{verb: given, process: "-", key: "k"}}, run("q", 0, 2, done), run("q", 1, 3, done)), nil},
		"charged":                              {all(begin("p", 0, 1), []ledgerEntry{{verb: charged, process: "p", key: "k"}}, end("p", 0, 1, done), run("q", 1, 2, done)), []string{ruleFree}},
		"charged for a dead process":           {all([]ledgerEntry{{verb: given, process: "-", key: "k"}}, begin("p", 0, 1), []ledgerEntry{{verb: charged, process: "p", key: "k"}}, end("p", 0, 1, done), run("q", 1, 2, done)), nil},
		"twice for no reason":                  {all(run("p", 0, 1, done), run("q", 0, 2, done), run("q", 1, 3, done)), []string{ruleOnce}},
		"twice, and killed afterwards":         {all(run("p", 0, 1, done), run("q", 0, 2, done), run("q", 1, 3, done), []ledgerEntry{kill}), []string{ruleOnce}},
		"the same fence":                       {all(run("p", 0, 1, done), run("p", 1, 1, done)), []string{ruleFence}},
		"lost":                                 {run("p", 0, 1, done), []string{ruleLost}},
		"given up":                             {all(run("p", 0, 1, done), run("p", 1, 2, failed)), []string{ruleLost}},
		"killed, and lost":                     {all(run("p", 0, 1, done), begin("p", 1, 2), []ledgerEntry{kill}), []string{ruleLost}},
		"without an end":                       {all(run("p", 0, 1, done), begin("p", 1, 2), run("q", 1, 3, done)), []string{ruleSense}},
		"without a start":                      {all(run("p", 0, 1, done), end("p", 1, 2, done), run("p", 1, 2, done)), []string{ruleSense}},
		"of no job":                            {all(run("p", 0, 1, done), run("p", 1, 2, done), run("p", 2, 3, done)), []string{ruleSense}},
	} {
		t.Run(name, func(t *testing.T) {
			v := judge(tt.entries, map[string]int{"k": 2})
			slices.Sort(tt.broken)
			if got := v.rules(); !slices.Equal(got, tt.broken) {
				t.Errorf("broken are %q, want %q\n%s", got, tt.broken, v)
			}
		})
	}
}
