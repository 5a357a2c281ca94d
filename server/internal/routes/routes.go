// Package routes is the table of the lock server's routes. The mux of package server, openapi.json and the calls of
// package client are generated from it.
package routes

import (
	"net/http"
	"reflect"

	"github.com/joblock/toolkit/internal/ops"
)

// Row is one route.
type Row struct {
	Method string
	Path   string
	Scope  string // a right of the caller, or Any, or None
	Doc    string // one sentence

	Keyed bool // also served with the key in the path: see Paths
	Lists bool // it reads much of the store, so it has a rate of its own
	Acts  bool // it performs an operator's action, so it has a rate of its own and is recorded

	Errors []int  // statuses in addition to those that every route has
	Fence  bool   // the answer has the header Joblock-Fence
	ETag   bool   // the answer has an ETag
	Stream string // a content type of lines of type Line that the route can answer with
	Raw    string // the content type of an answer that is not JSON

	Request, Answer, Line reflect.Type
}

// The values of Scope that are not the name of a right.
const (
	Any  = "any"
	None = ""
)

// Paths returns the paths of the route. A Keyed route also has a path with the key in it.
func (r *Row) Paths() []string {
	switch {
	case !r.Keyed:
		return []string{r.Path}
	case r.Path == "/v1/lock":
		return []string{r.Path, "/v1/locks/{key}"}
	}
	return []string{r.Path, "/v1/locks/{key}" + r.Path[len("/v1"):]}
}

// Route is a Row with the types of its request and its answer.
type Route[Req, Res any] struct{ Row }

// All has every route.
var All []*Row

func get[Req, Res any](path, scope, doc string, row Row) *Route[Req, Res] {
	return add[Req, Res](http.MethodGet, path, scope, doc, row)
}

func post[Req, Res any](path, scope, doc string, row Row) *Route[Req, Res] {
	return add[Req, Res](http.MethodPost, path, scope, doc, row)
}

func add[Req, Res any](method, path, scope, doc string, row Row) *Route[Req, Res] {
	row.Method, row.Path, row.Scope, row.Doc = method, path, scope, doc
	row.Request, row.Answer = reflect.TypeFor[Req](), reflect.TypeFor[Res]()
	r := &Route[Req, Res]{row}
	All = append(All, &r.Row)
	return r
}

// Statuses of calls about a lock, and of actions that name in If-Match what the operator has seen.
var (
	ofLock = []int{http.StatusNotFound, http.StatusConflict, http.StatusGone}
	ifSeen = []int{http.StatusPreconditionFailed, http.StatusPreconditionRequired}
)

// Locks.
var (
	Acquire = post[AcquireRequest, Granted]("/v1/acquire", "lock", "Take a lock, or wait for it.", Row{Keyed: true, Fence: true, Errors: append(ofLock, http.StatusUnprocessableEntity)})
	Renew   = post[RenewRequest, Renewed]("/v1/renew", "lock", "Begin a new lease.", Row{Keyed: true, Errors: ofLock})
	Release = post[ReleaseRequest, Released]("/v1/release", "lock", "Give a lock back.", Row{Keyed: true, Errors: ofLock})
	Park    = post[ParkRequest, Parked]("/v1/park", "lock", "Reserve the key for the token that park returns.", Row{Keyed: true, Fence: true, Errors: ofLock})
	Resume  = post[ResumeRequest, Granted]("/v1/resume", "lock", "Take the lock of a token.", Row{Keyed: true, Fence: true, Errors: append(ofLock, http.StatusUnprocessableEntity)})
	Hold    = post[HoldRequest, Empty]("/v1/hold", "lock", "Hold a lock as long as the client reads.", Row{Keyed: true, Stream: "application/x-ndjson", Line: reflect.TypeFor[HoldLine](), Errors: append(ofLock, http.StatusNotAcceptable)})
	Enqueue = post[EnqueueRequest, Enqueued]("/v1/enqueue", "enqueue", "Take a lock and enqueue an asynq task that carries it.", Row{Errors: ofLock})
	Me      = get[Empty, Caller]("/v1/me", Any, "The rights of the caller.", Row{})
)

// What operators see.
var (
	Lock      = get[KeyQuery, ops.Lock]("/v1/lock", "read", "One key, with its line, its permits and its job.", Row{Keyed: true, ETag: true})
	Explain   = get[KeyQuery, ops.Explanation]("/v1/explain", "read", "What happens to a key, and what frees it.", Row{Keyed: true})
	Line      = get[LineQuery, List[ops.Waiter]]("/v1/line", "read", "Who waits for a key, in order.", Row{Keyed: true})
	Permits   = get[PermitsQuery, ops.Permits]("/v1/permits", "read", "The permits of a limit, or the slots of a sequence.", Row{Keyed: true})
	Locks     = get[LocksQuery, List[ops.Lock]]("/v1/locks", "read", "The locks that are held, by pages.", Row{Lists: true})
	Statuses  = post[StatusesRequest, List[ops.Lock]]("/v1/status", "read", "Many keys at once, in their order.", Row{})
	Jobs      = get[JobsQuery, List[ops.Job]]("/v1/jobs", "read", "The jobs that have locks or wait for locks.", Row{Lists: true})
	Job       = get[JobQuery, JobAnswer]("/v1/jobs/{queue}/{id}", "read", "The locks and the places of one job.", Row{Lists: true, ETag: true})
	Controls  = get[Empty, ops.Controls]("/v1/controls", "read", "What operators have set: the pauses of keys, and the values of named limits. A caller with prefixes sees the pauses of its own keys.", Row{})
	Sequences = get[SequencesQuery, List[ops.Sequence]]("/v1/sequences", "read", "The lines of jobs: which have halted, why, and how many wait.", Row{Lists: true})
	Keeper    = get[Empty, ops.Keeper]("/v1/keeper", "read", "What the keepers report of themselves.", Row{})
	Outboxes  = get[Empty, ops.Outboxes]("/v1/outboxes", "read", "What the relays of outboxes report of themselves: how far behind they are, and their errors.", Row{})
	Doctor    = get[Empty, DoctorAnswer]("/v1/doctor", "read", "Whether locks are safe, and what endangers locks, jobs and cron jobs, the worst first.", Row{Lists: true})
	Audit     = get[AuditQuery, List[ops.AuditEntry]]("/v1/audit", "admin", "What operators have done, the newest first.", Row{Lists: true})
	Events    = get[EventsQuery, List[ops.Event]]("/v1/events", "read", "What has happened to locks and cron jobs, the newest first; or, as server-sent events, what happens from now on.", Row{Lists: true, Stream: "text/event-stream", Line: reflect.TypeFor[ops.Event](), Errors: []int{http.StatusNotFound}})
	History   = get[HistoryQuery, ops.History]("/v1/history", "read", "What is known of the past of a key.", Row{Keyed: true, Lists: true, Errors: []int{http.StatusNotFound}})

	CronScopes  = get[Empty, List[string]]("/v1/cron-scopes", "read", "The scopes of cron jobs that callers may see.", Row{})
	CronJobs    = get[ScopeQuery, List[ops.CronJob]]("/v1/cron", "read", "The cron jobs of a scope.", Row{Lists: true})
	CronJob     = get[CronQuery, ops.CronJob]("/v1/cron/{name}", "read", "One cron job.", Row{Errors: []int{http.StatusNotFound}})
	CronNext    = get[ops.CronNextQuery, List[ops.CronTick]]("/v1/cron/{name}/next", "read", "The next ticks of a cron job.", Row{Errors: []int{http.StatusNotFound}})
	CronNodes   = get[ScopeQuery, List[ops.CronNode]]("/v1/cron-nodes", "read", "The nodes of a scope that are up.", Row{})
	CronPreview = get[CronPreviewQuery, ops.CronPlan]("/v1/cron-preview", "read", "The ticks of a spec, without a cron job.", Row{})
	CronCount   = get[ops.CronRange, Count]("/v1/cron/{name}/backfill", "read", "How many ticks a backfill of a range would execute.", Row{Errors: []int{http.StatusNotFound}})
)

// acts has the routes of operators' actions, by the type of the action.
var acts = actions()

func actions() map[reflect.Type]*Row {
	rows := make(map[reflect.Type]*Row)
	for _, v := range ops.Verbs {
		if v.Path == "" {
			continue
		}
		row := &Row{Method: http.MethodPost, Path: v.Path, Scope: v.Right, Doc: v.Doc, Keyed: v.Has("Key"), Acts: true,
			Request: reflect.TypeOf(v.Action), Answer: reflect.TypeFor[ops.ActionResult]()}
		if v.Has("Fence") || v.Has("Step") {
			row.Errors = append(row.Errors, ifSeen...)
		}
		row.Errors = append(row.Errors, http.StatusNotFound, http.StatusConflict)
		rows[row.Request] = row
		All = append(All, row)
	}
	return rows
}

// Of returns the route of an action.
func Of(a ops.Action) *Row { return acts[reflect.TypeOf(a)] }

// The server itself.
var (
	Healthz = get[Empty, Health]("/healthz", None, "200 while the process serves; asks no store.", Row{})
	Readyz  = get[Empty, Health]("/readyz", None, "200 while this replica should get requests.", Row{})
	Metrics = get[Empty, Empty]("/metrics", "read", "The metrics for Prometheus, if the server has some. A caller with prefixes may not see them.", Row{Raw: "text/plain", Errors: []int{http.StatusNotFound}})
	OpenAPI = get[Empty, Empty]("/openapi.json", None, "This document.", Row{Raw: "application/json"})
)
