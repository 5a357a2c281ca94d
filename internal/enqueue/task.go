package enqueue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// asynq's own defaults, which it does not export.
const (
	defaultQueue   = "default"
	defaultRetries = 25
)

// taskSpec is a task before its enqueue, with the values of its options.
type taskSpec struct {
	task    *asynq.Task
	opts    []asynq.Option // the task's own, then the call's; the last one of a kind counts
	queue   string
	id      string
	job     string
	retries int       // MaxRetry without the spare retry
	at      time.Time // when the task is due; zero means at once
	until   time.Time // the Deadline, in whole seconds, as asynq keeps it; zero means none
	unique  bool      // the option asynq.Unique is among opts
	named   bool      // the option asynq.TaskID is among opts
	grouped bool      // the option asynq.Group is among opts

	then []chain.Step // the tasks of the chain that follow
}

// readTask reads the options of task. It refuses what asynq would refuse or ignore. All its errors match ErrInvalid.
func (c *Client) readTask(task *asynq.Task, opts []asynq.Option) (*taskSpec, error) {
	if err := c.check(opEnqueue); err != nil {
		return nil, err
	}
	made, err := asynqprivate.Options(task)
	if err != nil {
		return nil, badTask("%s", err)
	}
	s := &taskSpec{task: task, opts: slices.Concat(made, opts), queue: defaultQueue, retries: defaultRetries}
	if strings.TrimSpace(task.Type()) == "" {
		return nil, badTask("the task has no type name")
	}
	for _, opt := range s.opts {
		if err := s.apply(opt); err != nil {
			return nil, err
		}
	}
	if s.named = s.id != ""; !s.named {
		s.id = newTaskID()
	}
	s.job = envelope.Job(s.queue, s.id)
	if len(s.job) > driver.MaxLabelBytes {
		return nil, badTask("queue and task ID have %d bytes with a slash between them, at most %d are allowed",
			len(s.job), driver.MaxLabelBytes)
	}
	if d := s.delay(); d > driver.MaxPeriod-c.reserve {
		return nil, badTask("a delay of %s and Config.Reserve of %s make more than the %s for which a lock can be reserved",
			d, c.reserve, driver.MaxPeriod)
	}
	if due := time.Now().Add(s.delay()); !s.until.IsZero() && !s.until.After(due) {
		return nil, badTask("the Deadline is %s, must be after %s, when the task is due: asynq would never run the task",
			s.until.Format(time.RFC3339), due.Format(time.RFC3339))
	}
	// asynq encodes only UTF-8.
	if !utf8.ValidString(task.Type()) {
		return nil, badTask("the type name is not valid UTF-8")
	}
	for name, value := range task.Headers() {
		if !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, badTask("header %q is not valid UTF-8", name)
		}
	}
	return s, nil
}

// newTaskID returns a new ID for a task. IDs of version 7 increase with the time. asynq keeps the tasks that are due in
// one second in the order of their IDs: with random IDs, tasks that are enqueued one after another would be in
// different parts of the server's memory.
func newTaskID() string { return uuid.Must(uuid.NewV7()).String() }

// apply puts the value of opt into s.
func (s *taskSpec) apply(opt asynq.Option) error {
	if opt == nil {
		return badTask("an option is nil")
	}
	// asynq ignores an option of another package's type.
	if t := reflect.TypeOf(opt); t.PkgPath() != asynqPath {
		return badTask("option %s is not made by asynq, which would ignore it", t)
	}
	var err error
	switch opt.Type() {
	case asynq.QueueOpt:
		s.queue, err = name(opt, "queue name")
	case asynq.TaskIDOpt:
		s.id, err = name(opt, "task ID")
	case asynq.GroupOpt:
		s.grouped = true
		_, err = name(opt, "group")
	case asynq.MaxRetryOpt:
		s.retries, err = valueOf[int](opt)
		if s.retries >= math.MaxInt32 { // asynq stores an int32, and the spare retry adds one
			err = badTask("MaxRetry is %d, must be below %d", s.retries, math.MaxInt32)
		}
	case asynq.ProcessAtOpt:
		s.at, err = valueOf[time.Time](opt)
	case asynq.ProcessInOpt:
		var d time.Duration
		d, err = valueOf[time.Duration](opt)
		s.at = time.Now().Add(d)
	case asynq.DeadlineOpt:
		s.until, err = valueOf[time.Time](opt)
		if none := s.until.IsZero() || s.until.Unix() == 0; none { // as asynq reads them
			s.until = time.Time{}
		} else {
			s.until = time.Unix(s.until.Unix(), 0)
		}
	case asynq.UniqueOpt:
		s.unique = true
		var d time.Duration
		if d, err = valueOf[time.Duration](opt); err == nil && d < time.Second {
			err = badTask("Unique is %s, must be at least 1s", d)
		}
	}
	return err
}

// name returns the value of opt, which is a name.
func name(opt asynq.Option, what string) (string, error) {
	s, err := valueOf[string](opt)
	switch {
	case err != nil:
		return "", err
	case strings.TrimSpace(s) == "":
		return "", badTask("the %s is blank", what)
	case !utf8.ValidString(s):
		return "", badTask("the %s is not valid UTF-8", what)
	case strings.ContainsFunc(s, unicode.IsControl):
		return "", badTask("the %s has a control character", what)
	}
	return s, nil
}

// valueOf returns the value of opt. If a later asynq changes the value's type, valueOf returns an error: a guessed
// value could bind the locks to a job that does not exist.
func valueOf[T any](opt asynq.Option) (T, error) {
	v, ok := opt.Value().(T)
	if !ok {
		return v, badTask("the value of option %s cannot be read in this version of asynq", opt)
	}
	return v, nil
}

// delay returns the time until the task is due.
func (s *taskSpec) delay() time.Duration {
	if s.at.IsZero() {
		return 0
	}
	return max(0, time.Until(s.at))
}

// wholeSecond returns when the task is due, rounded up to a whole second: asynq truncates the times of tasks to whole
// seconds, and would otherwise start the task up to a second early. A time in the past, or zero, is not changed.
func (s *taskSpec) wholeSecond() time.Time {
	if s.delay() == 0 {
		return s.at
	}
	return s.at.Add(time.Second - 1).Truncate(time.Second)
}

// wrap returns err as an error of the enqueue; nil stays nil.
func (s *taskSpec) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("handoff: enqueue %s: %w", s.job, err)
}

// notSent returns the error for a task that was not sent because of cause.
func (s *taskSpec) notSent(cause error) error { return s.wrap(fmt.Errorf("%w: %w", ErrNotSent, cause)) }

// chained writes into env which tasks follow.
func (s *taskSpec) chained(env *envelope.Envelope) {
	if len(s.then) > 0 {
		env.Chain = &chain.Chain{Step: 1, Next: s.then}
	}
}

// sealed returns a copy of the task with header as its envelope and with the headers trace, and the options for the
// enqueue of the copy. A task that a handler enqueues again names the span of the new enqueue, not of the old one.
func (s *taskSpec) sealed(header string, trace map[string]string) (*asynq.Task, []asynq.Option) {
	all := make(map[string]string, len(s.task.Headers())+len(trace)+1)
	maps.Copy(all, s.task.Headers())
	maps.Copy(all, trace)
	all[envelope.Header] = header
	opts := append(slices.Clip(s.opts), asynq.TaskID(s.id), asynq.MaxRetry(s.retries+1))
	return asynq.NewTaskWithHeaders(s.task.Type(), s.task.Payload(), all), opts
}

// tokensOf returns the tokens that task carries, or none if its envelope is not genuine. Errors are those of
// envelopeOf.
func (c *Client) tokensOf(ctx context.Context, task *asynq.TaskInfo) ([]joblock.Token, error) {
	env, err := c.envelopeOf(ctx, task)
	return env.Tokens, err
}

// splitToken returns the token for key, and the other tokens. If there is no token for key, ok is false.
func splitToken(tokens []joblock.Token, key string) (token joblock.Token, rest []joblock.Token, ok bool) {
	i := slices.IndexFunc(tokens, func(t joblock.Token) bool { return t.Key() == key })
	if i < 0 {
		return token, tokens, false
	}
	return tokens[i], slices.Concat(tokens[:i], tokens[i+1:]), true
}

// envelopeOf returns what task carries. A header that is not genuine counts as absent. An error means that the locks'
// store has not answered, or that this process cannot read what task carries.
func (c *Client) envelopeOf(ctx context.Context, task *asynq.TaskInfo) (envelope.Envelope, error) {
	env, _, err := envelope.Open(ctx, c.ring.Open, envelope.Task{
		Job: envelope.Job(task.Queue, task.ID), Type: task.Type, Headers: task.Headers,
	})
	var distrust *envelope.Distrust
	if errors.As(err, &distrust) {
		c.logger.WarnContext(ctx, "handoff: a task's header cannot be trusted", "task", task.Queue+"/"+task.ID, "err", err)
		err = nil
	}
	return env.Envelope, err
}

// shown returns a copy of info without the header; nil stays nil. See Enqueue.
func shown(info *asynq.TaskInfo) *asynq.TaskInfo {
	if info == nil {
		return nil
	}
	out := *info
	out.Headers = envelope.Strip(info.Headers)
	return &out
}

var asynqPath = reflect.TypeOf(asynq.MaxRetry(0)).PkgPath()
