package ops

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/scheduler/spec"
)

// CronJob is the state of a cron job in the whole cluster. The fields are those of admin.Entry, which documents them.
type CronJob struct {
	Now      Time          `json:"now"` // the store's clock
	Scope    string        `json:"scope"`
	Name     string        `json:"name"`
	State    CronState     `json:"state"`
	Troubles []CronTrouble `json:"troubles,omitempty"` // none if the job is well

	Spec  string `json:"spec"`
	Zone  string `json:"zone,omitempty"`
	Words string `json:"words,omitempty"` // Spec in English

	// Policies are the options of the job in English, separated by semicolons: what happens to ticks that overlap or are
	// missed, and any bounds, retries and jitter.
	Policies string `json:"policies,omitempty"`

	Nodes  []string   `json:"nodes"` // the nodes that are up and have the job
	Since  Time       `json:"since,omitzero"`
	SpecBy string     `json:"spec_by,omitempty"` // the node whose spec is in force
	Former []CronSpec `json:"former,omitempty"`

	OtherSpecs    []CronOtherSpec `json:"other_specs,omitempty"` // of the nodes that are up
	DisagreeSince Time            `json:"disagree_since,omitzero"`

	Next      Time        `json:"next,omitzero"`
	Paused    bool        `json:"paused"`
	Pauses    []CronPause `json:"pauses,omitempty"`
	Resumed   *CronPause  `json:"resumed,omitempty"` // the end of the latest pause: Since is its time, By the operator
	Overdue   Time        `json:"overdue,omitzero"`
	Behind    Millis      `json:"behind_ms,omitzero"`
	Contested bool        `json:"contested,omitempty"`
	Problem   string      `json:"problem,omitempty"`

	// Overlaps is how many consecutive ticks were skipped as overlapped. OverlapsSince is the first of these ticks, if
	// there are several.
	Overlaps      int  `json:"overlaps,omitempty"`
	OverlapsSince Time `json:"overlaps_since,omitzero"`

	Waiting int      `json:"waiting"`
	InLine  int      `json:"in_line"`
	Latest  *CronRun `json:"latest,omitempty"` // nil: there was none

	// LastFailure is the latest recorded run that failed or was lost, even if later runs succeeded. Failures is how many
	// such runs are on record. FailingSince is when the first failure after the last success began; it is zero if the
	// latest result is a success.
	LastFailure  *CronRun `json:"last_failure,omitempty"`
	Failures     int      `json:"failures,omitempty"`
	FailingSince Time     `json:"failing_since,omitzero"`

	Running []CronRun    `json:"running,omitempty"`
	History []CronRun    `json:"history,omitempty"`
	Counts  admin.Counts `json:"counts"`

	Backfill *CronBackfill `json:"backfill,omitempty"`
}

// CronSpec is a spec that was in force until a time.
type CronSpec struct {
	Spec  string `json:"spec"`
	Until Time   `json:"until"`
}

// CronOtherSpec is a node that is up and whose spec is not the one in force.
type CronOtherSpec struct {
	Node  string `json:"node"`
	Spec  string `json:"spec"`
	Since Time   `json:"since"`
}

// String returns a sentence without a full stop.
func (o CronOtherSpec) String() string {
	return fmt.Sprintf("node %s has the spec %s, which is not in force, since %s", o.Node, o.Spec, moment(o.Since.Time))
}

// CronPause is a pause of a cron job, or of all cron jobs of the scope.
type CronPause struct {
	Since  Time   `json:"since"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	All    bool   `json:"all,omitempty"`
}

// CronRun is an execution of a cron job.
type CronRun struct {
	ID       string          `json:"id"` // scheduler.Tick.ID, also the ID of the task of a tick
	Tick     Time            `json:"tick"`
	Cause    scheduler.Cause `json:"cause"`
	State    scheduler.Kind  `json:"state"`
	Node     string          `json:"node"`
	Started  Time            `json:"started"`
	Ended    Time            `json:"ended,omitzero"`
	Late     Millis          `json:"late_ms"` // how long after Tick the run began; this includes the job's jitter
	Took     Millis          `json:"took_ms,omitzero"`
	Attempts int             `json:"attempts,omitempty"`
	Broken   int             `json:"broken,omitempty"` // earlier executions of the tick that were aborted
	Error    string          `json:"error,omitempty"`
	Overrun  Time            `json:"overrun,omitzero"` // when the node found that the function had not stopped when its context ended
}

// Well reports whether the run was successful. Enqueueing a task counts as success, however the task ends.
func (r CronRun) Well() bool {
	return r.State == scheduler.Done || r.State == scheduler.Enqueued
}

// Failed reports whether the run has failed, or was aborted too often.
func (r CronRun) Failed() bool {
	return r.State == scheduler.Failed || r.State == scheduler.Lost
}

// Triggered reports whether the run was triggered by an operator.
func (r CronRun) Triggered() bool { return r.Cause == scheduler.CauseTrigger }

// CronBackfill is a backfill of a cron job. The fields are those of admin.Backfill.
type CronBackfill struct {
	Number   int64 `json:"number"`
	From     Time  `json:"from"`
	To       Time  `json:"to"`
	Ticks    int   `json:"ticks"`
	Done     int   `json:"done"` // how many ticks have been executed, or have enqueued their tasks
	Failed   int   `json:"failed"`
	Lost     int   `json:"lost"`
	Upto     Time  `json:"upto,omitzero"`
	Asked    Time  `json:"asked"`
	Ended    Time  `json:"ended,omitzero"`
	Stopping bool  `json:"stopping,omitempty"`
}

// CronTick is a future tick. At is in the zone of the spec, with the zone's offset.
type CronTick struct {
	At   time.Time `json:"at"`
	Note string    `json:"note,omitempty"` // what a clock change does to the tick

	// Paused says that the job is paused: the tick is skipped unless the job is resumed by then.
	Paused bool `json:"paused,omitempty"`
}

// CronNode is a node of a scope that is up.
type CronNode struct {
	Now     Time   `json:"now"` // the store's clock
	Scope   string `json:"scope"`
	Name    string `json:"name"`
	Program string `json:"program,omitempty"` // the path of the main module
	Build   string `json:"build,omitempty"`   // the version or the revision that the program was built from
	Started Time   `json:"started"`
	Jobs    int    `json:"jobs"` // how many cron jobs the node has
}

// admin returns the Admin of a scope. The parameter by is the operator's name that pauses show.
func (d *Desk) admin(scope, by string) (*admin.Admin, error) {
	return admin.New(d.cfg.Locks, scope, by)
}

// CronJobs returns the cron jobs of a scope, sorted by name. Errors are those of admin.Admin.Entries, and
// joblock.ErrInvalid for a bad scope.
func (d *Desk) CronJobs(ctx context.Context, scope string) ([]CronJob, error) {
	a, err := d.admin(scope, "")
	if err != nil {
		return nil, err
	}
	now, err := d.cronTime(ctx, scope)
	if err != nil {
		return nil, err
	}
	entries, err := a.Entries(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]CronJob, len(entries))
	for i, e := range entries {
		all[i] = cronJob(scope, now, e)
	}
	return all, nil
}

// CronJob returns one cron job. Errors are those of admin.Admin.Entry.
func (d *Desk) CronJob(ctx context.Context, scope, name string) (CronJob, error) {
	a, err := d.admin(scope, "")
	if err != nil {
		return CronJob{}, err
	}
	now, err := d.cronTime(ctx, scope)
	if err != nil {
		return CronJob{}, err
	}
	e, err := a.Entry(ctx, name)
	if err != nil {
		return CronJob{}, err
	}
	return cronJob(scope, now, e), nil
}

// CronNextQuery says which ticks CronNext returns.
type CronNextQuery struct {
	Scope string `query:"scope"`
	Name  string `path:"name"`
	N     int    `query:"n" jsonschema:"minimum=1,maximum=1000"` // how many ticks, from 1 to 1,000; 0 means 10
}

// CronNext returns the next ticks of a cron job, paused or not: see CronTick.Paused. Errors are those of
// admin.Admin.NextTicks.
func (d *Desk) CronNext(ctx context.Context, q CronNextQuery) ([]CronTick, error) {
	a, err := d.admin(q.Scope, "")
	if err != nil {
		return nil, err
	}
	list, err := a.NextTicks(ctx, q.Name, cmp.Or(q.N, 10))
	if err != nil {
		return nil, err
	}
	e, err := a.Entry(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	ticks := cronTicks(list)
	for i := range ticks {
		ticks[i].Paused = e.Paused
	}
	return ticks, nil
}

// CronPlan explains a spec.
type CronPlan struct {
	Spec    string     `json:"spec"`
	Zone    string     `json:"zone"`
	Words   string     `json:"words"`
	Warning string     `json:"warning,omitempty"` // see spec.Spec.Warning
	Ticks   []CronTick `json:"ticks"`
}

// maxTicks is the largest number of ticks of a CronPlan, the same as of admin.Admin.NextTicks.
const maxTicks = 1000

// CronPreview returns the first n ticks of a spec after a time, independent of any cron job. The spec is in the given
// zone unless it names a zone itself. For a bad n the error matches joblock.ErrInvalid; an error about the spec says what
// is wrong with it.
func CronPreview(text string, zone *time.Location, after time.Time, n int) (CronPlan, error) {
	if n < 1 || n > maxTicks {
		return CronPlan{}, core.Invalid("cron next", "", "the number of ticks is %d, must be from 1 to %d", n, maxTicks)
	}
	s, err := spec.Parse(text, zone)
	if err != nil {
		return CronPlan{}, err
	}
	return CronPlan{Spec: s.String(), Zone: s.Zone().String(), Words: s.Words(), Warning: s.Warning(), Ticks: cronTicks(s.Forecast(after, n))}, nil
}

// CronNodes returns the nodes of a scope that are up. Errors are those of admin.Admin.Nodes.
func (d *Desk) CronNodes(ctx context.Context, scope string) ([]CronNode, error) {
	a, err := d.admin(scope, "")
	if err != nil {
		return nil, err
	}
	now, err := d.cronTime(ctx, scope)
	if err != nil {
		return nil, err
	}
	nodes, err := a.Nodes(ctx)
	all := make([]CronNode, len(nodes))
	for i, n := range nodes {
		all[i] = CronNode{Now: now, Scope: scope, Name: n.Name, Program: n.Program, Build: n.Build, Started: Time{n.Started}, Jobs: n.Jobs}
	}
	return all, err
}

// NoReason is recorded as the reason if the operator gave none.
const NoReason = "no reason given"

// PauseCron pauses a cron job. The reason becomes the note of the pause. If the job is already paused, a new reason
// replaces the note; with the same reason, or with NoReason, the result is Unchanged. Errors are those of
// admin.Admin.Pause, and ErrNotRecorded.
type PauseCron struct {
	Scope  string `query:"scope"`
	Name   string `path:"name"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// ResumeCron ends the pause of a cron job. Without such a pause the result is Unchanged. Errors are those of PauseCron.
type ResumeCron struct {
	Scope  string `query:"scope"`
	Name   string `path:"name"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// PauseAllCron pauses all cron jobs of a scope, including jobs that are already paused individually; see PauseCron.
type PauseAllCron struct {
	Scope  string `query:"scope"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// ResumeAllCron ends the pause of all cron jobs of a scope; see ResumeCron. A job that is paused individually stays
// paused.
type ResumeAllCron struct {
	Scope  string `query:"scope"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// TriggerCron requests one execution of a cron job. With Wait it waits until the execution ends, and returns the
// execution as ActionResult.Run, whatever its State. The record says OutcomeAsked, or how the execution ended if
// TriggerCron waited. With Config.Follow the record says OutcomeAsked first, and later how the execution ended. Errors
// are those of admin.Admin.Trigger, and ErrNotRecorded.
type TriggerCron struct {
	Scope  string `query:"scope"`
	Name   string `path:"name"`
	Wait   bool   // wait until the run ends
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// ForgetCron removes the record of a cron job that no node has any more. Errors are those of admin.Admin.Forget, and
// ErrNotRecorded.
type ForgetCron struct {
	Scope  string `query:"scope"`
	Name   string `path:"name"`
	Reason string `json:"reason"` // for other operators, from 1 to 256 bytes
}

// Verb implements Action.
func (PauseCron) Verb() string     { return ActCronPause }
func (ResumeCron) Verb() string    { return ActCronResume }
func (PauseAllCron) Verb() string  { return ActCronPauseAll }
func (ResumeAllCron) Verb() string { return ActCronResumeAll }
func (TriggerCron) Verb() string   { return ActCronTrigger }
func (ForgetCron) Verb() string    { return ActCronForget }

func (req PauseCron) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, req.Name, req.Reason)
	return c.pause(ctx, func(ctx context.Context, a *admin.Admin) error { return a.Pause(ctx, req.Name, req.Reason) })
}

func (req ResumeCron) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, req.Name, req.Reason)
	return c.resume(ctx, func(ctx context.Context, a *admin.Admin) error { return a.Resume(ctx, req.Name, req.Reason) })
}

func (req PauseAllCron) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, "", req.Reason)
	return c.pause(ctx, func(ctx context.Context, a *admin.Admin) error { return a.PauseAll(ctx, req.Reason) })
}

func (req ResumeAllCron) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, "", req.Reason)
	return c.resume(ctx, func(ctx context.Context, a *admin.Admin) error { return a.ResumeAll(ctx, req.Reason) })
}

func (req ForgetCron) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, req.Name, req.Reason)
	return c.do(ctx, func(ctx context.Context, a *admin.Admin, _ *ActionResult) error { return a.Forget(ctx, req.Name) })
}

// cronAction is an action on a cron job, or on all cron jobs of a scope.
type cronAction struct {
	d                         *Desk
	verb, scope, name, reason string
	all                       bool
}

func newCronAction(d *Desk, verb string, scope, name, reason string) *cronAction {
	return &cronAction{d, verb, scope, name, reason, verb == ActCronPauseAll || verb == ActCronResumeAll}
}

func (c *cronAction) check() error {
	if !c.all && c.name == "" {
		return core.Invalid(c.verb, "", "Name is empty, must be that of a cron job")
	}
	return c.d.who.check(c.verb, c.name, c.reason)
}

// do runs the action between two entries of the audit.
func (c *cronAction) do(ctx context.Context, do func(context.Context, *admin.Admin, *ActionResult) error) (acted ActionResult, err error) {
	if err := c.check(); err != nil {
		return acted, err
	}
	a, err := c.d.admin(c.scope, c.d.who.by)
	if err != nil {
		return acted, err
	}
	var got ActionResult
	acted, err = c.d.record(ctx, c.reason, AuditEntry{Action: c.verb, Scope: c.scope, Key: c.name}, nil, func(ctx context.Context) error {
		return do(ctx, a, &got)
	})
	acted.Run, acted.Ticks = got.Run, got.Ticks
	return acted, err
}

func (c *cronAction) pause(ctx context.Context, do func(context.Context, *admin.Admin) error) (ActionResult, error) {
	was, err := c.was(ctx)
	if err != nil {
		return ActionResult{}, err
	}
	if was != nil && (c.reason == NoReason || c.reason == was.Reason) {
		return ActionResult{Unchanged: true, Was: was}, nil
	}
	done, err := c.do(ctx, func(ctx context.Context, a *admin.Admin, _ *ActionResult) error { return do(ctx, a) })
	done.Was = was
	return done, err
}

func (c *cronAction) resume(ctx context.Context, do func(context.Context, *admin.Admin) error) (ActionResult, error) {
	was, err := c.was(ctx)
	if err != nil {
		return ActionResult{}, err
	}
	if was == nil {
		return ActionResult{Unchanged: true}, nil
	}
	done, err := c.do(ctx, func(ctx context.Context, a *admin.Admin, _ *ActionResult) error { return do(ctx, a) })
	done.Was = was
	return done, err
}

// was returns the present pause of the job, or of all jobs for an action on all of them; nil if there is none.
func (c *cronAction) was(ctx context.Context) (*CronPause, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	var pauses []CronPause
	if c.all {
		jobs, err := c.d.CronJobs(ctx, c.scope)
		if err != nil {
			return nil, err
		}
		if len(jobs) > 0 { // a scope without jobs shows no pause
			pauses = jobs[0].Pauses
		}
	} else {
		j, err := c.d.CronJob(ctx, c.scope, c.name)
		if err != nil {
			return nil, err
		}
		pauses = j.Pauses
	}
	for i := range pauses {
		if pauses[i].All == c.all {
			return &pauses[i], nil
		}
	}
	return nil, nil
}

func (req TriggerCron) perform(ctx context.Context, d *Desk) (ActionResult, error) {
	c := newCronAction(d, req.Verb(), req.Scope, req.Name, req.Reason)
	if req.Wait {
		return c.do(ctx, func(ctx context.Context, a *admin.Admin, acted *ActionResult) error {
			wait, err := a.Trigger(ctx, req.Name)
			if err != nil {
				return err
			}
			x, err := wait(ctx)
			if err != nil {
				return err
			}
			acted.Run = cronRun(x)
			return endOf(x)
		})
	}
	var end func(context.Context) (admin.Execution, error)
	acted, err := c.do(ctx, func(ctx context.Context, a *admin.Admin, _ *ActionResult) (err error) {
		if end, err = a.Trigger(ctx, req.Name); err != nil {
			return err
		}
		return &outcome{OutcomeAsked, ""}
	})
	if err == nil && d.cfg.Follow != nil {
		e := AuditEntry{Action: c.verb, Scope: req.Scope, Key: req.Name, By: d.who.by, From: d.who.from, Reason: req.Reason, Of: acted.Audit}
		if err := d.cfg.Follow(func(ctx context.Context) { c.follow(ctx, e, end) }); err != nil {
			c.unfollowed(e, "the end of the run is not awaited, and its record stays as it is", err)
			acted.Problems = append(acted.Problems, fmt.Sprintf("How the run ends will not be recorded: %s.", err))
		}
	}
	return acted, err
}

// endOf returns nil for an execution that is done, or an outcome that says how the execution ended.
func endOf(x admin.Execution) error {
	switch x.State {
	case scheduler.Done:
		return nil
	case scheduler.Enqueued:
		return &outcome{OutcomeAsked, "the run has enqueued its task, whose end is not known here"}
	}
	return &outcome{OutcomeFailed, fmt.Sprintf("the run has ended as %s: %s", x.State, x.Error)}
}

// followPause is the delay between retries while Redis does not answer.
const followPause = time.Second

// follow waits for the end of an execution, and then writes e with the outcome. If ctx ends first, follow writes nothing:
// the record keeps saying that the execution was requested.
func (c *cronAction) follow(ctx context.Context, e AuditEntry, end func(context.Context) (admin.Execution, error)) {
	x, err := end(ctx)
	for ; errors.Is(err, joblock.ErrUnavailable); x, err = end(ctx) {
		if sleep.For(ctx, followPause) != nil {
			break
		}
	}
	var is *outcome
	switch {
	case err == nil && !errors.As(endOf(x), &is):
		e.Outcome = OutcomeDone
	case err == nil:
		e.Outcome, e.Error = is.outcome, is.text
	case ctx.Err() != nil:
		c.unfollowed(e, "the end of the run is no longer awaited, and its record stays as it is", context.Cause(ctx))
		return
	default:
		e.Outcome, e.Error = OutcomeUnknown, err.Error()
	}
	for logged := false; ; logged = true {
		_, err := c.d.cfg.Audit.Write(ctx, e)
		if err == nil {
			return
		}
		if !logged {
			c.unfollowed(e, "how the run has ended cannot be recorded, and is tried again each second", err)
		}
		if sleep.For(ctx, followPause) != nil {
			c.unfollowed(e, "how the run has ended was not recorded", err)
			return
		}
	}
}

// unfollowed logs that the entry e about the end of an execution was not written.
func (c *cronAction) unfollowed(e AuditEntry, what string, err error) {
	if c.d.cfg.Logger != nil {
		c.d.cfg.Logger.Warn("joblock: cron trigger: "+what, "scope", e.Scope, "job", e.Key, "audit", e.Of, "ended", e.Outcome, "err", err)
	}
}

func cronJob(scope string, now Time, e admin.Entry) CronJob {
	j := CronJob{
		Now: now, State: stateOf(e), Troubles: troubles(e), Scope: scope, Name: e.Name, Spec: e.Spec, Zone: e.Zone, Words: e.Words, Policies: e.Policies, Nodes: append([]string{}, e.Nodes...), Since: Time{e.Since},
		Next: Time{e.Next}, Paused: e.Paused, Overdue: Time{e.Overdue}, Behind: Millis(e.Behind), Contested: e.Contested,
		Problem: e.Problem, Waiting: e.Waiting, InLine: e.InLine, Counts: e.Counts, SpecBy: e.SpecBy, DisagreeSince: Time{e.DisagreeSince},
		Overlaps: e.Overlaps, OverlapsSince: Time{e.OverlapsSince},
	}
	for _, o := range e.OtherSpecs {
		j.OtherSpecs = append(j.OtherSpecs, CronOtherSpec{o.Node, o.Spec, Time{o.Since}})
	}
	for _, f := range e.Former {
		j.Former = append(j.Former, CronSpec{f.Spec, Time{f.Until}})
	}
	for _, p := range e.Pauses {
		j.Pauses = append(j.Pauses, CronPause{Time{p.At}, p.By, p.Note, p.All})
	}
	if r := e.Resumed; r != nil {
		j.Resumed = &CronPause{Time{r.At}, r.By, r.Note, r.All}
	}
	if e.Latest.State != "" {
		j.Latest = cronRun(e.Latest)
	}
	for _, x := range e.Running {
		j.Running = append(j.Running, *cronRun(x))
	}
	for _, x := range e.History {
		j.History = append(j.History, *cronRun(x))
	}
	n, first := failedInARow(e)
	for x := range results(e) {
		if x.State == scheduler.Failed || x.State == scheduler.Lost {
			if j.Failures++; j.LastFailure == nil {
				j.LastFailure = cronRun(x)
			}
		}
	}
	if n > 0 {
		j.FailingSince = Time{first.Started}
	}
	if b := e.Backfill; b != nil {
		j.Backfill = &CronBackfill{
			Number: b.Number, From: Time{b.From}, To: Time{b.To}, Ticks: b.Ticks, Done: b.Done, Failed: b.Failed, Lost: b.Lost,
			Upto: Time{b.Upto}, Asked: Time{b.Asked}, Ended: Time{b.Ended}, Stopping: b.Stopping,
		}
	}
	return j
}

func cronRun(x admin.Execution) *CronRun {
	return &CronRun{
		ID: x.Tick.ID(), Late: Millis(max(0, x.Started.Sub(x.Tick.At))), Tick: Time{x.Tick.At}, Cause: x.Tick.Cause, State: x.State, Node: x.Node, Started: Time{x.Started}, Ended: Time{x.Ended},
		Took: Millis(x.Duration()), Attempts: x.Attempts, Broken: x.Tick.Broken, Error: x.Error, Overrun: Time{x.Overrun},
	}
}

func cronTicks(list []spec.Forecast) []CronTick {
	ticks := make([]CronTick, len(list))
	for i, f := range list {
		ticks[i] = CronTick{At: f.At, Note: f.Note}
	}
	return ticks
}

// cron checks the cron jobs and the nodes of Config.Scopes.
func (c *checkup) cron(ctx context.Context) error {
	scopes := c.cfg.Scopes
	if scopes == nil {
		var err error
		if scopes, err = c.CronScopes(ctx); err != nil {
			return c.unread(ctx, "cron", "", err)
		}
	}
	for _, scope := range scopes {
		jobs, err := c.CronJobs(ctx, scope)
		var nodes []CronNode
		if err == nil {
			nodes, err = c.CronNodes(ctx, scope)
		}
		if err != nil {
			if err := c.unread(ctx, "cron", scope, err); err != nil {
				return err
			}
			continue
		}
		now := c.keeper.Now.Time
		c.cronJobs(cmp.Or(now, time.Now()), scope, jobs)
		c.used = c.used || len(jobs)+len(nodes) > 0
		c.cronNodes(scope, len(jobs), nodes)
		if len(jobs)+len(nodes) == 0 {
			c.add(Note, "cron", scope, "no cron job and no node is known", "no scheduler has run in this scope in the last year, or the name of the scope is mistyped", "check the scope for which this program was started")
		}
		c.cronPause(cmp.Or(now, time.Now()), scope, jobs)
		if !slices.ContainsFunc(c.findings, func(f Finding) bool {
			return f.Subject == "cron" && (f.Node == scope || strings.HasPrefix(f.Node, scope+": "))
		}) {
			c.well("cron", scope, fmt.Sprintf("%d jobs on %d nodes: none has failed, is overdue or paused", len(jobs), len(nodes)))
		}
	}
	if len(scopes) == 0 {
		c.well("cron", "", "no scheduler has run in the last year")
	}
	return nil
}

// mostCronJobs is how many cron jobs of a scope have their own Findings. While no node of a scope is up, there is something
// to say of each of its jobs.
const mostCronJobs = 20

// cronJobs checks the cron jobs of a scope. If more than mostCronJobs have Findings, those with the worst ones are reported,
// and the others are counted.
func (c *checkup) cronJobs(now time.Time, scope string, jobs []CronJob) {
	before := c.findings
	var found [][]Finding // an element for each job that has Findings, the worst Finding first
	for _, j := range jobs {
		c.findings = nil
		if c.cronJob(now, j); len(c.findings) > 0 {
			slices.SortStableFunc(c.findings, worse)
			found = append(found, c.findings)
		}
	}
	slices.SortStableFunc(found, func(a, b []Finding) int { return worse(a[0], b[0]) })
	shown := min(len(found), mostCronJobs)
	c.findings = append(before, slices.Concat(found[:shown]...)...)
	if others := found[shown:]; len(others) > 0 {
		c.add(others[0][0].Severity, "cron", scope, fmt.Sprintf("there are findings about %s", many(len(others), "more job")),
			"they are not worse than those about the jobs that are named", "joblock cron ls --scope "+Shell(scope)+" shows all jobs")
	}
}

func (c *checkup) cronJob(now time.Time, j CronJob) {
	where := j.Scope + ": " + j.Name
	if j.Problem != "" {
		c.add(Fault, "cron", where, j.Problem, "what this program shows of the job is not complete; nodes with the same problem do not execute the job", "see the problem")
	}
	if !j.Overdue.IsZero() {
		c.add(Fault, "cron", where, fmt.Sprintf("the tick of %s was not executed", moment(j.Overdue.Time)), "no node that is up has the job, or all of them are busy", "start a node that has the job; or, if the job was removed: "+cronCommand("forget", j.Scope, j.Name))
	} else if len(j.Nodes) == 0 {
		c.add(Note, "cron", where, "no node that is up has the job", "no node will execute the next tick", "if the job was removed: "+cronCommand("forget", j.Scope, j.Name))
	}
	if j.Contested && len(j.OtherSpecs) == 0 {
		c.add(Fault, "cron", where, "two definitions of the job take turns", "probably two applications use the same scope, and each executes some of the ticks", "give each application a scope of its own")
	}
	if j.Behind > 0 {
		c.add(Warning, "cron", where, fmt.Sprintf("the store's clock is %s behind the job's latest tick", length(j.Behind.Duration())), "the clock was set back, and ticks wait until it is where it was", "check the clocks of the servers; "+cronCommand("trigger", j.Scope, j.Name)+" executes the job at once")
	}
	for _, t := range j.Troubles {
		switch t.Code {
		case troubleFailed, troubleLost:
			c.add(Warning, "cron", where, t.Text, "what the job is for was not done", cronCommand("history", j.Scope, j.Name)+" shows the runs; "+cronCommand("trigger", j.Scope, j.Name)+" runs the job again")
		case troubleContested:
			if len(j.OtherSpecs) > 0 {
				c.add(Warning, "cron", where, t.Text, "a node of another release was left up, or two applications use the same scope", "bring that node to the release of node "+j.SpecBy+", or stop it; or give each application a scope of its own")
			}
		case troubleOverrun:
			c.add(Warning, "cron", where, t.Text, "the job does not run again until the function returns: its ticks overlap, and no other node takes it over", "let the function end when its context does; a restart of that process frees the job")
		case troubleStuck:
			c.add(Warning, "cron", where, t.Text, "what the job is for is not done at its ticks", "see why that run or task does not end: "+cronCommand("get", j.Scope, j.Name)+" shows what is in the way; a task that fails again and again is on record in its queue until its retries are used up (joblock jobs get)")
		case troubleDied:
			c.add(Note, "cron", where, t.Text, "another node takes the tick over, unless none is up", "if that lasts, look at the log of that node")
		}
	}
	for _, p := range j.Pauses {
		if !p.All {
			c.paused(now, where, cronCommand("resume", j.Scope, j.Name), p)
		}
	}
}

// cronPause checks the pause of all cron jobs of a scope, which each of the jobs shows.
func (c *checkup) cronPause(now time.Time, scope string, jobs []CronJob) {
	if len(jobs) == 0 {
		return
	}
	for _, p := range jobs[0].Pauses {
		if p.All {
			c.paused(now, scope, cronCommand("resume", scope, ""), p)
		}
	}
}

// cronCommand returns a command about a cron job, or about all cron jobs of a scope if the name is "".
func cronCommand(verb, scope, name string) string {
	command := "joblock cron " + verb + " --scope " + Shell(scope)
	if name == "" {
		return command + " --all"
	}
	return command + " -- " + Shell(name)
}

// paused adds the Finding of a pause.
func (c *checkup) paused(now time.Time, where, resume string, p CronPause) {
	severity := Note
	if now.Sub(p.Since.Time) > pausedLong {
		severity = Warning
	}
	c.add(severity, "cron", where, p.String(), "ticks are skipped", resume+", if the pause was forgotten")
}

func (c *checkup) cronNodes(scope string, jobs int, nodes []CronNode) {
	if len(nodes) == 0 && jobs > 0 {
		c.add(Fault, "cron", scope, fmt.Sprintf("no node is up, and the scope has %d jobs", jobs), "no cron job of the scope is executed", "start a node")
		return
	}
	distinct := func(of func(CronNode) string) []string {
		var all []string
		for _, n := range nodes {
			all = append(all, cmp.Or(of(n), "unknown"))
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	if programs := distinct(func(n CronNode) string { return n.Program }); len(programs) > 1 {
		c.add(Warning, "cron", scope, "the nodes are those of several programs: "+strings.Join(programs, ", "), "if two of them have a job of the same name, each executes some of its ticks", "give each application a scope of its own")
	} else if builds := distinct(func(n CronNode) string { return n.Build }); len(builds) > 1 {
		c.add(Note, "cron", scope, "the nodes are of several builds: "+strings.Join(builds, ", "), "during a deploy that is as it should be; the node that has started last decides about the spec of a job", "if no deploy is under way, restart the nodes of the older build")
	}
}
