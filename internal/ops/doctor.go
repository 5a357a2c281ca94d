package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// Severity says how much a Finding matters.
type Severity string

// The severities.
const (
	Well    Severity = "well"    // of a Probe only: nothing has to change
	Note    Severity = "note"    // good to know; nothing has to change
	Warning Severity = "warning" // weakens a guarantee in an event such as a restart or a failover, or delays something
	Fault   Severity = "fault"   // breaks locks, jobs or calls in everyday use
)

// Finding is one thing that Doctor found.
type Finding struct {
	Severity Severity `json:"severity"`
	Subject  string   `json:"subject"`        // "keeper", "cron", "asynq", "journal", or a subject of redisstore.Finding
	Node     string   `json:"node,omitempty"` // the server, the process or the scope
	Found    string   `json:"found"`
	Means    string   `json:"means"`
	Fix      string   `json:"fix"`
}

// Probe is one thing that Doctor checked.
type Probe struct {
	Status  Severity `json:"status"` // the worst Severity that was found
	Subject string   `json:"subject"`
	Node    string   `json:"node,omitempty"`
	Found   string   `json:"found"`
}

// Report is the result of Doctor. A subject that is not in Checks was not checked.
type Report struct {
	Safe     Safety    `json:"safe"`   // whether the servers keep locks safe
	Findings []Finding `json:"items"`  // what is wrong or good to know, the worst first
	Checks   []Probe   `json:"checks"` // everything that was checked, by subject, including what is well
}

const (
	// pausedLong is the age at which the pause of a cron job becomes a Warning: it may have been forgotten.
	pausedLong = 24 * time.Hour

	// sampled is the minimum number of entries of the index of jobs that Doctor reads to find the queues, if there are
	// that many.
	sampled = 1000
)

// Doctor looks for problems that endanger locks, jobs and cron jobs. It reports what to change, the worst first, and what
// is well. It checks the servers (redisstore.Check), the keepers, the databases of asynq, the longest lines of jobs, the
// cron jobs of Config.Scopes, and the last hour of the journal. If there are no Findings, nothing has to change.
//
// A check that could not be made is also a Finding. So an error means only that ctx has ended or the Locker is closed;
// the result then has what was found until then, and Report.Safe covers only that.
func (d *Desk) Doctor(ctx context.Context) (Report, error) {
	c := &checkup{Desk: d}
	looks := []func(context.Context) error{c.servers, c.keepers, c.databases, c.sequences, c.controls, c.cron, c.outboxes, c.journal, c.nothing}
	if viewerOf(ctx).Key != nil {
		looks = []func(context.Context) error{c.servers, c.journal, c.hidden}
	}
	for _, look := range looks {
		if err := look(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			return c.whole(), err
		}
	}
	return c.whole(), nil
}

// checkup is one call of Doctor.
type checkup struct {
	*Desk
	findings []Finding
	wells    []Probe
	keeper   Keeper
	used     bool           // anything of the toolkit was found, or could not be checked
	lines    jobLines       // the lines of the index entries that were read
	queues   map[string]int // how many index entries were read for each queue of jobs with locks
	sampled  bool           // the queues were read
	overdue  time.Duration  // how long the check of the first of these entries has been due
	late     bool           // there is a Finding that locks are checked late
	partly   bool           // the check of the servers began and was not completed
}

// hidden adds the Finding that not everything was checked, because the viewer may see only some keys.
func (c *checkup) hidden(context.Context) error {
	c.add(Note, "locks", "", "this caller may use only some keys: keepers, databases of asynq, cron jobs and the keys of others were left out",
		"whether something is wrong there is not known", "ask as a caller without prefixes")
	return nil
}

// add adds a Finding. It escapes the texts, because names from the store must not control a terminal.
func (c *checkup) add(s Severity, subject, node, found, means, fix string) {
	c.findings = append(c.findings, Finding{s, subject, node, visibleLines(found), visibleLines(means), visibleLines(fix)})
}

// worse compares Findings by severity: a Fault comes first.
func worse(a, b Finding) int {
	order := map[Severity]int{Fault: 0, Warning: 1, Note: 2}
	return cmp.Compare(order[a.Severity], order[b.Severity])
}

// unread adds the Finding that something could not be checked. It returns err if further checks would be useless.
func (c *checkup) unread(ctx context.Context, subject, node string, err error) error {
	if ctx.Err() != nil || errors.Is(err, joblock.ErrClosed) {
		return err
	}
	c.used = true
	why := strings.TrimPrefix(WhyUnread(err), "the journal could not be read: ") // the finding says that itself
	if Denied(err) {
		c.add(Note, subject, node, mayNot+why, "whether something is wrong there is not known", "run doctor as a user with that right")
		return nil
	}
	c.add(Fault, subject, node, couldNot+why, "whether something is wrong there is not known", "repair the connection, and run doctor again")
	return nil
}

// Unread reports whether f says that something could not be checked.
func (f Finding) Unread() bool {
	return strings.HasPrefix(f.Found, couldNot) || strings.HasPrefix(f.Found, mayNot)
}

const (
	couldNot = "could not be read: "
	mayNot   = "this user may not look at that: "
)

// WhyUnread returns the reason why a read failed. It leaves out that the outcome is unknown, which is alarming and does
// not matter for a read.
func WhyUnread(err error) string {
	text := err.Error()
	if _, why, ok := strings.Cut(text, strings.TrimPrefix(joblock.ErrUnavailable.Error(), "joblock: ")+": "); ok {
		return why
	}
	return text
}

// Denied reports whether err contains a Redis reply that denies the user access or a permission. It compares the text,
// because the error may have come through a lock server. err must not be nil.
func Denied(err error) bool {
	text := err.Error()
	return slices.ContainsFunc([]string{"NOPERM", "NOAUTH", "WRONGPASS", "invalid password"}, func(word string) bool { return strings.Contains(text, word) })
}

// well reports that subject is well, unless there is a Finding about it.
func (c *checkup) well(subject, node, found string) {
	if !slices.ContainsFunc(c.findings, func(f Finding) bool { return f.Subject == subject && (node == "" || f.Node == node || f.Node == "") }) {
		c.wells = append(c.wells, Probe{Well, subject, node, found})
	}
}

func (c *checkup) whole() Report {
	slices.SortStableFunc(c.findings, worse)
	all := Report{Findings: append([]Finding{}, c.findings...), Checks: append([]Probe{}, c.wells...)}
	for _, f := range c.findings {
		all.Checks = append(all.Checks, Probe{f.Severity, f.Subject, f.Node, f.Found})
	}
	if all.Safe = SafetyOf(all.Findings, all.Checks); c.partly && all.Safe.Word != SafeNo {
		all.Safe = Safety{Word: SafeUnknown, Because: "the look at the servers of the locks was cut short"}
	}
	slices.SortStableFunc(all.Checks, func(a, b Probe) int { return strings.Compare(a.Subject, b.Subject) })
	return all
}

func (c *checkup) servers(ctx context.Context) error {
	if c.cfg.Check == nil {
		return nil
	}
	c.partly = true
	report, err := c.cfg.Check(ctx)
	for _, f := range report {
		if f.Severity == redisstore.Well {
			c.wells = append(c.wells, Probe{Well, f.Subject, f.Node, f.Found})
			continue
		}
		c.add(Severity(f.Severity), f.Subject, f.Node, f.Found, f.Means, f.Fix)
	}
	if err != nil {
		if err := c.unread(ctx, "servers", "", err); err != nil {
			return err
		}
	}
	c.partly = false
	return nil
}

// keepers checks the keepers, and whether there are locks to keep.
func (c *checkup) keepers(ctx context.Context) error {
	var err error
	if c.keeper, err = c.Keeper(ctx); err != nil {
		return c.unread(ctx, "keeper", "", err)
	}
	c.used = c.used || len(c.keeper.Places) > 0
	if err := c.sample(ctx); err != nil {
		return c.unread(ctx, "index of jobs", "", err)
	}
	works := c.keeper.Works()
	if works == nil && len(c.queues) > 0 {
		fix := "start a process with a keeper (in Go: worker.Worker.RunKeeper); every worker may have one"
		found := "no keeper works, and jobs have locks"
		if slices.ContainsFunc(c.keeper.Places, func(p KeeperPlace) bool { return p.Works && p.DryRun }) {
			found, fix = "the only keepers that work have DryRun, and jobs have locks", "run one without DryRun"
		}
		if c.overdue > defaultEvery {
			found += fmt.Sprintf("; a check has been due for %s", length(c.overdue))
		}
		c.add(Fault, "keeper", "", found, "the lock of a job that is over is free only when its reservation ends, and a job that waits for longer than its reservation loses its lock", fix)
	}
	for _, p := range c.keeper.Places {
		if p.Works {
			c.place(p)
		}
	}
	// The index shows the real delay, whatever the keepers report.
	if works != nil && !c.late && c.overdue > 2*works.every()+2*workerstats.KeeperPeriod {
		c.add(Warning, "keeper", "", fmt.Sprintf("the check of a lock has been due for %s, and the keepers do not say that they are behind", length(c.overdue)),
			"locks of jobs that are over are freed later than every "+length(works.every()), "look at the log of the keepers; they may lack rights for a part of the index, or share a Redis with keepers of another version")
	}
	if works != nil && c.keeper.StandBy == 0 && c.keeper.working() == 1 && len(c.queues) > 0 {
		c.add(Note, "keeper", "", fmt.Sprintf("%s is the only keeper, and none stands by", works.Holder),
			"if that process ends, locks of jobs that are over stay until their reservations end, or until a process with a keeper starts", "run a keeper in every worker process (in Go: worker.Worker.RunKeeper)")
	}
	switch {
	case works != nil:
		c.well("keeper", "", works.Holder+" works, and keeps up")
	case len(c.queues) == 0:
		c.well("keeper", "", "none works, and no job has a lock")
	}
	return nil
}

// place checks the working keeper of one place.
func (c *checkup) place(p KeeperPlace) {
	now := c.keeper.Now.Time
	if p.Problem != "" {
		if age := now.Sub(p.Since.Time); age > 3*workerstats.KeeperPeriod {
			c.add(Note, "keeper", p.Holder, p.Problem, "what the keeper does is not known", "look at the log of that process")
		}
		return
	}
	silent := p.Asked.IsZero() && now.Sub(p.Since.Time) > 2*p.Every.Duration()+2*workerstats.KeeperPeriod || !p.Asked.IsZero() && now.Sub(p.Asked.Time) > 2*p.Every.Duration()+2*workerstats.KeeperPeriod
	late := max(p.Late.Duration(), c.overdue)
	behind := p.Behind && late >= p.every() // a smaller delay breaks no guarantee, and passes
	c.late = c.late || silent || behind || now.Sub(p.At.Time) > 4*workerstats.KeeperPeriod
	switch {
	case now.Sub(p.At.Time) > 4*workerstats.KeeperPeriod:
		c.add(Warning, "keeper", p.Holder, fmt.Sprintf("its latest report is %s old", length(now.Sub(p.At.Time))), "the keeper may hang: it keeps its place as a keeper, but gets nothing else done", "look at the log of that process")
	case silent:
		c.add(Fault, "keeper", p.Holder, "for longer than two of its periods, the store has not answered its question which locks are due for a check", "locks of jobs that are over are not freed, and reservations not prolonged", "look at the log of that process, and at the store")
	case behind && p.Late.Duration() >= p.every():
		c.add(Warning, "keeper", p.Holder, fmt.Sprintf("it is behind: the latest check was late by %s", length(p.Late.Duration())), "locks of jobs that are over are freed later than every "+length(p.Every.Duration()), "if that lasts: a larger worker.KeeperConfig.MaxLoad, more MaxKeepers, or a longer Interval")
	case behind:
		c.add(Warning, "keeper", p.Holder, fmt.Sprintf("it is behind: more locks are due than it asks for at a time, one for %s", length(late)), "locks of jobs that are over are freed later than every "+length(p.Every.Duration()), "if that lasts: a larger worker.KeeperConfig.MaxLoad, more MaxKeepers, or a longer Interval")
	}
	if p.Unanswered > 0 && p.Checked > 0 && p.Unanswered*10 > p.Checked {
		c.add(Warning, "keeper", p.Holder, fmt.Sprintf("%d of %d checks had no answer", p.Unanswered, p.Checked), "asynq's Redis or the locks' store often does not answer that process", "look at the log of that process")
	}
	for _, queue := range p.Strangers {
		found := fmt.Sprintf("none of its %d databases has the queue %q, whose jobs have locks", p.Databases, queue)
		if p.Databases == 1 {
			found = fmt.Sprintf("its only database does not have the queue %q, whose jobs have locks", queue)
		}
		fix := "give worker.Config.Inspectors an Inspector for each database, in every process with a keeper"
		for _, db := range c.cfg.Databases {
			if has, err := call(context.Background(), db.Asynq.Queues); err == nil && slices.Contains(has, queue) {
				found += fmt.Sprintf("; the database %q has it", db.Name)
			}
		}
		c.add(Fault, "asynq", p.Holder, found, "the keeper leaves the locks of these jobs alone: they are free only when their reservations end", fix)
	}
	if first := c.keeper.Works(); first != nil && !p.DryRun && first.Problem == "" &&
		(p.Every != first.Every || p.Keepers != first.Keepers || p.Databases != first.Databases) {
		c.add(Warning, "keeper", p.Holder, fmt.Sprintf("its worker.Config differs from that of %s: Keeper.Interval %s and %s, Keeper.MaxKeepers %d and %d, %d and %d Inspectors",
			first.Holder, p.Every, first.Every, p.Keepers, first.Keepers, p.Databases, first.Databases),
			"how soon a lock is freed depends on which keeper checks it", "use the same worker.Config in all processes")
	}
}

// sample reads a part of the index of jobs, to find the queues of jobs that have locks, and how late the checks of their
// locks are.
func (c *checkup) sample(ctx context.Context) error {
	c.queues, c.lines = make(map[string]int), make(jobLines)
	read := 0
	var first, now time.Time // when the check of the first entry is due, and the store's clock
	for part := range c.in.Parts() {
		for req := (driver.EntriesRequest{Part: part, Count: indexPage}); read < sampled; {
			looked := !now.IsZero() // one record of a page is enough for the store's time
			page, found, err := c.index().page(ctx, "doctor", req, func(driver.Entry) bool {
				defer func() { looked = true }()
				return !looked
			})
			if err != nil {
				return err
			}
			for _, b := range found {
				now = b.record.Now
			}
			if !page.Due.IsZero() && (first.IsZero() || page.Due.Before(first)) {
				first = page.Due
			}
			for _, l := range page.Entries {
				if queue, _, ok := envelope.ParseJob(l.Job); ok {
					c.queues[queue]++
				}
				c.lines.note(l, "")
			}
			read += len(page.Entries)
			if req.Cursor = page.Next; req.Cursor == "" {
				break
			}
		}
	}
	c.sampled = true
	if now = cmp.Or(now, c.keeper.Now.Time); !first.IsZero() && !now.IsZero() {
		c.overdue = max(0, now.Sub(first))
	}
	return nil
}

// nothingTime is how long Doctor searches for any lock.
const nothingTime = time.Second

// nothing adds the Finding that nothing of the toolkit was found. Then the address or the prefix is probably mistyped,
// and the other checks found no fault only because there was nothing to check.
func (c *checkup) nothing(ctx context.Context) error {
	if c.used || len(c.queues) > 0 {
		return nil
	}
	within, cancel := context.WithTimeout(ctx, nothingTime)
	defer cancel()
	for _, err := range c.Locks(within, LocksQuery{Ended: true}) {
		if err != nil && within.Err() == nil {
			return c.unread(ctx, "locks", "", err)
		}
		if err == nil {
			return nil
		}
		break
	}
	c.add(Warning, "prefix", "", "no keeper, no scheduler and no lock was found", "nothing of the toolkit has worked here lately, or doctor looks at the wrong place", "check the address of Redis, the database and the prefix")
	return nil
}

func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ofThem returns a phrase that says how many queues have jobs with locks.
func ofThem(queues int) string {
	switch queues {
	case 0:
		return "no job has a lock"
	case 1:
		return "the jobs with locks are in one queue"
	}
	return fmt.Sprintf("the jobs with locks are in %d queues", queues)
}

// databases compares the queues of jobs that have locks with those of Config.Databases.
func (c *checkup) databases(ctx context.Context) error {
	if len(c.cfg.Databases) == 0 {
		if len(c.queues) > 0 {
			c.add(Note, "asynq", "", "no database of asynq is known here", "whether the jobs that have locks live was not looked at", "name asynq's Redis")
		}
		return nil
	}
	known := make(map[string]string) // the database of each queue
	for _, db := range c.cfg.Databases {
		queues, err := call(ctx, db.Asynq.Queues)
		if err != nil {
			if err := c.unread(ctx, "asynq", db.Name, err); err != nil {
				return err
			}
			return nil // the missing queues may be in that database
		}
		for _, q := range queues {
			if other, ok := known[q]; ok {
				c.add(Note, "asynq", db.Name, fmt.Sprintf("the queue %q is also in the database %q", q, other), "a job is looked up in both; a keeper that knows only one of them frees locks of jobs that live", "use different names, or see that every keeper knows all databases")
			}
			known[q] = db.Name
		}
	}
	var missing []string
	for _, q := range slices.Sorted(maps.Keys(c.queues)) {
		if _, ok := known[q]; !ok {
			missing = append(missing, fmt.Sprintf("%q", q))
		}
	}
	if len(missing) > 0 {
		c.add(Warning, "asynq", "", "jobs have locks, and no database known here has their queues: "+strings.Join(missing, ", "), "these queues were deleted, or are in a database that was not named", "name that database too")
	}
	found := fmt.Sprintf("%s in %s", many(len(known), "queue"), many(len(c.cfg.Databases), "database"))
	if c.sampled {
		found += "; " + ofThem(len(c.queues))
	}
	c.well("asynq", "", found)
	return nil
}
