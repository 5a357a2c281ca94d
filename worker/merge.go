package worker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqtask"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// defaultRetries is asynq's, which it does not export.
const defaultRetries = 25

// merge binds the locks of a group's members to the task that the group becomes. It
// does so before asynq has that task: afterwards there would be a time in which the
// members are gone and nothing shows that their locks are needed.
//
// If the enqueue then fails, or never happens, the members stand, and are merged
// again. Until then their locks are bound to a task that does not exist, whose ID
// says for whom: see envelope.AggregateID.
type merge struct {
	w     *Worker
	group string
	task  *asynq.Task
	opts  []asynq.Option
	limit int           // the retries that the task's author wants
	hold  time.Duration // for how long to reserve the locks
	id    string        // of the task: its author's, or chosen when the first lock is moved
	queue string        // of the members: known when the first lock is moved

	tokens map[string]joblock.Token        // by key: what the task is to carry
	held   map[joblock.Token]*joblock.Lock // resumed, and not parked yet
}

func (w *Worker) newMerge(group string, task *asynq.Task) (*merge, error) {
	opts, err := asynqtask.Options(task)
	if err != nil {
		return nil, err
	}
	m := &merge{
		w: w, group: group, task: task, opts: opts, limit: defaultRetries,
		tokens: make(map[string]joblock.Token), held: make(map[joblock.Token]*joblock.Lock),
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
	m.hold = w.hold(max(0, delay))
	return m, nil
}

// run moves the locks that are the members' and returns the task that carries them.
// It carries the other tokens as well: their locks are gone, in other hands or not
// taken yet, and it is up to the attempt what that means.
func (m *merge) run(ctx context.Context, carried envelope.Envelope) (*asynq.Task, error) {
	keys := make([]string, len(carried.Tokens))
	for i, t := range carried.Tokens {
		keys[i] = t.Key()
	}
	locks, err := m.w.locks.StatusOf(ctx, keys)
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
	headers, err := env.Seal()
	if err != nil {
		return nil, err
	}
	all := make(map[string]string)
	maps.Copy(all, m.task.Headers())
	for _, name := range envelope.Headers {
		delete(all, name) // an aggregator may have copied a member's
	}
	maps.Copy(all, headers)
	opts := append(slices.Clip(m.opts), asynq.MaxRetry(m.limit+1))
	if m.id != "" {
		opts = append(opts, asynq.TaskID(m.id))
	}
	return asynq.NewTaskWithHeaders(m.task.Type(), m.task.Payload(), all, opts...), nil
}

// move binds the lock of token, which is bound to the job from, to the task, and
// returns its new token. It reports false where the lock is not the members' to
// give. An error says that this is not known yet.
func (m *merge) move(ctx context.Context, token joblock.Token, from string) (joblock.Token, bool, error) {
	lock, ok := m.held[token]
	if !ok {
		yes, err := m.mayTake(token, from)
		if err != nil || !yes {
			return token, false, err
		}
		lock, err = m.w.locks.Resume(ctx, token, joblock.ForJob(from))
		switch joblock.CodeOf(err) {
		case "":
		case joblock.CodeNotFound, joblock.CodeNotOwner, joblock.CodeAlreadyReleased:
			return token, false, nil
		default: // busy too: who has not run yet is in its way only after a call without an answer
			return token, false, err
		}
		m.held[token] = lock
	}
	moved, err := lock.Park(ctx, joblock.ParkOptions{Hold: m.hold, Job: envelope.Job(m.queue, m.id)})
	if err != nil {
		return token, false, err
	}
	delete(m.held, token)
	return moved, true, nil
}

// close gives up what could not be parked: it stays reserved.
func (m *merge) close() {
	for _, lock := range m.held {
		lock.StopRenewing()
	}
}

// mayTake tells whether the lock of token, bound to job, is a member's: of a task
// that waits in this very group and carries this very token, so that a copy of
// another task's token takes nothing away from that one. Or of what the group was to
// become before and did not. It settles the queue and the task's ID with the first.
func (m *merge) mayTake(token joblock.Token, job string) (bool, error) {
	queue, id, ok := envelope.ParseJob(job)
	if !ok || m.queue != "" && queue != m.queue {
		return false, nil
	}
	info, err := m.w.inspector.GetTaskInfo(queue, id)
	lead, merged := envelope.LeadOf(id)
	switch {
	case errors.Is(err, asynq.ErrTaskNotFound) && (merged || id == m.id):
	case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		return false, nil
	case err != nil:
		return false, err
	case info.State != asynq.TaskStateAggregating || info.Group != m.group || !carries(info, token):
		return false, nil
	default:
		lead = id
	}
	m.queue = queue
	if m.id == "" {
		m.id = envelope.AggregateID(lead)
	}
	if len(envelope.Job(queue, m.id)) > joblock.MaxLabelBytes {
		m.id = uuid.NewString() // without a lead then
	}
	return true, nil
}

// carries reports whether a task has token in its headers.
func carries(info *asynq.TaskInfo, token joblock.Token) bool {
	env, ok, err := envelope.Open(info.Headers)
	return ok && err == nil && slices.Contains(env.Tokens, token)
}
