package pages

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/joblock/toolkit/internal/ops"
)

// JobsBody is what the list of jobs shows.
type JobsBody struct {
	Rows     []ops.Job
	All      int
	Suspects int
	Slows    int // how many attempts run for too long
	Unknown  int // for how many attempts that is unknown
	Next     string
	Only     bool // show only suspects
	Slow     bool // show only attempts that run for too long
	Queue    string
	Prefix   string
	State    string
	Queues   []string
	TaskIn   []string
	Walk     WalkInfo
}

func jobMark(j *ops.Job) string {
	rank := "2"
	switch {
	case j.Suspect != "":
		rank = "0"
	case slow(j):
		rank = "1"
	}
	return rank + j.Job + "\x00" + j.Key
}

// slow reports whether the attempt of a job runs for too long.
func slow(j *ops.Job) bool { return j.Long != "" || j.Slow != "" }

func (h *Handler) jobsPage(ctx context.Context, v *View) (any, error) {
	w, err := h.jobs.look(ctx)
	if err != nil {
		return nil, err
	}
	v.stale("the jobs and their tasks", w.at, w.err)
	b := &JobsBody{
		Only: one(v.Query, "suspects") == "1", Slow: one(v.Query, "slow") == "1", Queue: one(v.Query, "queue"), Prefix: one(v.Query, "prefix"), State: one(v.Query, "task"),
		Walk: infoOf(w, v.ahead()),
	}
	b.Walk.Jobs, b.Walk.Rows = true, true
	sorted := of(w, "sorted", func() []*ops.Job {
		rows := pointers(w.rows)
		slices.SortFunc(rows, func(a, b *ops.Job) int { return strings.Compare(jobMark(a), jobMark(b)) })
		return slices.CompactFunc(rows, func(a, b *ops.Job) bool { return a.Job == b.Job && a.Key == b.Key })
	})
	after := one(v.Query, "after")
	var keys []string
	queues, states := map[string]bool{}, map[string]bool{}
	for _, j := range sorted {
		if !v.Who.MayUse(j.Key) || !v.Who.mayJob(j.Job) || !v.Who.viewer().MaySee(j.Task) {
			continue
		}
		queues[j.Task.Queue], states[string(j.Task.State)] = true, true
		if j.Suspect != "" {
			b.Suspects++
		}
		if slow(j) {
			b.Slows++
		} else if j.Incomparable() {
			b.Unknown++
		}
		if b.Only && j.Suspect == "" || b.Slow && !slow(j) || b.Queue != "" && j.Task.Queue != b.Queue || b.State != "" && string(j.Task.State) != b.State || !strings.HasPrefix(j.Key, b.Prefix) {
			continue
		}
		b.All++
		if after != "" && jobMark(j) <= after {
			continue
		}
		if len(b.Rows) < pageRows {
			b.Rows = append(b.Rows, *j)
			keys = append(keys, j.Key)
		} else if b.Next == "" {
			b.Next = jobMark(&b.Rows[len(b.Rows)-1])
		}
	}
	for q := range queues {
		if q != "" {
			b.Queues = append(b.Queues, q)
		}
	}
	for s := range states {
		if s != "" {
			b.TaskIn = append(b.TaskIn, s)
		}
	}
	slices.Sort(b.Queues)
	slices.Sort(b.TaskIn)
	slices.Sort(keys)
	keys = slices.Compact(keys)
	fresh := h.statuses(ctx, v, "the locks of the rows", "rows "+strings.Join(keys, "\x00"), keys)
	gone := false
	for i := range b.Rows {
		j := &b.Rows[i]
		if now, ok := fresh[j.Key]; ok && j.Place == nil {
			j.Lock.State, j.Lock.Waiters = now.State, now.Waiters
			if now.Job != j.Job {
				j.Lock.State = 0 // the job has given its lock back since the walk
				gone = true
			}
		}
	}
	if gone && !v.Live { // a stream shows it until the next walk
		b.Rows = slices.DeleteFunc(b.Rows, func(j ops.Job) bool {
			_, ok := fresh[j.Key]
			return ok && j.Place == nil && j.Lock.State == 0
		})
	}
	return b, nil
}

// JobBody is what the page about one job shows.
type JobBody struct {
	Job     string
	Task    ops.Task
	Locks   []ops.Job
	Actions []Offer
	WhyNot  string
	Done    *HistoryItem
	Hidden  bool
	History []HistoryItem // what operators have done to the job, and their notes
}

type jobRead struct {
	locks []ops.Job
	task  ops.Task
}

func (h *Handler) jobRead(ctx context.Context, v *View, job string) (jobRead, error) {
	r, err := get(ctx, h.cache, "job "+job+v.Who.sight(), tick, seen(v.Who, func(ctx context.Context) (jobRead, error) {
		locks, task, err := h.cfg.Desk.Job(ctx, job)
		return jobRead{locks, task}, err
	}))
	return take(v, "the job", r, err)
}

func (h *Handler) jobPage(ctx context.Context, v *View) (any, error) {
	job := one(v.Query, "job")
	if !v.Who.mayJob(job) {
		return nil, &shown{403, "Not allowed", "You may not see jobs of this queue."}
	}
	got, err := h.jobRead(ctx, v, job)
	if err != nil {
		return nil, err
	}
	b := &JobBody{Job: job, Task: got.task}
	for _, j := range got.locks {
		if v.Who.MayUse(j.Key) {
			b.Locks = append(b.Locks, j)
		}
	}
	if !v.Who.AllKeys && len(b.Locks) == 0 {
		b.Hidden = true
		b.Task = ops.Task{State: ops.TaskUnknown, Problem: "The job has no lock that you may see."}
	}
	b.WhyNot = v.WhyNot(v.Who.Operate, "operate")
	own := v.Who.AllKeys
	if !own && v.MayOperate() && !b.Hidden {
		if own, err = h.cfg.Desk.CarriesOnly(ctx, job, v.Who.MayUse); err != nil {
			v.notice("What the task carries could not be read: %s.", plain(err))
		}
	}
	if v.MayOperate() && own {
		for i := range ops.Verbs {
			verb := &ops.Verbs[i]
			name := verb.Action.Verb()
			inLine := name == ops.ActRunTask && b.Task.Waits && slices.ContainsFunc(b.Locks, func(j ops.Job) bool { return j.Place != nil })
			if verb.Has("Queue") && steers(name, b.Task) && !inLine {
				b.Actions = append(b.Actions, Offer{Title: verb.Title, Href: actURL("do", doOf(name), "job", job), Offer: ops.Offer{Effect: steerEffect(verb)}})
			}
		}
	}
	if (v.Who.Operate || v.Who.Admin) && !b.Hidden {
		if tail, err := h.tail(ctx); err == nil {
			for _, e := range tail.val {
				if e.Scope == "" && e.Key == job && v.Who.viewer().MaySeeAction(e) && len(b.History) < historyRows {
					b.History = append(b.History, itemOf(e))
				}
			}
		}
	}
	b.Done = h.doneAction(ctx, v, func(e ops.AuditEntry) bool { return e.Scope == "" && e.Key == job })
	v.Title = shorten(visible(job), 60)
	return b, nil
}

// steerEffect returns what an action does to any task.
func steerEffect(v *ops.Verb) string {
	return cmp.Or(steerEffects[v.Action.Verb()], v.Doc)
}

var steerEffects = map[string]string{
	ops.ActRunTask:    "asynq takes the task now, and does not wait for its time. If the lock is gone by then, the attempt takes it again.",
	ops.ActCancelTask: "The running handler is asked to stop, and the attempt counts as failed. A handler that ignores the request keeps running.",
	ops.ActEndArchive: "The running handler is asked to stop. When the handler has returned, the task goes into asynq's archive before another attempt begins; it can be run later. A keeper then gives its lock or its place in line to the next; a sequence that halts on failure halts, if the job has its key.",
	ops.ActEndDelete:  "The running handler is asked to stop. When the handler has returned, the task is deleted, before another attempt begins: the job is gone, and its work is not done. A keeper then gives its lock or its place in line to the next.",
	ops.ActArchive:    "asynq keeps the task in its archive, where it can be run later. A keeper then gives its lock or its place in line to the next; a sequence that halts on failure halts, if the job has its key.",
	ops.ActDeleteTask: "The job is gone, and its work is not done. A keeper then gives its lock or its place in line to the next.",
}

// steers reports whether an action fits the state of a task.
func steers(name string, t ops.Task) bool {
	if name == ops.ActRunTask && (t.Waits && t.State == "scheduled" || t.State == "completed") {
		return false // it would go back to wait for its turn, or is done
	}
	return t.Check(name) == nil
}
