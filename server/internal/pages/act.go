package pages

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/cmdline"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

const (
	// actTime bounds an action.
	actTime = 30 * time.Second

	mostForm   = 64 << 10
	mostReason = 256 // bytes, the same as in package ops
)

func actURL(pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return "act?" + q.Encode()
}

// ActBody is what the page of an action shows.
type ActBody struct {
	Do    string
	Title string // of the page
	Verb  string // on the button
	verb  *ops.Verb

	Key   string
	Job   string
	Scope string
	Name  string
	Fence int64
	Step  string // of the task that the page shows

	Lock    *ops.Lock
	Explain *ops.Explanation
	Task    *ops.Task
	Cron    *ops.CronJob

	Wait    string    // what happens if the operator does nothing
	WaitAt  time.Time // when that happens
	Effect  string
	Danger  string
	Command string
	Nothing string // why there is nothing to do
	Instead *Offer // a milder action
	Typed   string // what the operator must type to confirm

	Reason string // as the form sent it
	Wrong  string // what the form lacks
	Failed string // why the action was refused
	Moved  bool   // the key no longer has the fence of the form
	Seen   int64  // the fence of the form
	Stood  string // the step of the form
	Back   string
}

// doOf returns the name of an action for an address.
func doOf(name string) string { return strings.ReplaceAll(name, " ", "-") }

// is reports whether the page is that of the action of this name.
func (b *ActBody) is(name string) bool { return b.Do == doOf(name) }

// Deadly reports whether the button is red.
func (b *ActBody) Deadly() bool {
	return b.is(ops.ActForce) || b.is(ops.ActCronPauseAll) || b.is(ops.ActDeleteTask) || b.is(ops.ActEndDelete)
}

// Forces reports whether the action may free the key of a live holder.
func (b *ActBody) Forces() bool { return b.is(ops.ActForce) }

// act serves the page of an action, and performs the action when its form is sent. The page's form sends its values back.
func (h *Handler) act(w http.ResponseWriter, r *http.Request, v *View) {
	from := v.Query
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodPost:
		r.Body = http.MaxBytesReader(w, r.Body, mostForm)
		if err := r.ParseForm(); err != nil {
			h.Problem(w, r, v.Who, http.StatusBadRequest, "The form cannot be read", "Nothing was changed.")
			return
		}
		from = r.PostForm
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		h.Problem(w, r, v.Who, http.StatusMethodNotAllowed, "Not so", "Nothing was changed.")
		return
	}
	b := &ActBody{Do: one(from, "do"), Key: one(from, "key"), Job: one(from, "job"), Scope: one(from, "scope"), Name: one(from, "name")}
	if err := h.mayAct(r, v, b); err != nil {
		h.cfg.Logger.Warn("server: an action was refused", "principal", v.Who.ID, "action", shorten(b.Do, 20), "key", b.Key, "job", b.Job, "err", err)
		h.fail(w, r, v, err)
		return
	}
	if err := h.prepare(r.Context(), v, b); err != nil {
		h.fail(w, r, v, err)
		return
	}
	v.Title = b.Title
	status := http.StatusOK
	if r.Method == http.MethodPost {
		to, failed := h.carryOut(r, v, b, from)
		if to != "" {
			seeOther(w, to)
			return
		}
		status = failed
	}
	h.write(w, r, v, status, b)
}

// mayAct refuses an action that the caller may not perform, regardless of the state of its target.
func (h *Handler) mayAct(r *http.Request, v *View, b *ActBody) error {
	deny := func(format string, args ...any) error {
		return &shown{http.StatusForbidden, "Not allowed", fmt.Sprintf(format, args...) + " Nothing was changed."}
	}
	b.verb = ops.VerbOf(strings.ReplaceAll(b.Do, "-", " "))
	if b.verb == nil || b.verb.Has("From") || b.verb.Has("Limit") { // these actions need a form of their own
		return bad("There is no action %q.", shorten(visible(b.Do), 40))
	}
	b.Verb = b.verb.Title
	cron := b.verb.Has("Scope")
	may := v.Who.Operate
	if cron {
		may = v.Who.Cron
	}
	if why := v.WhyNot(may, b.verb.Right); why != "" {
		return deny("%s", why)
	}
	if cron {
		if !slices.Contains(h.cfg.Scopes, b.Scope) {
			return bad("The scope is %q, must be one of: %s.", shorten(visible(b.Scope), 60), strings.Join(h.cfg.Scopes, ", "))
		}
		if b.verb.Has("Name") != (b.Name != "") {
			return bad("The address names no cron job, or one too many.")
		}
		return nil
	}
	if b.Key != "" && !v.Who.MayUse(b.Key) {
		return deny("You may not use this key.")
	}
	if b.verb.Has("Key") {
		if b.Key == "" {
			return bad("The address has no key.")
		}
		return nil
	}
	if _, _, ok := ops.ParseJob(b.Job); !ok {
		return bad("The job is %q, must be QUEUE/ID, with %%2F for / and %%25 for %% in the name of the queue.", shorten(visible(b.Job), 60))
	}
	if !v.Who.mayJob(b.Job) {
		return deny("You may not steer tasks of this queue.")
	}
	if !v.Who.AllKeys {
		// As in the API, rights over a task follow from the locks that it carries, not from the job's name or a lock
		// bound to the job.
		own, err := h.cfg.Desk.CarriesOnly(r.Context(), b.Job, v.Who.MayUse)
		if err != nil {
			return err
		}
		if !own {
			return deny("The task carries no lock, or a lock that you may not use.")
		}
	}
	return nil
}

// prepare reads what the action is about, and says what will happen.
func (h *Handler) prepare(ctx context.Context, v *View, b *ActBody) error {
	b.Title = b.Verb
	switch {
	case b.verb.Has("Scope"):
		return h.prepareCron(ctx, b)
	case b.verb.Has("Queue"):
		return h.prepareTask(ctx, v, b)
	case !b.verb.Has("Fence"):
		return h.preparePause(ctx, b)
	}
	e, err := h.cfg.Desk.Explain(ctx, b.Key)
	if err != nil {
		return err
	}
	h.clock(e.Lock.Now)
	v.Now = h.storeNow()
	b.Explain, b.Lock, b.Fence, b.Wait, b.Back = &e, &e.Lock, e.Lock.Fence, e.Frees.Text, "lock?"+url.Values{"key": {b.Key}}.Encode()
	b.Title = b.Verb + ": " + shorten(visible(b.Key), 60)
	for _, a := range e.Actions {
		if b.is(a.Name) {
			b.Effect, b.Danger, b.Command = a.Effect, a.Danger, cmdline.Of(a)
		}
	}
	if b.is(ops.ActSkipJob) && e.Lock.Job != "" && !v.Who.mayJob(e.Lock.Job) {
		return &shown{http.StatusForbidden, "Not allowed", "You may not steer jobs of this queue. Nothing was changed."}
	}
	held := e.Lock.State == joblock.StateHeld
	switch {
	case !e.Lock.Locked():
		b.Nothing = "The key is free by now, so there is nothing to free."
	case b.is(ops.ActFreeIdle) && held:
		b.Nothing = "A holder runs under the lock, so this would do nothing."
	case b.is(ops.ActSkipJob) && b.Effect == "":
		b.Nothing = "No job halts a sequence here, so there is none to skip."
	case b.is(ops.ActForce) && !held:
		// The lock has no running holder. The milder action also frees it, but does nothing if a process works under it by then.
		for _, a := range e.Actions {
			if a.Name == ops.ActFreeIdle {
				b.Effect, b.Danger, b.Command = a.Effect, a.Danger, cmdline.Of(a)
				b.Instead = &Offer{Title: ops.VerbOf(ops.ActFreeIdle).Title, Href: actURL("do", doOf(ops.ActFreeIdle), "key", b.Key)}
			}
		}
	}
	if b.is(ops.ActForce) && held {
		b.Typed = b.Key
	}
	return nil
}

// preparePause prepares the page that pauses or resumes the jobs of a key.
func (h *Handler) preparePause(ctx context.Context, b *ActBody) error {
	e, err := h.cfg.Desk.Explain(ctx, b.Key)
	if err != nil {
		return err
	}
	h.clock(e.Lock.Now)
	b.Explain, b.Effect, b.Back = &e, b.verb.Doc, "lock?"+url.Values{"key": {b.Key}}.Encode()
	b.Command = cmdline.Of(ops.Offer{Name: b.verb.Action.Verb(), Args: ops.Args{Key: b.Key}})
	b.Title = b.Verb + ": " + shorten(visible(b.Key), 60)
	paused := slices.ContainsFunc(e.Lock.Paused, func(p ops.Pause) bool { return p.Key == b.Key })
	if b.is(ops.ActResumeKey) && !paused {
		b.Nothing = "The key is not paused by now."
	}
	return nil
}

func (h *Handler) prepareTask(ctx context.Context, v *View, b *ActBody) error {
	locks, task, err := h.cfg.Desk.Job(ctx, b.Job)
	if err != nil {
		return err
	}
	b.Task, b.Step, b.Back = &task, task.Step, "job?"+url.Values{"job": {b.Job}}.Encode()
	b.Title = b.Verb + ": " + shorten(visible(b.Job), 60)
	b.Effect = steerEffect(b.verb)
	for _, j := range locks {
		if !v.Who.MayUse(j.Key) || j.Place != nil {
			continue
		}
		e, err := h.cfg.Desk.Explain(ctx, j.Key)
		if err != nil {
			return err
		}
		if b.Explain == nil || j.Key == b.Key {
			b.Explain, b.Lock = &e, &e.Lock
		}
		for _, a := range e.Actions {
			if b.is(a.Name) && e.Lock.Job == b.Job {
				b.Effect, b.Danger, b.Command = a.Effect, a.Danger, cmdline.Of(a)
			}
		}
	}
	if b.is(ops.ActEndDelete) || b.is(ops.ActEndArchive) {
		b.Danger = fmt.Sprintf("A handler that ignores the request keeps running. Then the task stays, which the record of the action says after %s.", length(ops.EndWait))
	}
	b.Wait, b.WaitAt = idle(task, b.Explain)
	if b.Lock != nil {
		b.Title = b.Verb + ": " + shorten(visible(b.Lock.Key), 60)
	}
	if task.Type != "" {
		b.Title += " (" + shorten(visible(task.Type), 40) + ")"
	}
	if b.Key != "" {
		b.Back = "lock?" + url.Values{"key": {b.Key}}.Encode()
	}
	switch {
	case b.is(ops.ActRunTask) && task.Waits && slices.ContainsFunc(locks, func(j ops.Job) bool { return j.Place != nil }):
		b.Nothing = "The job waits in line, and starts when its turn comes. Running the task would send it back to wait."
	case !steers(b.verb.Action.Verb(), task):
		b.Nothing = fmt.Sprintf("The task is %s by now, so that does not fit.", task.State)
	}
	return nil
}

// idle returns what happens to a task if the operator does nothing, and when, if that is known. The parameter e explains
// the task's lock, and may be nil.
func idle(t ops.Task, e *ops.Explanation) (text string, at time.Time) {
	of := func(n int) string { return fmt.Sprintf("Attempt %d of %d", n, max(n, t.Attempts)) }
	switch {
	case t.State == "active" && t.Crashed:
		text = "The worker of this attempt has died. asynq schedules the next attempt within two minutes."
	case t.State == "active":
		text = of(t.Attempt) + " goes on"
		if t.Timeout > 0 {
			text += fmt.Sprintf(", for at most %s in all if its handler stops when asked", length(t.Timeout.Duration()))
			if at = t.Deadline.Time; at.IsZero() && e != nil && !e.Lock.Changed.IsZero() {
				at = e.Lock.Changed.Add(t.Timeout.Duration())
			}
		}
		if text += "."; t.Attempt < t.Attempts {
			text += fmt.Sprintf(" If it fails, attempt %d follows.", t.Attempt+1)
		}
		if !at.IsZero() {
			text += " Its time is up at"
		}
	case t.Waits && t.State == "scheduled":
		text = "The job waits in line, and starts when its turn comes."
	case t.State == "scheduled", t.State == "retry":
		text, at = of(t.Attempt+1)+" begins at", t.NextAt.Time
		if at.IsZero() {
			text = of(t.Attempt+1) + " begins at its time."
		}
	case t.State == "pending":
		text = of(t.Attempt+1) + " begins as soon as a worker is free."
	case t.State == "aggregating":
		text = "The task waits for others of its group, and runs with them."
	case t.State == "archived" && t.Snoozed:
		text = "The task comes back from the archive after a pause of some seconds."
	case t.State == "archived" && t.Halts:
		text = "The task stays in the archive, and its sequence halts."
	case t.State == "archived":
		text = "The task stays in the archive, and does not run again."
	case t.State == "completed":
		text = "The task is done, and asynq forgets it some time."
	}
	return text, at
}

func (h *Handler) prepareCron(ctx context.Context, b *ActBody) error {
	b.Back = "cron?" + url.Values{"scope": {b.Scope}}.Encode()
	b.Title = b.Verb + " cron jobs of " + shorten(visible(b.Scope), 40)
	var j ops.CronJob
	if b.Name != "" {
		var err error
		if j, err = h.cfg.Desk.CronJob(ctx, b.Scope, b.Name); err != nil {
			return err
		}
		h.clock(j.Now)
		b.Cron = &j
		b.Title = b.Verb + ": " + shorten(visible(b.Name), 60)
		b.Back = "cronjob?" + url.Values{"scope": {b.Scope}, "name": {b.Name}}.Encode()
	}
	b.Effect = cronEffect(b.verb.Action.Verb(), j)
	b.Wait, b.WaitAt = cronIdle(b.verb.Action.Verb(), j)
	switch {
	case b.Name != "" && b.is(ops.ActCronTrigger) && len(j.Nodes) == 0:
		b.Danger = "No node that is up has the job. The run begins when one comes."
	case b.is(ops.ActCronForget) && len(j.Nodes) > 0:
		b.Nothing = "A node that is up has the job, so it is not forgotten: it would be there again at once."
	case b.is(ops.ActCronPauseAll):
		b.Danger = "Nothing that depends on any of these jobs is done until they are resumed. Every page says so meanwhile."
		b.Typed = b.Scope
	}
	return nil
}

// carryOut checks the form and performs the action. It returns the page to go to, or the status of a page that says why
// not.
func (h *Handler) carryOut(r *http.Request, v *View, b *ActBody, form url.Values) (to string, status int) {
	b.Reason = strings.TrimSpace(one(form, "reason"))
	b.Stood = one(form, "step")
	seen, err := strconv.ParseInt(one(form, "fence"), 10, 64)
	if b.Lock != nil && b.Task == nil {
		if err != nil {
			b.Wrong = "The form has no fence. Load the page again."
			return "", http.StatusBadRequest
		}
		b.Seen = seen
		if b.Fence != seen || !b.Lock.Locked() {
			b.Moved = true
			h.refused(v, b, "the fence has moved on")
			return "", http.StatusConflict
		}
	}
	switch {
	case b.Nothing != "":
		h.refused(v, b, b.Nothing)
		return "", http.StatusConflict
	case b.Reason == "":
		b.Wrong = "Say why. The next one on call reads it."
		return "", http.StatusUnprocessableEntity
	case len(b.Reason) > mostReason:
		b.Wrong = fmt.Sprintf("The reason has %d bytes, at most %d are allowed.", len(b.Reason), mostReason)
		return "", http.StatusUnprocessableEntity
	case b.Typed != "" && one(form, "typed") != b.Typed:
		b.Wrong = "What was typed is not the same as what is asked for."
		return "", http.StatusUnprocessableEntity
	}
	if !v.Who.mayDo(1) {
		b.Failed = tooMany
		return "", http.StatusTooManyRequests
	}
	// The action must not stop half done when the viewer closes the tab.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actTime)
	defer cancel()
	id, err := h.do(ctx, v, b, seen)
	h.cfg.Logger.Info("server: action", "principal", v.Who.ID, "action", b.Verb, "key", b.Key, "job", b.Job, "scope", b.Scope, "name", b.Name, "fence", seen, "reason", b.Reason, "audit", id, "err", err)
	sight := v.Who.sight()
	h.cache.forget("audit", "explain "+b.Key+sight, "one "+b.Key, "job "+b.Job+sight, "cron "+b.Scope, "cron "+b.Scope+"\x00"+b.Name)
	if err == nil {
		return b.Back + "&" + url.Values{"done": {id}}.Encode(), 0
	}
	b.Failed, status = b.refusal(err)
	if errors.Is(err, joblock.ErrNotOwner) || errors.Is(err, joblock.ErrNotFound) && b.Lock != nil && b.Task == nil {
		b.Moved = true
		if e, err := h.cfg.Desk.Explain(ctx, b.Key); err == nil {
			b.Explain, b.Lock, b.Fence = &e, &e.Lock, e.Lock.Fence
		}
	}
	return "", status
}

const tooMany = "You have done too much in a short time. Nothing was changed. Wait for a moment."

func (h *Handler) refused(v *View, b *ActBody, why string) {
	h.cfg.Logger.Info("server: action", "principal", v.Who.ID, "action", b.Verb, "key", b.Key, "job", b.Job, "scope", b.Scope, "name", b.Name, "fence", b.Seen, "refused", why)
}

func (h *Handler) do(ctx context.Context, v *View, b *ActBody, seen int64) (id string, err error) {
	done, err := h.cfg.Desk.As(v.Who.ID, v.Who.From).Act(ctx, b.verb.With(ops.Args{
		Key: b.Key, Fence: seen, Job: b.Job, Step: b.Stood, Scope: b.Scope, Cron: b.Name, Reason: b.Reason,
	}))
	switch {
	case err == nil && done.Unchanged:
		err = errUnchanged
	case err == nil && b.is(ops.ActCronForget): // the job no longer has a page
		b.Back = "cron?" + url.Values{"scope": {b.Scope}}.Encode()
	}
	return done.Audit, err
}

// errUnchanged is returned for an action that had nothing to do.
var errUnchanged = errors.New("there was nothing to do: the same was done before")

// refusal returns a text that says why an action was not done, or that its outcome is unknown.
func (b *ActBody) refusal(err error) (text string, status int) {
	switch {
	case errors.Is(err, ops.ErrNotRecorded):
		return "The action could not be recorded, so it was not begun. Nothing was changed. Try again when Redis answers.", http.StatusServiceUnavailable
	case errors.Is(err, joblock.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "The store did not answer, so it is unknown whether the action took effect. Look at the present state before you try again.", http.StatusServiceUnavailable
	case errors.Is(err, errUnchanged):
		return sentence(err) + " Nothing was changed or recorded.", http.StatusConflict
	case errors.Is(err, joblock.ErrNotOwner):
		return "Another holder has the key by now. Nothing was changed.", http.StatusConflict
	case errors.Is(err, joblock.ErrNotFound), errors.Is(err, joblock.ErrBusy), errors.Is(err, joblock.ErrHeld):
		return sentence(err) + " Nothing was changed.", http.StatusConflict
	case errors.Is(err, joblock.ErrInvalid):
		return sentence(err) + " Nothing was changed.", http.StatusUnprocessableEntity
	}
	return sentence(err), http.StatusInternalServerError
}
