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

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/worker/internal/verdict"
)

// maxGroup is the largest GroupMaxSize. A member with handoff.KeepLast or CancelInProgress carries two locks, a member
// with any other policy one.
const maxGroup = envelope.MaxCarried / 2

// mergePatience is how long Aggregate keeps trying to move the locks. A fail-over of Redis takes less time, and a
// longer time would delay the server's Shutdown, which waits for Aggregate.
const mergePatience = 20 * time.Second

// aggregator is the asynq.GroupAggregator that Configure sets. It moves the locks of a group's members to the task that
// the group is aggregated into. asynq then deletes the members.
type aggregator struct {
	w    *Worker
	next asynq.GroupAggregator
}

// Aggregate returns the task of the user's aggregator, with the locks of the members. If this package cannot read that
// task's options, Aggregate logs an error, and the task runs without the locks.
//
// If the locks cannot be moved within mergePatience, Aggregate returns nil, and the members keep their locks. Two
// minutes later asynq puts the members back into the group, but aggregates the group only after a further member was
// enqueued. Therefore Aggregate does not give up soon, unless this process cannot read what a member carries.
func (a aggregator) Aggregate(group string, members []*asynq.Task) *asynq.Task {
	task := a.next.Aggregate(group, members)
	if task == nil || !slices.ContainsFunc(members, carries) {
		return task
	}
	log := a.w.cfg.Logger.With("group", group, "task", task.Type())
	m, err := a.w.newMerge(group, task)
	if err != nil {
		log.Error("worker: the task of a group cannot carry the locks of the group's members and runs without locks", "err", err)
		return task
	}
	defer m.close()
	for start := time.Now(); ; time.Sleep(time.Second) {
		merged, err := m.run(context.Background(), members)
		if err == nil {
			return merged
		}
		if _, unreadable := errors.AsType[*envelope.Unreadable](err); unreadable || time.Since(start) >= mergePatience {
			log.Warn("worker: the locks of a group could not be moved; its members keep them, and asynq will aggregate the group "+
				"once another member is enqueued", "err", err)
			return nil
		}
	}
}

// defaultRetries is asynq's default of MaxRetry. asynq does not export the number.
const defaultRetries = 25

// merge moves the locks of a group's members to the new task that the group is aggregated into: each lock is
// bound to the new task before asynq enqueues that task and deletes the members. Otherwise the keeper could free the
// locks first, as the locks of deleted tasks.
//
// If asynq does not enqueue the new task, the members are merged again later. Until then the locks are bound to a task
// that does not exist. The keeper keeps the locks because that task's ID names a member; see envelope.AggregateID. If
// the user chose the ID, the ID names no member: the keeper then frees the locks after a minute.
//
// merge is needed because asynq deletes the members without running any middleware: without merge, each key of a member
// would stay reserved while the work runs without its lock.
type merge struct {
	w       *Worker
	group   string
	task    *asynq.Task
	opts    []asynq.Option
	limit   int           // the new task's MaxRetry, without the spare retry
	reserve time.Duration // how long the moved locks stay reserved
	id      string        // the new task's ID: from the options of the new task, or chosen by settleQueue
	queue   string        // the members' queue; "" until settleQueue finds the queue

	members map[string]bool                 // the jobs of the members whose locks may be moved
	tokens  map[string]joblock.Token        // by key: the tokens that the new task will carry
	held    map[joblock.Token]*joblock.Lock // by old token: the locks that are resumed and not yet parked
}

func (w *Worker) newMerge(group string, task *asynq.Task) (*merge, error) {
	opts, err := asynqprivate.Options(task)
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

// run moves the members' locks to the new task, and returns the new task with its header. The header also
// has the tokens of locks that are gone or cannot be moved: the new task's attempts deal with such tokens. If no member
// has a genuine header, the new task is returned unchanged. After an error of run or its helpers, run can be called
// again.
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
	env := envelope.Envelope{Retries: m.limit, Members: len(members), Cancel: carried.Cancel, OwnQueue: carried.OwnQueue}
	for _, key := range slices.Sorted(maps.Keys(m.tokens)) {
		token := m.tokens[key]
		sameKey := func(t joblock.Token) bool { return t.Key() == key }
		env.Tokens = append(env.Tokens, token)
		if slices.ContainsFunc(carried.UntilStart, sameKey) {
			env.UntilStart = append(env.UntilStart, token)
		}
		if slices.ContainsFunc(carried.FromStart, sameKey) {
			env.FromStart = append(env.FromStart, token)
		}
		if slices.ContainsFunc(carried.Newest, sameKey) {
			env.Newest = append(env.Newest, token)
		}
		if i := slices.IndexFunc(carried.Cooldowns, func(c envelope.Cooldown) bool { return c.Token.Key() == key }); i >= 0 {
			env.Cooldowns = append(env.Cooldowns, envelope.Cooldown{Token: token, For: carried.Cooldowns[i].For})
		}
	}
	header, err := env.Seal(ctx, m.w.ring, m.job(), m.task.Type())
	if err != nil {
		return nil, err
	}
	headers := maps.Collect(maps.All(m.task.Headers()))
	headers[envelope.Header] = header // the user's aggregator may have copied a member's header
	var traces []map[string]string
	for _, member := range members {
		traces = append(traces, member.Headers())
	}
	maps.Copy(headers, (*core.Locker)(m.w.locks).TraceMerge(traces))
	opts := append(slices.Clip(m.opts), asynq.MaxRetry(m.limit+1), asynq.TaskID(m.id))
	return asynq.NewTaskWithHeaders(m.task.Type(), m.task.Payload(), headers, opts...), nil
}

func (m *merge) job() string { return envelope.Job(m.queue, m.id) }

// candidate is a task of the group whose envelope has a genuine seal. The envelope may still be copied from another
// task; waits and settleQueue find that out.
type candidate struct {
	envelope.Opened
	queue, id string // the job that the envelope was sealed for
	task      *asynq.Task
}

// carried returns an envelope with the tokens of the members, and adds the members' jobs to m.members. Copied envelopes
// and locks beyond envelope.MaxCarried are logged and left out.
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
			m.logCopied(ctx, c)
			continue
		}
		found = append(found, c)
	}
	if err := m.settleQueue(found); err != nil {
		return all, err
	}
	for _, c := range found {
		if c.queue != m.queue {
			m.logCopied(ctx, c)
			continue
		}
		if len(all.Tokens)+len(c.Tokens) > envelope.MaxCarried {
			m.w.cfg.Logger.Error("worker: a group has more locks than one task may carry; its task runs without the others, which "+
				"the keeper will free; use a smaller GroupMaxSize", "group", m.group, "members", len(members), "at_most", envelope.MaxCarried)
			break
		}
		m.members[c.Job] = true
		all.Tokens = append(all.Tokens, c.Tokens...)
		all.Cancel, all.OwnQueue = all.Cancel || c.Cancel, all.OwnQueue || c.OwnQueue
		all.UntilStart = append(all.UntilStart, c.UntilStart...)
		all.FromStart = append(all.FromStart, c.FromStart...)
		all.Newest = append(all.Newest, c.Newest...)
		all.Cooldowns = append(all.Cooldowns, c.Cooldowns...)
	}
	return all, nil
}

func (m *merge) logCopied(ctx context.Context, c candidate) {
	m.w.logDistrust(ctx, envelope.Copied, "group", m.group, "task", c.task.Type(), "sealed_for", c.Job)
}

// waits reports whether the envelope of c was sealed for c itself. asynq does not pass the ID of c, so waits looks up
// the task that the envelope was sealed for: that task must be in the group m.group, with the envelope and the payload
// of c. An exact copy in the same group passes: then the task that is aggregated first gets the locks.
func (m *merge) waits(c candidate) (bool, error) {
	if m.members[c.Job] {
		return true, nil
	}
	info, err := m.w.inspector.GetTaskInfo(c.queue, c.id)
	switch {
	case verdict.NoTask(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return info.State == asynq.TaskStateAggregating && info.Group == m.group &&
		info.Headers[envelope.Header] == c.task.Headers()[envelope.Header] && bytes.Equal(info.Payload, c.task.Payload()), nil
}

// settleQueue sets m.queue, and m.id unless the user chose an ID. If all candidates are copies, settleQueue sets
// nothing.
//
// asynq does not say in which queue the group is, so settleQueue reads the queue from the envelopes. But a candidate
// may be the copy of a task in another queue, in a group with the same name. asynq still lists the copied task in that
// group, but no longer lists the members that are being aggregated. So a candidate whose job is still listed is a copy.
func (m *merge) settleQueue(found []candidate) error {
	if m.queue != "" || len(found) == 0 {
		return nil
	}
	left := found
	elsewhere := func(c candidate) bool { return c.queue != left[0].queue }
	if slices.ContainsFunc(found, elsewhere) {
		var err error
		if left, err = m.aggregated(found); err != nil || len(left) == 0 {
			return err // nil if all candidates are copies
		}
		if i := slices.IndexFunc(left, elsewhere); i >= 0 {
			return fmt.Errorf("members of group %q were sealed for queues %q and %q", m.group, left[0].queue, left[i].queue)
		}
	}
	m.queue = left[0].queue
	if m.id == "" {
		m.id = envelope.AggregateID(left[0].id)
	}
	if len(m.job()) > driver.MaxLabelBytes {
		m.id = uuid.NewString() // an ID that names a member is too long
	}
	return nil
}

// aggregated returns those candidates in found whose jobs asynq no longer lists in a group with the name m.group.
func (m *merge) aggregated(found []candidate) ([]candidate, error) {
	const size = 1000
	queues := make(map[string]bool)
	for _, c := range found {
		queues[c.queue] = true
	}
	waiting := make(map[string]bool) // the jobs that wait in the group
	for queue := range queues {
		for page := 1; ; page++ {
			infos, err := m.w.inspector.ListAggregatingTasks(queue, m.group, asynq.PageSize(size), asynq.Page(page))
			if err != nil {
				return nil, err
			}
			for _, info := range infos {
				waiting[envelope.Job(queue, info.ID)] = true
			}
			if len(infos) < size {
				break
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(c candidate) bool { return waiting[c.Job] }), nil
}

// move binds the lock of token to the new task, and returns the lock's new token and true. from is the job to which the
// lock is bound so far. If mayTake refuses that job, or the lock is gone, move returns token and false.
func (m *merge) move(ctx context.Context, token joblock.Token, from string) (joblock.Token, bool, error) {
	lock, ok := m.held[token]
	if !ok {
		yes, err := m.mayTake(from)
		if err != nil || !yes {
			return token, false, err
		}
		lock, err = m.w.locks.Resume(ctx, token, joblock.ForJob(from))
		if verdict.IsGone(err) {
			return token, false, nil
		}
		if err != nil { // also ErrBusy: members do not run, so an earlier Resume without an answer holds the lock
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

// close stops renewing the locks in m.held. Their keys stay reserved for the earlier jobs.
func (m *merge) close() {
	for _, lock := range m.held {
		(*core.Lock)(lock).StopRenewing()
	}
}

// mayTake reports whether a lock that is bound to job may be moved. job must be a member, or a task that an earlier
// aggregation made and asynq did not enqueue. A lock that is bound to any other job was handed over by a handler, and
// must stay there.
func (m *merge) mayTake(job string) (bool, error) {
	if m.members[job] {
		return true, nil
	}
	queue, id, ok := envelope.ParseJob(job)
	_, merged := envelope.LeadOf(id)
	if !ok || queue != m.queue || !merged && id != m.id {
		return false, nil
	}
	_, err := m.w.inspector.GetTaskInfo(queue, id)
	if errors.Is(err, asynq.ErrTaskNotFound) {
		return true, nil
	}
	return false, err
}
