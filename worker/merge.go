package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqtask"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// defaultRetries is asynq's default, which it does not export.
const defaultRetries = 25

// merge binds the locks of a group's members to the task that the group is aggregated into,
// before asynq has that task. Afterwards would be too late: for a time the members would be
// gone, and nothing would show that their locks are needed.
//
// If the enqueue then fails, or never happens, the members remain and are merged again.
// Until then their locks are bound to a task that does not exist; its ID names a member,
// see envelope.AggregateID.
type merge struct {
	w       *Worker
	group   string
	task    *asynq.Task
	opts    []asynq.Option
	limit   int           // the retries that the task's author wants
	reserve time.Duration // for how long to reserve the locks
	id      string        // of the task: its author's, or chosen with the first member
	queue   string        // of the members: known with the first

	members map[string]bool                 // by job: those whose envelopes are genuine
	tokens  map[string]joblock.Token        // by key: what the task is to carry
	held    map[joblock.Token]*joblock.Lock // resumed, and not parked yet
}

func (w *Worker) newMerge(group string, task *asynq.Task) (*merge, error) {
	opts, err := asynqtask.Options(task)
	if err != nil {
		return nil, err
	}
	m := &merge{
		w: w, group: group, task: task, opts: opts, limit: defaultRetries,
		members: make(map[string]bool),
		tokens:  make(map[string]joblock.Token), held: make(map[joblock.Token]*joblock.Lock),
	}
	var delay time.Duration
	for _, opt := range opts {
		switch v := opt.Value(); opt.Type() {
		case asynq.TaskIDOpt:
			m.id, _ = v.(string)
		case asynq.MaxRetryOpt:
			m.limit, _ = v.(int)
		case asynq.ProcessInOpt:
			delay, _ = v.(time.Duration)
		case asynq.ProcessAtOpt:
			at, _ := v.(time.Time)
			delay = time.Until(at)
		}
	}
	m.reserve = w.reservation(max(0, delay))
	return m, nil
}

// run moves the members' locks to the task, and returns it with its header. The task also
// carries tokens whose locks the members do not have: gone, somebody else's, or not taken
// yet. The attempt deals with these.
func (m *merge) run(ctx context.Context, members []*asynq.Task) (*asynq.Task, error) {
	carried, err := m.carried(ctx, members)
	if err != nil || len(carried.Tokens) == 0 {
		return m.task, err
	}
	keys := make([]string, len(carried.Tokens))
	for i, t := range carried.Tokens {
		keys[i] = t.Key()
	}
	locks, err := m.w.locks.Status(ctx, keys...)
	if err != nil {
		return nil, err
	}
	for i, token := range carried.Tokens {
		token, yes, err := m.move(ctx, token, locks[i].Job)
		if err != nil {
			return nil, err
		}
		if _, there := m.tokens[token.Key()]; yes || !there {
			m.tokens[token.Key()] = token
		}
	}
	env := envelope.Envelope{Retries: m.limit}
	for _, key := range slices.Sorted(maps.Keys(m.tokens)) {
		token := m.tokens[key]
		env.Tokens = append(env.Tokens, token)
		if slices.ContainsFunc(carried.UntilStart, ofKey(key)) {
			env.UntilStart = append(env.UntilStart, token)
		}
		if slices.ContainsFunc(carried.FromStart, ofKey(key)) {
			env.FromStart = append(env.FromStart, token)
		}
	}
	header, err := env.Seal(ctx, m.w.ring, m.job(), m.task.Type())
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	maps.Copy(all, m.task.Headers())
	all[envelope.Header] = header // in the place of a member's that an aggregator may have copied
	opts := append(slices.Clip(m.opts), asynq.MaxRetry(m.limit+1), asynq.TaskID(m.id))
	return asynq.NewTaskWithHeaders(m.task.Type(), m.task.Payload(), all, opts...), nil
}

// job is the name of the task that the group becomes.
func (m *merge) job() string { return envelope.Job(m.queue, m.id) }

// candidate is a member with a genuine envelope.
type candidate struct {
	envelope.Opened
	queue, id string // of the job that it was sealed for
	task      *asynq.Task
}

// carried returns what the members carry, up to envelope.MaxCarried locks. An error says
// that it is not known yet.
func (m *merge) carried(ctx context.Context, members []*asynq.Task) (all envelope.Envelope, err error) {
	var found []candidate
	for _, member := range members {
		env, ok, err := m.w.trusted(ctx, envelope.Task{Type: member.Type(), Headers: member.Headers()})
		if err != nil {
			return all, err
		}
		if !ok {
			continue
		}
		c := candidate{Opened: env, task: member}
		if c.queue, c.id, ok = envelope.ParseJob(env.Job); ok {
			if ok, err = m.waits(c); err != nil {
				return all, err
			}
		}
		if !ok {
			m.tellCopied(ctx, c)
			continue
		}
		found = append(found, c)
	}
	if err := m.settleQueue(found); err != nil {
		return all, err
	}
	for _, c := range found {
		if c.queue != m.queue {
			m.tellCopied(ctx, c)
			continue
		}
		if len(all.Tokens)+len(c.Tokens) > envelope.MaxCarried {
			m.w.cfg.Logger.Error("worker: a group has more locks than one task may carry, the others are freed when it is aggregated; GroupMaxSize bounds it",
				"group", m.group, "at_most", envelope.MaxCarried)
			break
		}
		m.members[c.Job] = true
		all.Tokens = append(all.Tokens, c.Tokens...)
		all.UntilStart = append(all.UntilStart, c.UntilStart...)
		all.FromStart = append(all.FromStart, c.FromStart...)
	}
	return all, nil
}

func (m *merge) tellCopied(ctx context.Context, c candidate) {
	m.w.tell(ctx, envelope.Copied, "group", m.group, "task", c.task.Type(), "sealed_for", c.Job)
}

// waits reports whether c is the job that its envelope was sealed for. asynq does not say
// which task c is. But that job must wait in a group of this name, with the same envelope
// and payload. An exact copy in the same group is not noticed: the one that is aggregated
// first gets the lock, and the other waits for it.
func (m *merge) waits(c candidate) (bool, error) {
	if m.members[c.Job] {
		return true, nil
	}
	info, err := m.w.inspector.GetTaskInfo(c.queue, c.id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	return info.State == asynq.TaskStateAggregating && info.Group == m.group &&
		info.Headers[envelope.Header] == c.task.Headers()[envelope.Header] && bytes.Equal(info.Payload, c.task.Payload()), nil
}

// settleQueue derives the queue and the ID of the group's task from its members. asynq does
// not say in which queue the group is. So a copy of a task that waits in a group of the
// same name, in another queue, could pass for a member. But members have left their group:
// if all tasks of a queue still wait, it is the wrong queue. An error says that it is not
// known yet.
func (m *merge) settleQueue(found []candidate) error {
	if m.queue != "" || len(found) == 0 {
		return nil
	}
	left := found
	if slices.ContainsFunc(found, func(c candidate) bool { return c.queue != found[0].queue }) {
		var err error
		if left, err = m.aggregated(found); err != nil {
			return err
		}
		for _, c := range left {
			if c.queue != left[0].queue {
				return fmt.Errorf("members of group %q were sealed for queues %q and %q", m.group, left[0].queue, c.queue)
			}
		}
		if len(left) == 0 {
			return nil // copies all of them
		}
	}
	m.queue = left[0].queue
	if m.id == "" {
		m.id = envelope.AggregateID(left[0].id)
	}
	if len(m.job()) > driver.MaxLabelBytes {
		m.id = uuid.NewString() // without a lead then
	}
	return nil
}

// aggregated returns those of found that no longer wait in their groups.
func (m *merge) aggregated(found []candidate) ([]candidate, error) {
	waiting := make(map[string]bool) // by job
	asked := make(map[string]bool)   // by queue
	for _, c := range found {
		if asked[c.queue] {
			continue
		}
		asked[c.queue] = true
		const size = 1000
		for page := 1; ; page++ {
			infos, err := m.w.inspector.ListAggregatingTasks(c.queue, m.group, asynq.PageSize(size), asynq.Page(page))
			if err != nil {
				return nil, err
			}
			for _, info := range infos {
				waiting[envelope.Job(c.queue, info.ID)] = true
			}
			if len(infos) < size {
				break
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(c candidate) bool { return waiting[c.Job] }), nil
}

// move binds the lock of token, now bound to the job from, to the task, and returns its new
// token. It reports false if the lock is not a member's. An error says that it is not known
// yet.
func (m *merge) move(ctx context.Context, token joblock.Token, from string) (joblock.Token, bool, error) {
	lock, ok := m.held[token]
	if !ok {
		yes, err := m.mayTake(from)
		if err != nil || !yes {
			return token, false, err
		}
		lock, err = m.w.locks.Resume(ctx, token, joblock.ForJob(from))
		switch {
		case err == nil:
		case isGone(err):
			return token, false, nil
		default: // ErrBusy too: members do not run, so an earlier Resume without an answer has it
			return token, false, err
		}
		m.held[token] = lock
	}
	moved, err := lock.Park(ctx, joblock.Reserve(m.reserve), joblock.ForJob(m.job()))
	if err != nil {
		return token, false, err
	}
	delete(m.held, token)
	return moved, true, nil
}

// close ends the renewal of locks that could not be parked: they stay reserved.
func (m *merge) close() {
	for _, lock := range m.held {
		lock.StopRenewing()
	}
}

// mayTake reports whether a lock that is bound to job may be moved: job is a member, or an
// earlier task of the group that asynq never had. Locks bound to other tasks were handed
// over.
func (m *merge) mayTake(job string) (bool, error) {
	if m.members[job] {
		return true, nil
	}
	queue, id, ok := envelope.ParseJob(job)
	_, merged := envelope.LeadOf(id)
	if !ok || queue != m.queue || !merged && id != m.id {
		return false, nil
	}
	switch _, err := m.w.inspector.GetTaskInfo(queue, id); {
	case errors.Is(err, asynq.ErrTaskNotFound):
		return true, nil
	default:
		return false, err
	}
}

func ofKey(key string) func(joblock.Token) bool {
	return func(t joblock.Token) bool { return t.Key() == key }
}
