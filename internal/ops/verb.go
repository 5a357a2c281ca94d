package ops

import (
	"context"
	"reflect"
	"slices"

	"github.com/joblock/toolkit/internal/core"
)

// Action is something that an operator does to a key, to a task or to a cron job: a name and its arguments. Each type
// documents what the action does, and with which errors. Operator.Act performs it.
type Action interface {
	// Verb is the name of the action in explanations, errors and the record of actions.
	Verb() string

	perform(ctx context.Context, d *Desk) (ActionResult, error)
}

// The names of actions, and of what an Offer proposes in addition: to wait, to unpause a queue of asynq, to start a keeper.
const (
	ActForce         = "force release"
	ActFreeIdle      = "free if idle"
	ActSkipJob       = "skip job"
	ActRunTask       = "run task"
	ActCancelTask    = "cancel task"
	ActEndArchive    = "end and archive task"
	ActEndDelete     = "end and delete task"
	ActArchive       = "archive task"
	ActDeleteTask    = "delete task"
	ActCronPause     = "cron pause"
	ActCronResume    = "cron resume"
	ActCronPauseAll  = "cron pause all"
	ActCronResumeAll = "cron resume all"
	ActCronTrigger   = "cron trigger"
	ActCronBackfill  = "cron backfill"
	ActCronStop      = "cron stop backfill"
	ActCronForget    = "cron forget"
	ActWait          = "wait"
	ActUnpause       = "unpause queue"
	ActStartKeep     = "start a keeper"
)

// Verb is a row of the table of actions: what the command line, the HTTP API and the pages need to know of one.
type Verb struct {
	Action Action // the zero value of the type, but for the arguments that make a name of its own
	Title  string // of a button
	Path   string // of the route; "" if the row is another name for the type of a row before
	Right  string // of the caller of the route, and of who sees the button
	Doc    string // one sentence

	States []TaskState // of an action on a task: those in which it can be done; nil for all
}

// Verbs is the table of actions.
var Verbs = []Verb{
	{ForceRelease{}, "Force release", "/v1/force-release", "operate", "Free a key, no matter who has it.", nil},
	{ForceRelease{IfIdle: true}, "Free if idle", "", "operate", "", nil},
	{SkipJob{}, "Skip the job", "/v1/skip", "operate", "Move a sequence on past the job that has failed and halts it.", nil},
	{RunTask{}, "Run the task", "/v1/jobs/{queue}/{id}/run", "operate", "Run a task now that is scheduled, waits for a retry or is archived.", []TaskState{"scheduled", "retry", "archived", "completed"}},
	{CancelTask{}, "Cancel the task", "/v1/jobs/{queue}/{id}/cancel", "operate", "End the context of the handler that runs a task, and delete or archive the task then if that is wanted.", cancellable},
	{CancelTask{Then: ThenArchive}, "End the job, archive it", "", "operate", "", cancellable},
	{CancelTask{Then: ThenDrop}, "End the job, delete it", "", "operate", "", cancellable},
	{ArchiveTask{}, "Archive the task", "/v1/jobs/{queue}/{id}/archive", "operate", "Move a task that does not run from its queue into asynq's archive.", archivable},
	{DropTask{}, "Delete the task", "/v1/jobs/{queue}/{id}/drop", "operate", "Delete a task that does not run. Its lock or its place goes to the next.", deletable},
	{AnnotateJob{}, "Add a note", "/v1/jobs/{queue}/{id}/annotate", "operate", "Leave a note about a job, for others who look at it. It changes nothing else.", nil},
	{PauseKey{}, "Pause", "/v1/pause", "operate", "Hold back all jobs of a key, and of the keys below it, until the key is resumed or for a time.", nil},
	{ResumeKey{}, "Resume", "/v1/resume-key", "operate", "End the pause of a key. The jobs that were held back start.", nil},
	{SetLimit{}, "Set the limit", "/v1/limits/{limit}/set", "operate", "Set the value of a named limit, in place of the value in the code.", nil},
	{ClearLimit{}, "Clear the limit", "/v1/limits/{limit}/clear", "operate", "Give a named limit the value in the code again.", nil},
	{PauseCron{}, "Pause", "/v1/cron/{name}/pause", "cron", "Pause a cron job.", nil},
	{ResumeCron{}, "Resume", "/v1/cron/{name}/resume", "cron", "End the pause of a cron job.", nil},
	{PauseAllCron{}, "Pause all", "/v1/cron-pause", "cron", "Pause all cron jobs of a scope.", nil},
	{ResumeAllCron{}, "Resume all", "/v1/cron-resume", "cron", "End the pause of all cron jobs of a scope.", nil},
	{TriggerCron{}, "Trigger", "/v1/cron/{name}/trigger", "cron", "Execute a cron job once. To find the run: of the runs of /v1/cron/{name} with the cause trigger, it is the first whose tick is not before the now that the route showed before.", nil},
	{BackfillCron{}, "Backfill", "/v1/cron/{name}/backfill", "cron", "Execute the ticks of a range of the past once each, one after the other, at most 10,000. A cron job has one backfill at a time.", nil},
	{StopBackfill{}, "Stop the backfill", "/v1/cron/{name}/stop-backfill", "cron", "End the backfill of a cron job before its next tick.", nil},
	{ForgetCron{}, "Forget", "/v1/cron/{name}/forget", "cron", "Remove the record of a cron job that no node has.", nil},
}

// VerbOf returns the row of an action, or nil if there is none of this name.
func VerbOf(name string) *Verb {
	i := slices.IndexFunc(Verbs, func(v Verb) bool { return v.Action.Verb() == name })
	if i < 0 {
		return nil
	}
	return &Verbs[i]
}

// Args are the arguments that most actions have. A field is the zero value if an action has no such argument.
type Args struct {
	Key    string `json:"key,omitempty"`
	Fence  int64  `json:"fence,omitempty"` // of the holding that the operator has seen
	Job    string `json:"job,omitempty"`   // "queue/taskID"
	Step   string `json:"step,omitempty"`  // of the task that the operator has seen
	Scope  string `json:"scope,omitempty"`
	Cron   string `json:"cron,omitempty"`   // the name of a cron job
	Reason string `json:"reason,omitempty"` // for other operators, from 1 to 256 bytes
}

// With returns the action of a row with its arguments.
func (v *Verb) With(a Args) Action {
	made := reflect.New(reflect.TypeOf(v.Action)).Elem()
	made.Set(reflect.ValueOf(v.Action))
	queue, id, _ := ParseJob(a.Job)
	for name, value := range map[string]any{
		"Key": a.Key, "Fence": a.Fence, "Queue": queue, "ID": id, "Step": a.Step, "Scope": a.Scope, "Name": a.Cron, "Reason": a.Reason,
	} {
		if f := made.FieldByName(name); f.IsValid() {
			f.Set(reflect.ValueOf(value))
		}
	}
	return made.Interface().(Action)
}

// Has reports whether the action of a row has an argument, by the name of the field: Key, Queue, Scope.
func (v *Verb) Has(field string) bool {
	_, ok := reflect.TypeOf(v.Action).FieldByName(field)
	return ok
}

// Offer proposes to an operator what to do: an action by its name with its arguments, without a reason, or something that is
// no Action. Each user interface shows it in its own way: a command, a button, a request.
type Offer struct {
	Name string `json:"name"`
	Args
	Effect string `json:"effect"`           // in sentences
	Danger string `json:"danger,omitempty"` // what may go wrong, in sentences
}

// ActionResult is the result of an action. Fields that an action does not have are the zero value.
type ActionResult struct {
	Audit string `json:"audit"` // the AuditEntry.ID; "" if Unchanged

	Before *Lock    `json:"before,omitempty"` // of ForceRelease: the key before
	After  *Lock    `json:"after,omitempty"`  // of ForceRelease: the key afterwards, with the next in line, if any
	Run    *CronRun `json:"run,omitempty"`    // of TriggerCron with Wait: the execution
	Ticks  int      `json:"ticks,omitempty"`  // of BackfillCron: how many ticks the range has

	// Unchanged says that there was nothing to do, so nothing was changed and nothing was recorded.
	Unchanged bool `json:"unchanged,omitempty"`

	// Was is the pause that was in effect before an action that pauses or resumes: the pause of that job or, for an action
	// on all jobs, that of all jobs. If a PauseCron changed it, the pause continues with the new reason.
	Was *CronPause `json:"was,omitempty"`

	// Outcome is what happened to the task, for a CancelTask with a Then.
	Outcome TaskOutcome `json:"outcome,omitempty"`

	// Problems say, in sentences, what could not be read or recorded after the action.
	Problems []string `json:"problems,omitempty"`
}

// Act performs an action, between two entries of the record of actions: one from before it begins, without which the action
// is refused with ErrNotRecorded, and one with its outcome. A reason that is missing or longer than 256 bytes, and a Desk
// without the name of who acts, are joblock.ErrInvalid; see As. The other errors are those that the type documents.
func (d *Desk) Act(ctx context.Context, a Action) (ActionResult, error) {
	if v := reflect.ValueOf(a); !v.IsValid() || v.Kind() != reflect.Struct {
		return ActionResult{}, core.Invalid("act", "", "the action is a %T, must be one of the Action types", a)
	}
	return a.perform(ctx, d)
}
