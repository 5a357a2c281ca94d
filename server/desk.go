package server

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/problem"
)

// deskRoutes are the routes for people and for their tools. They only pass on what a Desk has.
func (s *Server) deskRoutes() []route {
	get := func(path string, scope Scope, do func(*call) (*answer, error)) route {
		return route{http.MethodGet, path, scope, do}
	}
	return []route{
		get("/v1/lock", ScopeRead, s.lock),
		get("/v1/locks/{key}", ScopeRead, s.lock),
		get("/v1/explain", ScopeRead, s.explain),
		get("/v1/locks/{key}/explain", ScopeRead, s.explain),
		get("/v1/line", ScopeRead, s.line),
		get("/v1/locks/{key}/line", ScopeRead, s.line),
		get("/v1/permits", ScopeRead, s.permits),
		get("/v1/locks/{key}/permits", ScopeRead, s.permits),
		get("/v1/locks", ScopeRead, walks(s.list)),
		{http.MethodPost, "/v1/status", ScopeRead, reads(s.statuses)},
		{http.MethodPost, "/v1/force-release", ScopeOperate, acts(reads(s.force))},
		{http.MethodPost, "/v1/locks/{key}/force-release", ScopeOperate, acts(reads(s.force))},
		get("/v1/jobs", ScopeRead, walks(s.jobs)),
		get("/v1/jobs/{queue}/{id}", ScopeRead, walks(s.job)),
		get("/v1/sequences", ScopeRead, walks(s.sequences)),
		{http.MethodPost, "/v1/jobs/{queue}/{id}/run", ScopeOperate, acts(s.taskAction(ops.Operator.RunTask))},
		{http.MethodPost, "/v1/jobs/{queue}/{id}/cancel", ScopeOperate, acts(s.taskAction(ops.Operator.CancelTask))},
		{http.MethodPost, "/v1/jobs/{queue}/{id}/drop", ScopeOperate, acts(s.taskAction(ops.Operator.DropTask))},
		{http.MethodPost, "/v1/jobs/{queue}/{id}/archive", ScopeOperate, acts(s.taskAction(ops.Operator.ArchiveTask))},
		{http.MethodPost, "/v1/skip", ScopeOperate, acts(reads(s.skip))},
		{http.MethodPost, "/v1/locks/{key}/skip", ScopeOperate, acts(reads(s.skip))},
		get("/v1/cron", ScopeRead, walks(s.cronJobs)),
		get("/v1/cron/{name}", ScopeRead, s.cronJob),
		get("/v1/cron/{name}/next", ScopeRead, s.cronNext),
		get("/v1/cron-nodes", ScopeRead, s.cronNodes),
		get("/v1/cron-scopes", ScopeRead, s.cronScopes),
		get("/v1/cron-preview", ScopeRead, s.cronPreview),
		{http.MethodPost, "/v1/cron/{name}/pause", ScopeCron, acts(s.cronAction(ops.Operator.CronPause))},
		{http.MethodPost, "/v1/cron/{name}/resume", ScopeCron, acts(s.cronAction(ops.Operator.CronResume))},
		{http.MethodPost, "/v1/cron/{name}/trigger", ScopeCron, acts(s.cronAction(ops.Operator.CronTrigger))},
		{http.MethodPost, "/v1/cron/{name}/forget", ScopeCron, acts(s.cronAction(ops.Operator.CronForget))},
		get("/v1/cron/{name}/backfill", ScopeRead, s.cronCount),
		{http.MethodPost, "/v1/cron/{name}/backfill", ScopeCron, acts(s.cronBackfill)},
		{http.MethodPost, "/v1/cron/{name}/stop-backfill", ScopeCron, acts(s.cronAction(ops.Operator.CronStopBackfill))},
		{http.MethodPost, "/v1/cron-pause", ScopeCron, acts(s.cronAction(ops.Operator.CronPause))},
		{http.MethodPost, "/v1/cron-resume", ScopeCron, acts(s.cronAction(ops.Operator.CronResume))},
		get("/v1/keeper", ScopeRead, s.keeper),
		get("/v1/doctor", ScopeRead, walks(s.doctor)),
		get("/v1/audit", ScopeAdmin, walks(s.audit)),
		get("/v1/events", ScopeRead, walks(s.events)),
		get("/v1/history", ScopeRead, walks(s.history)),
		get("/v1/locks/{key}/history", ScopeRead, walks(s.history)),
	}
}

// acts is a route that does something for an operator, which has a place in the record of actions.
func acts(do func(*call) (*answer, error)) func(*call) (*answer, error) {
	return func(c *call) (*answer, error) {
		if p := c.act(); p != nil {
			return nil, p
		}
		return do(c)
	}
}

// act counts an action.
func (c *call) act() *problem.Problem {
	after := c.s.quotas.act(c.who.ID, 1)
	if after == 0 {
		return nil
	}
	return tooOften(after, "at most %d actions a second are allowed over time, and %d at once", actionRate, actionBurst)
}

// walkPatience is how long a read waits for its turn at most.
const walkPatience = 10 * time.Second

// walks is a route that reads much of the store. Beyond its rate it takes its time.
func walks(do func(*call) (*answer, error)) func(*call) (*answer, error) {
	return func(c *call) (*answer, error) {
		after, ok := c.s.quotas.walk(c.who.ID, walkPatience)
		if !ok {
			return nil, tooOften(after, "at most %d reads of lists a second are allowed over time, and %d at once", walkRate, walkBurst)
		}
		if err := sleep.For(c.r.Context(), after); err != nil {
			return nil, errGone
		}
		return do(c)
	}
}

func tooOften(after time.Duration, format string, args ...any) *problem.Problem {
	return problem.New(http.StatusTooManyRequests, problem.Rate, format, args...).Again(after)
}

// A list is the answer of a route with many items. Next continues a list of locks or of jobs. More says that a list was
// cut off.
type list[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
	More  bool   `json:"more,omitempty"`
}

// query has the parameters of a GET. The method err returns the first problem.
type query struct {
	c      *call
	values map[string][]string
	known  []string
	bad    *problem.Problem
}

// query returns the parameters of the call. Only the names in known may come, each once.
func (c *call) query(known ...string) *query {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	q := &query{c: c, values: values, known: known}
	if err != nil { // values lack the bad pairs, so the call would be about more than the caller has said
		q.fail(problem.Request, "the query is not well formed: write %% as %%25 and ; as %%3B")
	}
	for name, values := range q.values {
		if !slices.Contains(known, name) {
			q.fail(problem.Request, "the parameter %s is unknown; the parameters are %s", shownName(name), strings.Join(known, ", "))
		} else if len(values) > 1 {
			q.fail(problem.Request, "the parameter %s comes twice", name)
		}
	}
	return q
}

func (q *query) fail(code, format string, args ...any) {
	if q.bad == nil {
		q.bad = problem.New(http.StatusBadRequest, code, format, args...)
	}
}

func (q *query) err() error {
	if q.bad == nil {
		return nil
	}
	return q.bad
}

func (q *query) text(name string) string {
	if values := q.values[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func (q *query) number(name string, absent, least, most int) int {
	text := q.text(name)
	if text == "" {
		return absent
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		q.fail(problem.Invalid, "%s is %s, must be from %d to %d", name, problem.Shown(text), least, most)
	}
	return n
}

func (q *query) flag(name string) bool {
	switch text := q.text(name); text {
	case "", "0", "false":
		return false
	case "1", "true":
		return true
	default:
		q.fail(problem.Invalid, "%s is %s, must be 0 or 1", name, problem.Shown(text))
		return false
	}
}

// keyed returns the key of a GET, which is in the path or in the query.
func (q *query) keyed() (string, error) {
	if err := q.err(); err != nil {
		return "", err
	}
	return q.c.keyFrom(q.text("key"))
}

// lock shows one key. The ETag changes when the key has another fence, state or number of waiters: what only counts
// down changes no ETag.
func (s *Server) lock(c *call) (*answer, error) {
	key, err := c.query("key").keyed()
	if err != nil {
		return nil, err
	}
	l, err := s.desk.Lock(c.r.Context(), key)
	if err != nil {
		return nil, err
	}
	tag := entityTag(l)
	a := &answer{status: http.StatusOK, etag: tag, body: l}
	for _, given := range strings.Split(c.r.Header.Get("If-None-Match"), ",") {
		if given = strings.TrimSpace(given); given == tag || given == "W/"+tag || given == "*" && l.Fence != 0 {
			c.w.Header().Set("ETag", tag)
			c.writeEmpty(http.StatusNotModified)
			return nil, nil
		}
	}
	return a, nil
}

func entityTag(l ops.Lock) string { return fmt.Sprintf(`"%d-%s-%d"`, l.Fence, l.State, l.Waiters) }

func (s *Server) explain(c *call) (*answer, error) {
	key, err := c.query("key").keyed()
	if err != nil {
		return nil, err
	}
	return okOr(s.desk.Explain(c.r.Context(), key))
}

func (s *Server) line(c *call) (*answer, error) {
	q := c.query("key", "limit")
	most := q.number("limit", 100, 1, 1000)
	key, err := q.keyed()
	if err != nil {
		return nil, err
	}
	return cut(c, most, func(ctx context.Context) iter.Seq2[ops.Waiter, error] { return s.desk.Waiters(ctx, key) })
}

func (s *Server) permits(c *call) (*answer, error) {
	q := c.query("key", "n")
	n := q.number("n", 0, 0, driver.MaxSlots)
	key, err := q.keyed()
	if err != nil {
		return nil, err
	}
	return okOr(s.desk.Permits(c.r.Context(), key, n))
}

// walkTime bounds a walk that has no cursor. What it has found by then is the answer, which says that there is more.
const walkTime = 10 * time.Second

// cut returns the first items of a walk, at most so many.
func cut[T any](c *call, most int, walk func(context.Context) iter.Seq2[T, error]) (*answer, error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	l := list[T]{Items: []T{}}
	for item, err := range walk(ctx) {
		if err != nil && ctx.Err() != nil && !c.ended() {
			l.More = true
			break
		}
		if err != nil {
			return nil, err
		}
		if len(l.Items) == most {
			l.More = true
			break
		}
		l.Items = append(l.Items, item)
	}
	return ok(l), nil
}

// list shows the locks whose keys begin with a prefix. A caller with prefixes of its own names one of them.
func (s *Server) list(c *call) (*answer, error) {
	q := c.query("prefix", "contains", "state", "older_ms", "waiters", "ended", "own", "job", "queue", "cursor", "limit")
	ask := ops.LocksQuery{
		Prefix: q.text("prefix"), Contains: q.text("contains"), OlderThan: time.Duration(q.number("older_ms", 0, 0, int(driver.MaxPeriod.Milliseconds()))) * time.Millisecond,
		Waiters: q.number("waiters", 0, 0, 1_000_000), Ended: q.flag("ended"), Own: q.flag("own"),
		Jobs: q.flag("job"), Queue: q.text("queue"),
	}
	most := q.number("limit", 100, 1, 1000)
	for name := range strings.SplitSeq(q.text("state"), ",") {
		if name == "" {
			continue
		}
		i := slices.IndexFunc(states, func(s joblock.State) bool { return s.String() == name })
		if i < 0 {
			q.fail(problem.Invalid, "state is %s, must be of free, held, parked and orphaned, with commas between", problem.Shown(name))
			break
		}
		ask.States = append(ask.States, states[i])
	}
	if err := q.err(); err != nil {
		return nil, err
	}
	if err := c.usePrefix(&ask.Prefix); err != nil {
		return nil, err
	}
	if ask.Queue != "" && !c.who.mayEnqueueIn(ask.Queue) {
		return nil, foreignQueue()
	}
	page, err := s.desk.LocksPage(c.r.Context(), ask, q.text("cursor"), most)
	if err != nil {
		return nil, err
	}
	return ok(list[ops.Lock]{Items: page.Items, Next: page.Next}), nil
}

var states = []joblock.State{joblock.StateFree, joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned}

// usePrefix refuses a prefix under which there are keys that the caller may not use. A caller with one prefix need not
// name it.
func (c *call) usePrefix(prefix *string) error {
	if *prefix == "" && len(c.who.Prefixes) == 1 {
		*prefix = c.who.Prefixes[0]
	}
	if !c.who.mayUse(*prefix) {
		return problem.New(http.StatusForbidden, problem.Forbidden, "prefix must begin with one of the caller's own prefixes")
	}
	return nil
}

type statusesRequest struct {
	Keys []string `json:"keys"`
}

func (s *Server) statuses(c *call, req *statusesRequest) (*answer, error) {
	const most = 1000
	if len(req.Keys) < 1 || len(req.Keys) > most {
		return nil, problem.New(http.StatusBadRequest, problem.Invalid, "keys has %d keys, must have 1 to %d", len(req.Keys), most)
	}
	for _, key := range req.Keys {
		if err := c.useKey(key); err != nil {
			return nil, err
		}
	}
	c.key = ""
	locks, err := s.desk.Read(c.r.Context(), req.Keys...)
	if err != nil {
		return nil, err
	}
	return ok(list[ops.Lock]{Items: locks}), nil
}

// operator returns the desk at which the caller acts.
func (c *call) operator() ops.Operator { return c.s.desk.As(c.who.ID, c.r.RemoteAddr) }

type forceRequest struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
	IfIdle bool   `json:"if_idle"`
}

// force frees the key of the holding that the caller has seen: If-Match has its fence.
func (s *Server) force(c *call, req *forceRequest) (*answer, error) {
	key, fence, err := c.holdingFrom(req.Key)
	if err != nil {
		return nil, err
	}
	done, err := c.operator().ForceRelease(c.lasting(), ops.ForceRequest{Key: key, Fence: fence, IfIdle: req.IfIdle, Reason: req.Reason})
	if errors.Is(err, joblock.ErrNotOwner) {
		p := c.problemOf(err)
		p.Status = http.StatusPreconditionFailed
		return nil, p
	}
	if err != nil {
		return nil, err
	}
	return ok(done), nil
}

// holdingFrom returns the key of the call, and the fence in If-Match: the holding that the caller has seen.
func (c *call) holdingFrom(other string) (key string, fence int64, err error) {
	if key, err = c.keyFrom(other); err == nil {
		fence, err = c.ifMatch()
	}
	return key, fence, err
}

// ifMatch returns the fence in If-Match: a number, or the ETag of a lock.
func (c *call) ifMatch() (int64, error) {
	values := c.r.Header.Values("If-Match")
	if len(values) == 0 {
		return 0, problem.New(http.StatusPreconditionRequired, problem.Precondition, "set If-Match to the ETag, or the fence in quotes, of the lock as you have seen it")
	}
	text, ok := strings.CutPrefix(values[0], `"`)
	text, closed := strings.CutSuffix(text, `"`)
	number, _, _ := strings.Cut(text, "-")
	fence, err := strconv.ParseInt(number, 10, 64)
	if len(values) > 1 || !ok || !closed || err != nil || fence < 1 || fence > driver.MaxFence {
		return 0, problem.New(http.StatusBadRequest, problem.Invalid, "If-Match is %s, must be one ETag of a lock, or its fence in quotes", problem.Shown(strings.Join(values, ",")))
	}
	return fence, nil
}

func (s *Server) jobs(c *call) (*answer, error) {
	q := c.query("prefix", "queue", "suspects", "slow", "cursor", "limit")
	ask := ops.JobsQuery{Prefix: q.text("prefix"), Queue: q.text("queue"), Suspects: q.flag("suspects"), Slow: q.flag("slow")}
	most := q.number("limit", 100, 1, 1000)
	if err := q.err(); err != nil {
		return nil, err
	}
	if err := c.usePrefix(&ask.Prefix); err != nil {
		return nil, err
	}
	if ask.Queue != "" && !c.who.mayEnqueueIn(ask.Queue) {
		return nil, foreignQueue()
	}
	if !c.who.AllQueues {
		ask.May = func(job string) bool { return c.useJob(job) == nil }
	}
	page, err := s.desk.JobsPage(c.r.Context(), ask, q.text("cursor"), most)
	if err != nil {
		return nil, err
	}
	return ok(list[ops.Job]{Items: page.Items, Next: page.Next, More: page.Next != ""}), nil
}

// sequences lists the lines of jobs, those that have halted first. There is no page after the first: what comes first is
// what needs somebody.
func (s *Server) sequences(c *call) (*answer, error) {
	q := c.query("prefix", "halted", "limit")
	ask := ops.SequencesQuery{Prefix: q.text("prefix"), Halted: q.flag("halted")}
	most := q.number("limit", 100, 1, 1000)
	if err := q.err(); err != nil {
		return nil, err
	}
	if err := c.usePrefix(&ask.Prefix); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	l := list[ops.Sequence]{Items: []ops.Sequence{}}
	for seq, err := range s.desk.Sequences(ctx, ask) {
		if err != nil && ctx.Err() != nil && !c.ended() {
			l.More = true
			break
		}
		if err != nil {
			return nil, err
		}
		if seq.Job == "" || c.useJob(seq.Job) == nil {
			l.Items = append(l.Items, seq)
		}
	}
	slices.SortFunc(l.Items, ops.CompareSequences)
	if len(l.Items) > most {
		l.Items, l.More = l.Items[:most], true
	}
	return ok(l), nil
}

func foreignQueue() *problem.Problem {
	return problem.New(http.StatusForbidden, problem.Forbidden, "the caller may not see or use jobs of this queue")
}

func (s *Server) job(c *call) (*answer, error) {
	if err := c.query().err(); err != nil {
		return nil, err
	}
	if !c.who.mayEnqueueIn(c.r.PathValue("queue")) {
		return nil, foreignQueue()
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	locks, task, err := s.desk.Job(ctx, ops.Task{Queue: c.r.PathValue("queue"), ID: c.r.PathValue("id")}.Job())
	more := err != nil && ctx.Err() != nil && !c.ended()
	if err != nil && !more {
		return nil, err
	}
	locks = slices.DeleteFunc(locks, func(j ops.Job) bool { return !c.who.mayUse(j.Key) })
	if !c.who.AllKeys && len(locks) == 0 {
		task = ops.Task{State: ops.TaskUnknown, Problem: "The job has no lock that the caller may see."}
	}
	a := ok(struct {
		Items []ops.Job `json:"items"`
		Task  ops.Task  `json:"task"`
		More  bool      `json:"more,omitempty"`
	}{locks, task, more})
	if task.Step != "" {
		a.etag = strconv.Quote(task.Step)
	}
	return a, nil
}

// taskAction is an action on a task, at the step that the caller has seen: If-Match has it in quotes. The value * stands for
// whatever step the task is at.
func (s *Server) taskAction(do func(ops.Operator, context.Context, ops.TaskRequest) (ops.Acted, error)) func(*call) (*answer, error) {
	return func(c *call) (*answer, error) {
		var req struct {
			Reason string   `json:"reason"`
			Then   ops.Then `json:"then"` // of a cancel alone
		}
		if err := c.query().err(); err != nil {
			return nil, err
		}
		if err := c.read(&req); err != nil {
			return nil, err
		}
		step, err := c.ifMatchStep()
		if err != nil {
			return nil, err
		}
		task := ops.TaskRequest{Queue: c.r.PathValue("queue"), ID: c.r.PathValue("id"), Step: step, Then: req.Then, Reason: req.Reason}
		if err := s.useTask(c, task.Queue, task.ID); err != nil {
			return nil, err
		}
		acted, err := do(c.operator(), c.lasting(), task)
		if err != nil {
			return nil, taskProblem(err)
		}
		return ok(acted), nil
	}
}

// useTask refuses a task that the caller may not act on. With AllKeys the queue decides. Without, the task must carry locks,
// and only such as the caller may use. Locks that are bound to the job do not count: their holders bind them.
func (s *Server) useTask(c *call, queue, id string) error {
	if !c.who.mayEnqueueIn(queue) {
		return foreignQueue()
	}
	if c.who.AllKeys {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	own, err := s.desk.CarriesOnly(ctx, ops.Task{Queue: queue, ID: id}.Job(), c.who.mayUse)
	if err != nil {
		return taskProblem(err)
	}
	if !own {
		return problem.New(http.StatusForbidden, problem.Forbidden, "the task carries no lock, or a lock that the caller may not use")
	}
	return nil
}

// ifMatchStep returns the step of a task in If-Match, "" for *.
func (c *call) ifMatchStep() (string, error) {
	values := c.r.Header.Values("If-Match")
	if len(values) == 0 {
		return "", problem.New(http.StatusPreconditionRequired, problem.Precondition, "set If-Match to the ETag of the job, which is the step of its task in quotes, or to * for whatever step it is at")
	}
	if len(values) == 1 && values[0] == "*" {
		return "", nil
	}
	text, opened := strings.CutPrefix(values[0], `"`)
	text, closed := strings.CutSuffix(text, `"`)
	if len(values) > 1 || !opened || !closed || text == "" || strings.ContainsAny(text, `"\`) {
		return "", problem.New(http.StatusBadRequest, problem.Invalid, "If-Match is %s, must be one ETag of a job, or *", problem.Shown(strings.Join(values, ",")))
	}
	return text, nil
}

// taskProblem returns the problem for an error about a task, whose text names the task.
func taskProblem(err error) error {
	text := strings.TrimPrefix(err.Error(), "joblock: ")
	switch {
	case errors.Is(err, ops.ErrNotRecorded):
		return err
	case errors.Is(err, ops.ErrMovedOn):
		return problem.New(http.StatusPreconditionFailed, problem.TaskState, "%s", text)
	case errors.Is(err, joblock.ErrBusy):
		return problem.New(http.StatusConflict, problem.TaskState, "%s", text)
	case errors.Is(err, joblock.ErrNotFound):
		return problem.New(http.StatusNotFound, problem.NoTask, "%s", text)
	}
	if e := (*joblock.Error)(nil); errors.As(err, &e) && (e.Detail != "" || e.Key != "") { // and not a mere sentinel
		return err
	}
	switch {
	case errors.Is(err, joblock.ErrInvalid):
		return problem.New(http.StatusBadRequest, problem.Invalid, "%s", text)
	case errors.Is(err, joblock.ErrUnavailable):
		return problem.New(http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrUnavailable), "asynq did not answer: it is unknown whether the call took effect").Again(time.Second)
	}
	return err
}

type skipRequest struct {
	Key    string `json:"key"`
	Reason string `json:"reason"`
}

// skip moves a sequence on past the job that halts it: the holding that the caller has seen, by If-Match.
func (s *Server) skip(c *call, req *skipRequest) (*answer, error) {
	key, fence, err := c.holdingFrom(req.Key)
	if err != nil {
		return nil, err
	}
	if !c.who.AllQueues {
		locks, err := s.desk.Read(c.r.Context(), key)
		if err != nil {
			return nil, err
		}
		if err := c.useJob(locks[0].Job); err != nil {
			return nil, err
		}
	}
	acted, err := c.operator().SkipJob(c.lasting(), ops.SkipRequest{Key: key, Fence: fence, Reason: req.Reason})
	if errors.Is(err, joblock.ErrNotOwner) {
		p := problem.NotHolder("the key has another fence by now")
		p.Status = http.StatusPreconditionFailed
		return nil, p
	}
	if err != nil {
		return nil, taskProblem(err)
	}
	return ok(acted), nil
}

// scoped returns the scope of cron jobs that the call is about. A Server of one scope needs no parameter.
func (q *query) scoped() string {
	scope, all := q.text("scope"), q.c.s.cfg.CronScopes
	if scope == "" && len(all) == 1 {
		return all[0]
	}
	if !slices.Contains(all, scope) {
		q.fail(problem.Invalid, "scope is %s, must be one of: %s", problem.Shown(scope), strings.Join(all, ", "))
	}
	return scope
}

func (s *Server) cronJobs(c *call) (*answer, error) {
	q := c.query("scope")
	scope := q.scoped()
	if err := q.err(); err != nil {
		return nil, err
	}
	jobs, err := s.desk.CronJobs(c.r.Context(), scope)
	if err != nil {
		return nil, cronProblem(err)
	}
	return ok(list[ops.CronJob]{Items: jobs}), nil
}

func (s *Server) cronJob(c *call) (*answer, error) {
	q := c.query("scope")
	scope := q.scoped()
	if err := q.err(); err != nil {
		return nil, err
	}
	job, err := s.desk.CronJob(c.r.Context(), scope, c.r.PathValue("name"))
	if err != nil {
		return nil, cronProblem(err)
	}
	return ok(job), nil
}

func (s *Server) cronNext(c *call) (*answer, error) {
	q := c.query("scope", "n")
	scope, n := q.scoped(), q.number("n", 10, 1, 1000)
	if err := q.err(); err != nil {
		return nil, err
	}
	ticks, err := s.desk.CronNext(c.r.Context(), ops.CronNextQuery{Scope: scope, Name: c.r.PathValue("name"), N: n})
	if err != nil {
		return nil, cronProblem(err)
	}
	return ok(list[ops.CronTick]{Items: ticks}), nil
}

func (s *Server) cronNodes(c *call) (*answer, error) {
	q := c.query("scope")
	scope := q.scoped()
	if err := q.err(); err != nil {
		return nil, err
	}
	nodes, err := s.desk.CronNodes(c.r.Context(), scope)
	if err != nil {
		return nil, cronProblem(err)
	}
	return ok(list[ops.CronNode]{Items: nodes}), nil
}

// cronScopes lists the scopes that callers may see, which is no secret: every route about cron jobs names them.
func (s *Server) cronScopes(c *call) (*answer, error) {
	if err := c.query().err(); err != nil {
		return nil, err
	}
	return ok(list[string]{Items: append([]string{}, s.cfg.CronScopes...)}), nil
}

func (s *Server) cronPreview(c *call) (*answer, error) {
	q := c.query("spec", "zone", "n")
	n := q.number("n", 10, 1, 1000)
	zone, err := time.LoadLocation(q.text("zone"))
	if err != nil || len(q.text("zone")) > 64 {
		q.fail(problem.Invalid, "zone is %s, must be a name such as Europe/Berlin", problem.Shown(q.text("zone")))
	}
	if len(q.text("spec")) > 1024 {
		q.fail(problem.Invalid, "spec has %d bytes, at most 1024 are allowed", len(q.text("spec")))
	}
	if err := q.err(); err != nil {
		return nil, err
	}
	plan, err := ops.CronPreview(q.text("spec"), zone, time.Now(), n)
	if err != nil {
		var e *joblock.Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, problem.New(http.StatusBadRequest, problem.Invalid, "spec: %s", err)
	}
	return ok(plan), nil
}

// cronAction is an action on one cron job or, without a name in the path, on all of them.
func (s *Server) cronAction(do func(ops.Operator, context.Context, ops.CronRequest) (ops.Acted, error)) func(*call) (*answer, error) {
	return func(c *call) (*answer, error) {
		var req struct {
			Reason string `json:"reason"`
		}
		q := c.query("scope")
		scope := q.scoped()
		if err := q.err(); err != nil {
			return nil, err
		}
		if err := c.read(&req); err != nil {
			return nil, err
		}
		acted, err := do(c.operator(), c.lasting(), ops.CronRequest{Scope: scope, Name: c.r.PathValue("name"), All: c.r.PathValue("name") == "", Reason: req.Reason})
		if err != nil {
			return nil, cronProblem(err)
		}
		return ok(acted), nil
	}
}

// cronCount tells how many ticks a backfill of a range would execute.
func (s *Server) cronCount(c *call) (*answer, error) {
	q := c.query("scope", "from", "to")
	scope, from, to := q.scoped(), q.needed("from"), q.needed("to")
	if err := q.err(); err != nil {
		return nil, err
	}
	n, err := s.desk.CronCount(c.r.Context(), ops.CronRange{Scope: scope, Name: c.r.PathValue("name"), From: from, To: to})
	if err != nil {
		return nil, cronProblem(err)
	}
	return ok(struct {
		Ticks int `json:"ticks"`
	}{n}), nil
}

// needed returns a parameter that is a time, and must be there.
func (q *query) needed(name string) time.Time {
	if q.text(name) == "" {
		q.fail(problem.Invalid, "%s is missing; a time is like 2026-01-02T15:04:05Z", name)
	}
	return q.time(name)
}

// cronBackfill executes the ticks of a range of the past.
func (s *Server) cronBackfill(c *call) (*answer, error) {
	var req struct {
		From   string `json:"from"`
		To     string `json:"to"`
		Reason string `json:"reason"`
	}
	q := c.query("scope")
	scope := q.scoped()
	if err := q.err(); err != nil {
		return nil, err
	}
	if err := c.read(&req); err != nil {
		return nil, err
	}
	from, err := instant("from", req.From)
	if err != nil {
		return nil, err
	}
	to, err := instant("to", req.To)
	if err != nil {
		return nil, err
	}
	got, err := c.operator().CronBackfill(c.lasting(), ops.CronBackfillRequest{Scope: scope, Name: c.r.PathValue("name"), From: from, To: to, Reason: req.Reason})
	if err != nil {
		return nil, cronProblem(err)
	}
	return ok(got), nil
}

// instant reads a field that is a time.
func instant(name, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, problem.New(http.StatusBadRequest, problem.Invalid, "%s is missing; a time is like 2026-01-02T15:04:05Z", name)
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, problem.New(http.StatusBadRequest, problem.Invalid, "%s is %s, must be a time such as 2026-01-02T15:04:05Z", name, problem.Shown(text))
	}
	return t, nil
}

// cronProblem returns the problem for an error of package scheduler, whose text names the cron job.
func cronProblem(err error) error {
	text := strings.TrimPrefix(err.Error(), "scheduler: ")
	switch {
	case errors.Is(err, joblock.ErrNotFound):
		return problem.New(http.StatusNotFound, problem.NoCron, "%s", text)
	case errors.Is(err, ops.ErrBackfilling):
		return problem.New(http.StatusConflict, problem.Backfilling, "%s", text)
	case errors.Is(err, joblock.ErrInvalid):
		return problem.New(http.StatusBadRequest, problem.Invalid, "%s", strings.TrimPrefix(text, "joblock: "))
	}
	return err
}

func (s *Server) keeper(c *call) (*answer, error) {
	return okOr(s.desk.Keeper(c.r.Context()))
}

// doctorTime bounds a look at everything.
const doctorTime = 30 * time.Second

func (s *Server) doctor(c *call) (*answer, error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), doctorTime)
	defer cancel()
	checkup, err := s.desk.Doctor(ctx)
	if err != nil && ctx.Err() == nil {
		return nil, err
	}
	return ok(struct {
		ops.Checkup
		More bool `json:"more,omitempty"`
	}{checkup, err != nil}), nil
}

func (s *Server) audit(c *call) (*answer, error) {
	q := c.query("key", "since", "limit")
	most := q.number("limit", 100, 1, 1000)
	ask := ops.AuditQuery{Key: q.text("key")}
	if text := q.text("since"); text != "" {
		var err error
		if ask.Since, err = time.Parse(time.RFC3339, text); err != nil {
			q.fail(problem.Invalid, "since is %s, must be a time such as 2026-01-02T15:04:05Z", problem.Shown(text))
		}
	}
	if err := q.err(); err != nil {
		return nil, err
	}
	return cut(c, most, func(ctx context.Context) iter.Seq2[ops.AuditEntry, error] {
		return func(yield func(ops.AuditEntry, error) bool) {
			for e, err := range s.desk.Audit(ctx, ask) {
				if (err != nil || c.who.viewer().MaySeeAction(e)) && !yield(e, err) {
					return
				}
			}
		}
	})
}
