package ops

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Explanation describes in sentences what happens to a key. The sentences are for people; programs read Frees and Lock.
type Explanation struct {
	Key     string   `json:"key"`
	Text    []string `json:"text"`    // who has the key and why, what its job does, and who is next
	Frees   Frees    `json:"frees"`   // what frees the key without intervention
	Actions []Offer  `json:"actions"` // what an operator may do, the mildest first
	Lock    Lock     `json:"lock"`    // what the explanation is based on

	// Acts are recent actions of operators on the key, its permits and its job, the newest first. See Config.ExplainActs.
	Acts []AuditEntry `json:"acts,omitempty"`
}

// Frees says what frees a key by itself.
type Frees struct {
	By   FreesBy `json:"by"`
	Text string  `json:"text"` // the same in sentences

	// Latest is the latest time at which the key becomes free for others. It is zero if there is no such time, because a
	// holder works under the lock or the job of the lock is still alive. See If.
	Latest Time   `json:"latest,omitzero"`
	Within Millis `json:"within_ms,omitzero"` // the time until Latest; 0 also if Latest has passed
	If     string `json:"if,omitempty"`       // the condition of Latest, such as "the holder does not renew its lease"

	// JobEnds is the latest time at which the job of the lock ends by itself, if all its attempts fail. The pauses
	// between attempts are assumed to be the longest of asynq's default RetryDelayFunc, because the worker's function is
	// not known. For a chain, JobEnds is the latest end of the last step, if each step succeeds at its last attempt.
	// JobEnds is zero if the lock has no live job, or if the time is unknown or more than ten years away.
	JobEnds Time `json:"job_ends,omitzero"`
}

// Label is the heading of the text: "What frees it". It is "" if the text says only that the key is free.
func (f Frees) Label() string {
	switch {
	case f.By != ByNone:
		return "What frees it"
	case f.Text == isFree:
		return ""
	}
	return "Who gets it"
}

// FreesBy says what frees a key.
type FreesBy string

// The values of FreesBy.
const (
	ByNothing     FreesBy = "nothing"     // nothing frees the key by itself
	ByNone        FreesBy = "free"        // the key is free
	ByHolder      FreesBy = "holder"      // the holder, at the end of its work; or the end of its lease, if the holder dies
	ByReservation FreesBy = "reservation" // the end of the reservation
	ByJob         FreesBy = "job"         // the worker that ends the job of the lock
	ByKeeper      FreesBy = "keeper"      // a check of the keeper
)

// Explain reads one key as Lock does, and describes what happens to the key. If asynq or the keepers' stats could not be
// read, the text says so, and Frees is based on what is known. Errors are those of Lock.
func (d *Desk) Explain(ctx context.Context, key string) (Explanation, error) {
	lock, err := d.Lock(ctx, key)
	if err != nil {
		return Explanation{}, err
	}
	var keeper Keeper
	if lock.Job != "" && lock.Locked() || lock.Permits != nil && slices.ContainsFunc(lock.Permits.Permits, func(l Lock) bool { return l.Job != "" }) {
		if keeper, err = d.keepers(ctx, keyspace.Keepers); err != nil { // dry-run keepers change nothing
			lock.problem("The keepers could not be read: %s.", err)
		}
	}
	known := err == nil
	var acts []AuditEntry
	var unread error
	if d.cfg.ExplainActs {
		acts, unread = d.actsOn(ctx, lock)
	}
	return explain(lock, keeper, known, acts, unread), nil
}

// story has everything that an explanation is made from.
type story struct {
	Lock
	task   Task   // State "" if the lock is bound to no job
	keeper Keeper // the zero value if known is false
	known  bool
	acts   []AuditEntry
	now    time.Time
}

// explain makes an explanation from its arguments alone. unread is the error of reading the operators' actions.
func explain(l Lock, keeper Keeper, known bool, acts []AuditEntry, unread error) Explanation {
	s := story{Lock: l, keeper: keeper, known: known, acts: acts, now: l.Now.Time}
	if _, cools := envelope.ParseCooling(l.Job); l.Job != "" && !cools && l.Locked() {
		s.task = Task{State: TaskUnknown, Problem: "No database of asynq is known here."}
		if l.Task != nil {
			s.task = *l.Task
		}
	}
	frees := s.withJobEnds(s.frees())
	if !frees.Latest.IsZero() && !s.now.IsZero() {
		frees.Within = Millis(max(0, frees.Latest.Sub(s.now)))
	}
	text := []string{s.who()}
	for _, more := range []string{s.named(), s.paused(), s.doing(), s.operators(), s.permits(), s.lapses(), s.next(), s.Pace(), s.refusals(), s.unreadActs(unread), s.Rate} {
		if more != "" {
			text = append(text, more)
		}
	}
	text = append(text, l.Problems...)
	return Explanation{Key: l.Key, Text: text, Frees: frees, Actions: s.actions(frees), Lock: l, Acts: acts}
}

// who says what state the key is in, who has it, and since when.
func (s *story) who() string {
	var b strings.Builder
	switch s.Role {
	case RolePermit:
		fmt.Fprintf(&b, "This is permit %d of the limit %s. ", s.Number, quote(s.Group))
	case RoleSlot:
		fmt.Fprintf(&b, "This is slot %d of the sequence %s. ", s.Number, quote(s.Group))
	case RoleGate:
		fmt.Fprintf(&b, "This is the line of the limit %s, not a lock of an application. ", quote(s.Group))
	case RoleSize:
		fmt.Fprintf(&b, "This record says how many permits the limit %s has; it is not a lock. ", quote(s.Group))
	case RoleKeeper:
		b.WriteString("This is a place of a keeper, which looks after the locks of jobs. ")
	case RoleCron:
		b.WriteString("This is a record of a scheduler: who has it executes a cron job or changes the record. ")
	case RoleMark:
		b.WriteString("This is the mark of a task that its worker has snoozed by way of asynq's archive. ")
	case RoleNext:
		b.WriteString("This key is for the one job that waits until the present job is over. ")
		if s.task.cancels {
			b.WriteString("As soon as it is due, it ends the present job's context, and it starts when that job's handler has returned, or its worker has died and asynq has recovered its task. ")
		}
	}
	label := visibleOr(s.Holder, "a holder without a label")
	switch s.State {
	case joblock.StateFree:
		if p := s.Permits; p != nil && p.Kind == KindLimit && s.Fence == 0 {
			b.WriteString("This is the key of a limit. The key itself has no holder: each caller that is let in has a permit.")
		} else {
			b.WriteString(s.ended())
		}
	case joblock.StateForeign:
		b.WriteString("The value at this key in the store is not a lock. No call of the toolkit changes the value, and the lock cannot be taken.")
	case joblock.StateHeld:
		fmt.Fprintf(&b, "%s has had the lock since %s (%s)%s.%s", label, s.clock(s.Changed.Time), s.ago(s.Changed.Time), s.forJob(), s.begun())
		b.WriteString(s.pulse())
	case joblock.StateParked:
		if job, cools := envelope.ParseCooling(s.Job); cools {
			fmt.Fprintf(&b, "The key cools down after the job %s, since %s (%s): no job of the key starts until %s.", quote(job), s.clock(s.Changed.Time), s.ago(s.Changed.Time), s.clock(s.ReservedUntil.Time))
			break
		}
		fmt.Fprintf(&b, "No process works under the lock. It has been kept%s since %s (%s), and is kept until %s, unless it is freed before.", s.forWhom(), s.clock(s.Changed.Time), s.ago(s.Changed.Time), s.clock(s.ReservedUntil.Time))
		fmt.Fprintf(&b, " Last holder: %s.", label)
	case joblock.StateOrphaned:
		because := "because its process has died, hangs, or is cut off from the store"
		if s.Lately != nil && s.Lately.Meant {
			because = "because it had ended the renewal itself, as the journal shows"
		}
		fmt.Fprintf(&b, "%s got the lock at %s (%s) and did not give it back: its lease has run out, %s.%s%s", label, s.clock(s.Changed.Time), s.ago(s.Changed.Time), because, s.stopped(), s.begun())
		fmt.Fprintf(&b, " The lock is still kept%s, until %s unless it is freed before.", s.forWhom(), s.clock(s.ReservedUntil.Time))
	}
	return b.String()
}

// begun says when the key was acquired, if the present holder has resumed the lock of an earlier holder.
func (s *story) begun() string {
	if !s.Changed.After(s.Since.Time) {
		return ""
	}
	return fmt.Sprintf(" The lock was first acquired at %s (%s).", s.clock(s.Since.Time), s.ago(s.Since.Time))
}

func (s *story) forJob() string {
	if s.Job == "" {
		return ""
	}
	return ", for the job " + quote(s.Job)
}

func (s *story) forWhom() string {
	if s.Job == "" {
		return " for the owner of its token"
	}
	return " for the job " + quote(s.Job)
}

// ended says how the last holding of a free key ended.
func (s *story) ended() string {
	if s.Fence == 0 && !s.Unknown() { // such as a key above others that is paused, or a key that has only a rate
		return "The store has no record of this key: the key is free, and no earlier holder is remembered."
	}
	if s.Fence == 0 {
		return "The store has no record of this key: the key is free, and no earlier holder is remembered. Check the spelling of the key."
	}
	var how string
	switch s.Ended {
	case driver.EndedReleased:
		how = "released it"
	case driver.EndedDone:
		how = "released it, because its job was done"
	case driver.EndedForced:
		switch how = "lost it to a forced release"; s.FreedBy { // the record of actions has only actions of operators
		case FreedByKeeper:
			how = "left it behind, and a keeper freed it"
		case FreedByProgram:
			how = "left it behind, and a program freed it"
		case FreedByForce:
			if isSigned(s.Reason) || s.forcedBy() != nil {
				how = "lost it when an operator freed it"
			}
		}
		if by := s.forcedBy(); by != nil {
			return fmt.Sprintf("The key is free. %s had it last and %s at %s%s.", visibleOr(s.Holder, "A holder without a label"), how, s.when(s.EndedAt.Time), s.byWhom(by))
		}
	default:
		how = "let it lapse"
	}
	text := fmt.Sprintf("The key is free. %s had it last and %s", visibleOr(s.Holder, "A holder without a label"), how)
	if !s.EndedAt.IsZero() {
		text += fmt.Sprintf(" at %s (%s)", s.clock(s.EndedAt.Time), s.ago(s.EndedAt.Time))
	}
	switch {
	case s.Ended != driver.EndedLapsed:
	case s.Renewed.IsZero():
		text += ": the lock was not resumed in time"
	case s.hasRenewed():
		text += fmt.Sprintf(": the lease of %s was renewed last at %s", length(s.TTL.Duration()), s.clock(s.Renewed.Time))
	default:
		text += fmt.Sprintf(": the lease of %s, which began at %s, was never renewed", length(s.TTL.Duration()), s.clock(s.Renewed.Time))
	}
	if s.Reason != "" {
		text += fmt.Sprintf(". Reason: %s", visible(s.Reason))
	}
	return text + "."
}

// named says what a key made by handoff.TaskKey stands for, because the digest in the key is not readable.
func (s *story) named() string {
	key := s.Key
	if s.Role == RolePermit || s.Role == RoleSlot {
		key = s.Group
	}
	kind, ok := keyspace.TaskType(key)
	if !ok {
		return ""
	}
	text := fmt.Sprintf("The key stands for all tasks of type %s with the same payload: its last part is a digest of that payload.", quote(kind))
	if t := s.task; t.State != "" && t.State != TaskUnknown && t.State != TaskNoQueue && t.State != TaskAbsent {
		text += fmt.Sprintf(" \"joblock jobs get --payload -- %s\" shows the payload.", Shell(s.Job))
	}
	return text
}

// doing says what the job of the lock does in asynq.
func (s *story) doing() string {
	t := &s.task
	if t.State == "" {
		return ""
	}
	var b strings.Builder
	switch t.State {
	case TaskUnknown:
		return "What its job does is not known. " + t.Problem
	case TaskNoQueue:
		return fmt.Sprintf("None of the databases of asynq that are known here has the queue %s: the queue was deleted, or is in another database.", quote(t.Queue))
	case TaskAbsent:
		if by := s.deletedBy(); by != nil {
			return fmt.Sprintf("asynq does not have its task: it was deleted at %s%s.", s.when(by.At.Time), s.byWhom(by))
		}
		if link, ok := chain.ParseID(t.ID); ok {
			return fmt.Sprintf("asynq does not have its task, step %d of a chain: the task was deleted, or the worker of the step before has died just before it was enqueued. Then asynq delivers that step again, which enqueues this one.", link.Step)
		}
		return "asynq does not have its task: the task was deleted or trimmed, or is only now being enqueued."
	case "active":
		fmt.Fprintf(&b, "In asynq its task %s is active, %s.", visible(t.Type), s.attempt())
		if t.cancels && s.Role != RoleNext {
			fmt.Fprintf(&b, " A newer job of the key ends it: \"joblock explain -- %s\" shows whether one waits for its handler to return.", Shell(keyspace.Next(s.Key)))
		}
		if t.Crashed {
			b.WriteString(" But no worker renews asynq's lease: the worker has died. asynq gives the task to another worker, one to two minutes after the death.")
		}
	case "pending":
		fmt.Fprintf(&b, "In asynq its task %s is pending: it waits for a free worker.%s", visible(t.Type), s.after())
	case "scheduled":
		if t.Waits {
			fmt.Fprintf(&b, "In asynq its task %s waits for its turn in the line of this key.", visible(t.Type))
		} else {
			fmt.Fprintf(&b, "In asynq its task %s is scheduled: asynq takes it at %s (%s).%s", visible(t.Type), s.clock(t.NextAt.Time), s.until(t.NextAt.Time), s.after())
		}
	case "retry":
		if wait := s.rateWait(); wait != "" {
			return wait
		}
		fmt.Fprintf(&b, "In asynq its task %s waits for its next attempt, at %s (%s).%s", visible(t.Type), s.clock(t.NextAt.Time), s.until(t.NextAt.Time), s.after())
	case "aggregating":
		fmt.Fprintf(&b, "In asynq its task %s waits in the group %s to be aggregated with others.", visible(t.Type), quote(t.Group))
	case "archived":
		switch {
		case t.Snoozed:
			fmt.Fprintf(&b, "In asynq its task %s is in the archive only for a pause of some seconds, because its key was busy.", visible(t.Type))
		case s.halted():
			how := "has failed for good"
			if t.Attempt == 0 {
				how = "was archived before its first attempt"
			}
			fmt.Fprintf(&b, "In asynq its task %s %s, and its sequence halts until an operator decides.%s", visible(t.Type), how, s.after())
		default:
			fmt.Fprintf(&b, "In asynq its task %s is archived: it has failed for good, or an operator has archived it.%s", visible(t.Type), s.after())
		}
	case "completed":
		fmt.Fprintf(&b, "In asynq its task %s was completed at %s.", visible(t.Type), s.clock(t.CompletedAt.Time))
	default:
		fmt.Fprintf(&b, "In asynq its task %s is %s.", visible(t.Type), visible(string(t.State)))
	}
	if t.Chain != "" && !t.Ended() {
		fmt.Fprintf(&b, " It is a step of a chain (%s): the key stays taken until the last step is done, or a step has failed for good.", t.Chain)
	}
	if long := cmp.Or(s.long(), s.slower()); long != "" {
		b.WriteString(" " + long)
	}
	if t.Paused && !t.Ended() {
		fmt.Fprintf(&b, " The queue %s is paused, so no attempt begins.", quote(t.Queue))
	}
	return b.String()
}

// attempt says which attempt of the task runs.
func (s *story) attempt() string {
	text := fmt.Sprintf("attempt %d of %d", s.task.Attempt, max(s.task.Attempt, s.task.Attempts))
	if s.task.LastError != "" {
		text += "; the last error was " + s.lastError()
	}
	return text
}

// after describes how the previous attempts ended.
func (s *story) after() string {
	if s.task.LastError == "" {
		return ""
	}
	if s.task.Attempt == 0 {
		return " The last error was " + s.lastError() + "."
	}
	return fmt.Sprintf(" Attempt %d of %d ended with %s.", s.task.Attempt, max(s.task.Attempt, s.task.Attempts), s.lastError())
}

func (s *story) lastError() string {
	text := fmt.Sprintf("%q", shorten(s.task.LastError, 200))
	if !s.task.LastFailedAt.IsZero() {
		text += " at " + s.clock(s.task.LastFailedAt.Time)
	}
	return text
}

// permits says how many holders the key has, if it may have several.
func (s *story) permits() string {
	p := s.Permits
	if p == nil || p.Kind == "" {
		return ""
	}
	what := map[string]string{KindLimit: "permits", KindSequence: "slots"}[p.Kind]
	of := fmt.Sprintf("of at least %d", p.AtLeast)
	if p.N > 0 {
		of = fmt.Sprintf("of %d", p.N)
	}
	text := fmt.Sprintf("Several may have this key at a time: %d %s %s are taken", p.Taken, of, what)
	var who []string
	for _, l := range p.Permits {
		who = append(who, fmt.Sprintf("%d %s by %s (%s)", l.Number, l.State, visibleOr(l.Holder, "a holder"), s.ago(l.Since.Time)))
	}
	if len(who) > permitsShown {
		who = append(who[:permitsShown], fmt.Sprintf("and %d more, see joblock permits -o wide", len(p.Permits)-permitsShown))
	}
	if len(who) > 0 {
		text += ": " + strings.Join(who, ", ")
	}
	text += "."
	if p.By != "" {
		text += fmt.Sprintf(" The number %d is what %s said at %s, when it used the limit; every caller counts by its own number.", p.N, visible(p.By), s.when(p.Said.Time))
	}
	switch changed := p.Changed(); {
	case changed == "":
	case p.Before > 0:
		text += fmt.Sprintf(" Of the callers, %s.", changed)
	default:
		text += " " + strings.ToUpper(changed[:1]) + changed[1:] + "."
	}
	if doubt := p.Doubt(); doubt != "" {
		text += fmt.Sprintf(" But %s.", doubt)
	}
	return text
}

// next says who gets the key next.
func (s *story) next() string {
	if len(s.Line) == 0 {
		if s.State == joblock.StateForeign {
			return ""
		}
		if s.Newest != "" {
			return fmt.Sprintf("The newest job of the key, %s, waits with the lock on %s: explain that key to see what the job waits for.", quote(s.Newest), quote(keyspace.Next(s.Key)))
		}
		return "There are no waiters."
	}
	first := s.Line[0]
	who := visible(first.Holder)
	if first.Job != "" {
		who = "the job " + quote(first.Job)
	}
	text := fmt.Sprintf("Next in line is %s, which has waited since %s (%s).", visibleOr(who, "a process without a label"), s.clock(first.Since.Time), s.ago(first.Since.Time))
	waiting := max(s.Waiters, len(s.Line))
	if s.Permits != nil {
		waiting = max(waiting, s.Permits.Waiting)
	}
	if waiting > 1 {
		text += fmt.Sprintf(" %d are waiting in all.", waiting)
	}
	return text
}

// halted reports whether the lock is the key of a sequence that halts because its job has failed for good.
func (s *story) halted() bool {
	return s.task.State == "archived" && !s.task.Snoozed && s.task.Halts && s.task.carries(s.Lock)
}

// visibleOr returns text made fit for a terminal, or none if text is empty.
func visibleOr(text, none string) string {
	if text == "" {
		return none
	}
	return visible(text)
}
