package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
)

// get sends a read.
func (c *Client) get(ctx context.Context, op, key, path string, query url.Values, into any) error {
	_, err := c.do(ctx, call{op: op, key: key, method: http.MethodGet, path: path, query: query, again: true, into: into})
	return err
}

func values(pairs ...string) url.Values {
	v := make(url.Values)
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			v.Set(pairs[i], pairs[i+1])
		}
	}
	return v
}

func number[N int | int64](n N) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatInt(int64(n), 10)
}

func flag(set bool) string {
	if set {
		return "1"
	}
	return ""
}

type items[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next"`
	More  bool   `json:"more"`
}

// Lock returns one key, with its line, its permits and its job. A key that nobody has is no error.
func (c *Client) Lock(ctx context.Context, key string) (l Lock, err error) {
	err = c.get(ctx, "lock", key, "/v1/lock", values("key", key), &l)
	return l, err
}

// Statuses returns the records of up to 1,000 keys, in the order of keys.
func (c *Client) Statuses(ctx context.Context, keys ...string) ([]Lock, error) {
	var got items[Lock]
	_, err := c.do(ctx, call{op: "status", method: http.MethodPost, path: "/v1/status", again: true, into: &got, body: map[string]any{"keys": keys}})
	if err == nil && len(got.Items) != len(keys) {
		err = fmt.Errorf("client: status: %d locks, want %d", len(got.Items), len(keys))
	}
	return got.Items, err
}

// Explain says in sentences what happens to a key.
func (c *Client) Explain(ctx context.Context, key string) (e Explanation, err error) {
	err = c.get(ctx, "explain", key, "/v1/explain", values("key", key), &e)
	return e, err
}

// Locks walks over locks, page by page. An error ends the walk.
func (c *Client) Locks(ctx context.Context, q ops.LocksQuery) iter.Seq2[Lock, error] {
	var states []string
	for _, s := range q.States {
		states = append(states, s.String())
	}
	query := values("prefix", q.Prefix, "contains", q.Contains, "state", strings.Join(states, ","), "older_ms", number(ms(q.OlderThan)), "waiters", number(q.Waiters),
		"job", flag(q.Jobs), "queue", q.Queue, "ended", flag(q.Ended), "own", flag(q.Own))
	return pages[Lock](ctx, c, "list", "/v1/locks", query)
}

// pages walks over a list with a cursor.
func pages[T any](ctx context.Context, c *Client, op, path string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		query.Set("limit", "1000")
		for {
			var page items[T]
			if err := c.get(ctx, op, "", path, query, &page); err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, item := range page.Items {
				if !yield(item, nil) {
					return
				}
			}
			if page.Next == "" {
				return
			}
			query.Set("cursor", page.Next)
		}
	}
}

// ErrMore says that a list was longer than what a server returns at once.
var ErrMore = fmt.Errorf("client: the list is longer than what the server returns")

// list walks over a list without a cursor. If it is longer than what the server returns, the walk ends with ErrMore.
func list[T any](ctx context.Context, c *Client, op, key, path string, query url.Values) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		query.Set("limit", "1000")
		var got items[T]
		var none T
		if err := c.get(ctx, op, key, path, query, &got); err != nil {
			yield(none, err)
			return
		}
		for _, item := range got.Items {
			if !yield(item, nil) {
				return
			}
		}
		if got.More {
			yield(none, fmt.Errorf("%s: %w", op, ErrMore))
		}
	}
}

// Waiters walks over the line of key, in the order in which it will be served: 1,000 at most, and then ErrMore.
func (c *Client) Waiters(ctx context.Context, key string) iter.Seq2[Waiter, error] {
	return list[Waiter](ctx, c, "line", key, "/v1/line", values("key", key))
}

// Permits returns who has the permits of a limit, or the slots of a sequence. The parameter n is how many there are, 0 if
// the caller does not know.
func (c *Client) Permits(ctx context.Context, key string, n int) (p Permits, err error) {
	err = c.get(ctx, "permits", key, "/v1/permits", values("key", key, "n", number(n)), &p)
	return p, err
}

// Jobs walks over the jobs that have locks or wait for locks, page by page.
func (c *Client) Jobs(ctx context.Context, q ops.JobsQuery) iter.Seq2[Job, error] {
	return pages[Job](ctx, c, "jobs", "/v1/jobs", values("queue", q.Queue, "prefix", q.Prefix, "suspects", flag(q.Suspects), "slow", flag(q.Slow)))
}

// Sequences walks over the lines of jobs, those that have halted first. After 1,000 of them, and if the server could not look
// at everything in time, the walk ends with ErrMore.
func (c *Client) Sequences(ctx context.Context, q ops.SequencesQuery) iter.Seq2[Sequence, error] {
	return list[Sequence](ctx, c, "sequences", "", "/v1/sequences", values("prefix", q.Prefix, "halted", flag(q.Halted)))
}

// Job returns the locks of a job, "queue/taskID", its places in line, and its task.
func (c *Client) Job(ctx context.Context, job string) ([]Job, Task, error) {
	var got struct {
		Items []Job `json:"items"`
		Task  Task  `json:"task"`
		More  bool  `json:"more"`
	}
	queue, id, ok := ops.ParseJob(job)
	if !ok || queue == "" {
		return nil, Task{}, core.Invalid("job", "", "%.80q names no task; a job is queue/taskID", job)
	}
	err := c.get(ctx, "job", "", "/v1/jobs/"+segment(queue)+"/"+segment(id), nil, &got)
	if err == nil && got.More {
		err = fmt.Errorf("job: %w", ErrMore)
	}
	return got.Items, got.Task, err
}

// Keeper returns what the keepers of jobs' locks tell of themselves.
func (c *Client) Keeper(ctx context.Context) (k Keeper, err error) {
	err = c.get(ctx, "keeper", "", "/v1/keeper", nil, &k)
	return k, err
}

// Doctor returns whether the servers keep locks safe, what endangers locks, jobs and cron jobs, the worst first, and what is
// well. After ErrMore not everything was looked at.
func (c *Client) Doctor(ctx context.Context) (Checkup, error) {
	var got struct {
		Checkup
		More bool `json:"more"`
	}
	err := c.get(ctx, "doctor", "", "/v1/doctor", nil, &got)
	if err == nil && got.More {
		err = fmt.Errorf("doctor: %w", ErrMore)
	}
	return got.Checkup, err
}

// Audit walks over what operators have done, the newest first: 1,000 records at most, and then ErrMore. An action has two
// records; see AuditEntry.
func (c *Client) Audit(ctx context.Context, q ops.AuditQuery) iter.Seq2[AuditEntry, error] {
	return list[AuditEntry](ctx, c, "audit", q.Key, "/v1/audit", values("key", q.Key, "since", stamp(q.Since)))
}

// ForceRelease frees a key, whoever has it, unless the key has another fence by now. Errors match joblock.ErrNotOwner then,
// joblock.ErrNotFound, joblock.ErrBusy with IfIdle, ErrNotRecorded, and joblock.ErrUnavailable, after which the key may be
// free.
func (c *Client) ForceRelease(ctx context.Context, req ForceRequest) (done Forced, err error) {
	_, err = c.do(ctx, call{op: "force release", key: req.Key, method: http.MethodPost, path: "/v1/force-release", into: &done,
		header: http.Header{"If-Match": {`"` + strconv.FormatInt(req.Fence, 10) + `"`}}, body: struct {
			Key    string `json:"key"`
			Reason string `json:"reason"`
			IfIdle bool   `json:"if_idle,omitempty"`
		}{req.Key, req.Reason, req.IfIdle}})
	return done, err
}

// RunTask makes asynq run a task now that is scheduled, waits for a retry or is archived. CancelTask tells the handler of a
// task to end. DropTask deletes a task that does not run. Errors match ErrTaskNotFound, ErrTaskState, ErrNotRecorded, and
// joblock.ErrUnavailable, after which the action may have taken effect.
func (c *Client) RunTask(ctx context.Context, req TaskRequest) (Acted, error) {
	return c.task(ctx, "run", req)
}

// CancelTask tells the handler that runs a task to end; see RunTask. With a Then the call waits up to ten seconds more for the
// handler to return, and Acted.Became says what has become of the task.
func (c *Client) CancelTask(ctx context.Context, req TaskRequest) (Acted, error) {
	return c.task(ctx, "cancel", req)
}

// DropTask deletes a task that does not run; see RunTask.
func (c *Client) DropTask(ctx context.Context, req TaskRequest) (Acted, error) {
	return c.task(ctx, "drop", req)
}

// ArchiveTask takes a task that does not run out of its queue, and keeps it in asynq's archive, to be run later. Errors are
// those of DropTask.
func (c *Client) ArchiveTask(ctx context.Context, req TaskRequest) (Acted, error) {
	return c.task(ctx, "archive", req)
}

func (c *Client) task(ctx context.Context, verb string, req TaskRequest) (done Acted, err error) {
	if err := oneTask(verb+" task", req.Queue, req.ID); err != nil {
		return Acted{}, err
	}
	seen := "*"
	if req.Step != "" {
		seen = `"` + req.Step + `"`
	}
	ask := call{op: verb + " task", method: http.MethodPost, path: "/v1/jobs/" + segment(req.Queue) + "/" + segment(req.ID) + "/" + verb,
		into: &done, header: http.Header{"If-Match": {seen}}}
	body := map[string]string{"reason": req.Reason}
	if req.Then != "" {
		body["then"], ask.wait = string(req.Then), ops.EndWait
	}
	ask.body = body
	_, err = c.do(ctx, ask)
	return done, err
}

// SkipJob moves the sequence of a key on past the job that has failed and halts it, unless the key has another fence by now.
// Errors are those of RunTask, and joblock.ErrNotOwner.
func (c *Client) SkipJob(ctx context.Context, req SkipRequest) (done Acted, err error) {
	_, err = c.do(ctx, call{op: "skip", key: req.Key, method: http.MethodPost, path: "/v1/skip", into: &done,
		header: http.Header{"If-Match": {`"` + strconv.FormatInt(req.Fence, 10) + `"`}}, body: map[string]string{"key": req.Key, "reason": req.Reason}})
	return done, err
}

// CronScopes returns the scopes of cron jobs that the server shows.
func (c *Client) CronScopes(ctx context.Context) ([]string, error) {
	var got items[string]
	err := c.get(ctx, "cron scopes", "", "/v1/cron-scopes", nil, &got)
	return got.Items, err
}

// CronJobs returns the cron jobs of a scope. With the scope "" these and all following calls are about the only scope
// that the server has.
func (c *Client) CronJobs(ctx context.Context, scope string) ([]CronJob, error) {
	var got items[CronJob]
	err := c.get(ctx, "cron", "", "/v1/cron", values("scope", scope), &got)
	return got.Items, err
}

// CronJob returns one cron job.
func (c *Client) CronJob(ctx context.Context, scope, name string) (j CronJob, err error) {
	if err := oneCron(name); err != nil {
		return j, err
	}
	err = c.get(ctx, "cron", "", "/v1/cron/"+segment(name), values("scope", scope), &j)
	return j, err
}

// CronNext returns the next ticks of a cron job.
func (c *Client) CronNext(ctx context.Context, q CronNextQuery) ([]CronTick, error) {
	if err := oneCron(q.Name); err != nil {
		return nil, err
	}
	var got items[CronTick]
	err := c.get(ctx, "cron next", "", "/v1/cron/"+segment(q.Name)+"/next", values("scope", q.Scope, "n", number(q.N)), &got)
	return got.Items, err
}

// CronNodes returns the nodes of a scope that are up.
func (c *Client) CronNodes(ctx context.Context, scope string) ([]CronNode, error) {
	var got items[CronNode]
	err := c.get(ctx, "cron nodes", "", "/v1/cron-nodes", values("scope", scope), &got)
	return got.Items, err
}

// CronPreviewQuery says which ticks CronPreview returns.
type CronPreviewQuery struct {
	Spec string
	Zone string // "" means UTC
	N    int    // how many ticks, from 1 to 1,000; 0 means the default of the server, 10
}

// CronPreview returns the next ticks of a spec that no cron job has.
func (c *Client) CronPreview(ctx context.Context, q CronPreviewQuery) (p CronPlan, err error) {
	err = c.get(ctx, "cron preview", "", "/v1/cron-preview", values("spec", q.Spec, "zone", q.Zone, "n", number(q.N)), &p)
	return p, err
}

// CronPause skips the ticks of a cron job, or of all cron jobs of the scope, until CronResume. Errors of this and the
// following actions match joblock.ErrInvalid for a bad request, ErrCronNotFound, ErrNotRecorded, and
// joblock.ErrUnavailable, after which the action may have taken effect.
func (c *Client) CronPause(ctx context.Context, req CronRequest) (Acted, error) {
	return c.cron(ctx, "pause", req)
}

// CronResume ends the pause of a cron job or, with All, the pause of all.
func (c *Client) CronResume(ctx context.Context, req CronRequest) (Acted, error) {
	return c.cron(ctx, "resume", req)
}

// CronTrigger executes a cron job once, soon. With CronRequest.Wait it waits until the run has ended: Acted.Run is the run,
// whatever its State. The wait is as long as no node executes the job, so give ctx a deadline. If ctx ends, the error is the
// cause of ctx, and the trigger stays. A server that does not answer for a while does not end the wait.
func (c *Client) CronTrigger(ctx context.Context, req CronRequest) (Acted, error) {
	if !req.Wait {
		return c.cron(ctx, "trigger", req)
	}
	if err := req.Check("cron trigger"); err != nil {
		return Acted{}, err
	}
	before, err := c.CronJob(ctx, req.Scope, req.Name)
	if err != nil {
		return Acted{}, err
	}
	done, err := c.cron(ctx, "trigger", req)
	if err != nil {
		return done, err
	}
	for wait := firstLook; pause(ctx, wait); wait = min(2*wait, lastLook) {
		j, err := c.CronJob(ctx, req.Scope, req.Name)
		if err != nil && ctx.Err() == nil && !next(err, true) && !rateLimited(err) {
			return done, err
		}
		if run := triggered(j, before.Now); err == nil && run != nil {
			done.Run = run
			return done, nil
		}
	}
	return done, context.Cause(ctx)
}

// The first and the longest pause of CronTrigger between two looks.
const firstLook, lastLook = 50 * time.Millisecond, time.Second

// triggered returns the first run by a trigger that was asked for at since or later, nil if there is none that has ended.
func triggered(j CronJob, since Time) (first *CronRun) {
	for _, r := range j.Runs() {
		if r.Cause == "trigger" && !r.Tick.Before(since.Time) && (first == nil || r.Tick.Before(first.Tick.Time)) {
			first = &r
		}
	}
	if first == nil || first.Ended.IsZero() {
		return nil
	}
	return first
}

// CronCount returns how many ticks CronBackfill would execute. The errors are those of CronBackfill for the same range.
func (c *Client) CronCount(ctx context.Context, req CronRange) (int, error) {
	if err := oneCron(req.Name); err != nil {
		return 0, err
	}
	var got Backfilled
	err := c.get(ctx, "cron backfill", "", "/v1/cron/"+segment(req.Name)+"/backfill",
		values("scope", req.Scope, "from", req.From.Format(time.RFC3339Nano), "to", req.To.Format(time.RFC3339Nano)), &got)
	return got.Ticks, err
}

// CronBackfill executes the ticks of a range of the past once each, one after the other. CronJob
// shows how far the backfill has come. Errors are those of CronPause, joblock.ErrInvalid for a bad range, and ErrBackfilling
// while the cron job has a backfill that has not ended.
func (c *Client) CronBackfill(ctx context.Context, req CronBackfillRequest) (got Backfilled, err error) {
	if err := oneCron(req.Name); err != nil {
		return got, err
	}
	_, err = c.do(ctx, call{op: "cron backfill", method: http.MethodPost, path: "/v1/cron/" + segment(req.Name) + "/backfill",
		query: values("scope", req.Scope), into: &got, body: struct {
			From   time.Time `json:"from"`
			To     time.Time `json:"to"`
			Reason string    `json:"reason"`
		}{req.From, req.To, req.Reason}})
	return got, err
}

// CronStopBackfill ends the backfill of a cron job before its next tick.
func (c *Client) CronStopBackfill(ctx context.Context, req CronRequest) (Acted, error) {
	return c.cron(ctx, "stop-backfill", req)
}

// CronForget removes the record of a cron job that no node has.
func (c *Client) CronForget(ctx context.Context, req CronRequest) (Acted, error) {
	return c.cron(ctx, "forget", req)
}

// segment returns a name as a segment of a path. Servers take a segment "." or ".." for a path that is not clean.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// oneTask refuses a task without a queue or an ID: the path would be that of another call.
func oneTask(op, queue, id string) error {
	if queue == "" || id == "" {
		return core.Invalid(op, "", "Queue is %q and ID is %q, must be those of a task", queue, id)
	}
	return nil
}

// oneCron refuses the name "": a path without a name is that of another call.
func oneCron(name string) error {
	if name == "" {
		return core.Invalid("cron", "", "Name is empty, must be that of a cron job")
	}
	return nil
}

func (c *Client) cron(ctx context.Context, verb string, req CronRequest) (done Acted, err error) {
	if err := req.Check("cron " + verb); err != nil {
		return Acted{}, err
	}
	path := "/v1/cron-" + verb
	if !req.All {
		path = "/v1/cron/" + segment(req.Name) + "/" + verb
	}
	_, err = c.do(ctx, call{op: "cron " + verb, method: http.MethodPost, path: path, query: values("scope", req.Scope), into: &done,
		body: map[string]string{"reason": req.Reason}})
	return done, err
}
