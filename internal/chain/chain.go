// Package chain describes chains of jobs: tasks that run one after another under the same locks. A task of a chain
// carries the tasks that follow it. The worker that ends a step hands the locks over to the next step, and enqueues its
// task. See handoff.Chain for the promises, and worker/chain.go for how it works.
package chain

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/asynqprivate"
)

const (
	// MaxSteps is how many tasks may follow a task.
	MaxSteps = 100

	// MaxBytes is how many bytes the payloads and headers of these tasks may have in all.
	MaxBytes = 1 << 20
)

// Chain is a task's part in a chain.
type Chain struct {
	Step  int    `json:"n"`               // the number of the task in the chain, from 1
	Queue string `json:"queue,omitempty"` // of the first task; "" for the first task itself
	ID    string `json:"id,omitempty"`    // likewise
	Prev  string `json:"prev,omitempty"`  // the job of the step before, "queue/id"; "" for the first task
	Next  []Step `json:"next,omitempty"`  // the steps that follow, in their order
}

// Check returns an error if steps are too many or too large.
func Check(steps []Step) error {
	if len(steps) > MaxSteps {
		return fmt.Errorf("%d tasks follow, at most %d are allowed", len(steps), MaxSteps)
	}
	bytes := 0
	for _, s := range steps {
		bytes += len(s.Payload)
		for name, value := range s.Headers {
			bytes += len(name) + len(value)
		}
	}
	if bytes > MaxBytes {
		return fmt.Errorf("the payloads and headers of the tasks that follow have %d bytes, at most %d are allowed", bytes, MaxBytes)
	}
	return nil
}

// Link is what the ID of a step's task says. IDs are derived, so that a repeated hand-over finds the task that exists
// already: asynq refuses a second task with the ID.
type Link struct {
	Step  int    // from 2
	Added bool   // the handler of the step before has added the step
	Owner string // the beginning of the digest of the owner of the chain's locks: another chain has another
	Queue string // of the first task
	ID    string // likewise
}

const (
	prefix   = "chain:"
	ownerLen = 8
)

// NewLink returns the Link of a step. digest is the digest of the owner of the first token.
func NewLink(step int, added bool, digest, queue, id string) Link {
	digest = strings.TrimPrefix(digest, "#")
	return Link{Step: step, Added: added, Owner: digest[:min(len(digest), ownerLen)], Queue: queue, ID: id}
}

// String returns the ID.
func (l Link) String() string {
	added := ""
	if l.Added {
		added = "+"
	}
	return prefix + strconv.Itoa(l.Step) + added + ":" + l.Owner + ":" + escaper.Replace(l.Queue) + ":" + l.ID
}

// ParseID is the reverse of Link.String. ok is false if id is not the ID of a step after the first.
func ParseID(id string) (l Link, ok bool) {
	rest, ok := strings.CutPrefix(id, prefix)
	parts := strings.SplitN(rest, ":", 4)
	if !ok || len(parts) < 4 {
		return l, false
	}
	number, added := strings.CutSuffix(parts[0], "+")
	step, err := strconv.Atoi(number)
	l = Link{Step: step, Added: added, Owner: parts[1], Queue: unescaper.Replace(parts[2]), ID: parts[3]}
	return l, err == nil && step > 1 && l.String() == id
}

// Before returns the IDs that the task of the previous step may have. If first is true, that is the first task, in the
// queue l.Queue; otherwise its queue is not known.
func (l Link) Before() (ids []string, first bool) {
	if l.Step == 2 {
		return []string{l.ID}, true
	}
	l.Step--
	for _, l.Added = range []bool{false, true} {
		ids = append(ids, l.String())
	}
	return ids, false
}

// Follows reports whether l is the Link of the step that follows step of the chain of l.
func (l Link) Follows(step int, digest, queue, id string) bool {
	return l == NewLink(step+1, l.Added, digest, queue, id)
}

var (
	escaper   = strings.NewReplacer("%", "%25", ":", "%3A")
	unescaper = strings.NewReplacer("%25", "%", "%3A", ":")
)

// Step is a task that is to be enqueued when the step before is done.
type Step struct {
	Type      string            `json:"type"`
	Payload   []byte            `json:"payload,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Queue     string            `json:"queue"`
	Retries   int               `json:"retries"` // MaxRetry without the spare retry
	Timeout   time.Duration     `json:"timeout,omitempty"`
	Retention time.Duration     `json:"retention,omitempty"`
	Deadline  int64             `json:"deadline,omitempty"` // in Unix seconds
	Delay     time.Duration     `json:"delay,omitempty"`    // after the end of the step before
	At        int64             `json:"at,omitempty"`       // when the task is due, in Unix milliseconds, in place of Delay
}

// asynq's own defaults, which it does not export.
const (
	defaultQueue   = "default"
	defaultRetries = 25
)

// Read returns the Step of task, with the options that the task was made with. The error says what is wrong with task.
func Read(task *asynq.Task) (s Step, err error) {
	opts, err := asynqprivate.Options(task)
	if err != nil {
		return s, err
	}
	s = Step{Type: task.Type(), Payload: task.Payload(), Headers: task.Headers(), Queue: defaultQueue, Retries: defaultRetries}
	if strings.TrimSpace(s.Type) == "" {
		return s, errors.New("the task has no type name")
	}
	for _, opt := range opts {
		if opt == nil {
			return s, errors.New("an option is nil")
		}
		known := true
		switch opt.Type() {
		case asynq.QueueOpt:
			s.Queue, known = opt.Value().(string)
		case asynq.MaxRetryOpt:
			s.Retries, known = opt.Value().(int)
			s.Retries = max(0, s.Retries)
		case asynq.TimeoutOpt:
			s.Timeout, known = opt.Value().(time.Duration)
		case asynq.RetentionOpt:
			s.Retention, known = opt.Value().(time.Duration)
		case asynq.ProcessInOpt:
			s.Delay, known = opt.Value().(time.Duration)
			s.At = 0
		case asynq.ProcessAtOpt:
			var at time.Time
			at, known = opt.Value().(time.Time)
			s.At, s.Delay = at.UnixMilli(), 0
		case asynq.DeadlineOpt:
			var at time.Time
			if at, known = opt.Value().(time.Time); !at.IsZero() {
				s.Deadline = at.Unix()
			}
		case asynq.TaskIDOpt:
			return s, errors.New("the option asynq.TaskID is for the first task alone: the IDs of the others are derived from its ID")
		case asynq.UniqueOpt:
			return s, errors.New("the option asynq.Unique is for the first task alone: a duplicate would end the chain in the middle")
		case asynq.GroupOpt:
			return s, errors.New("the option asynq.Group and a chain exclude each other: asynq would make one task of several")
		}
		if !known {
			return s, fmt.Errorf("the value of option %s cannot be read in this version of asynq", opt)
		}
	}
	if strings.TrimSpace(s.Queue) == "" {
		return s, errors.New("the queue name is blank")
	}
	if s.Retries > 1<<30 {
		return s, fmt.Errorf("MaxRetry is %d, at most %d is allowed", s.Retries, 1<<30)
	}
	return s, nil
}

// Due returns when the task is due if it is enqueued at now, rounded up to a whole second, because asynq
// truncates; zero means at once.
func (s Step) Due(now time.Time) time.Time {
	var at time.Time
	switch {
	case s.At != 0:
		at = time.UnixMilli(s.At)
	case s.Delay > 0:
		at = now.Add(s.Delay)
	}
	if at.IsZero() || !at.After(now) {
		return time.Time{}
	}
	return at.Add(time.Second - 1).Truncate(time.Second)
}

// Options returns the options for the enqueue of the task with this ID, due at the time due, with the spare retry.
func (s Step) Options(id string, due time.Time) []asynq.Option {
	opts := []asynq.Option{asynq.TaskID(id), asynq.Queue(s.Queue), asynq.MaxRetry(s.Retries + 1)}
	if s.Timeout > 0 {
		opts = append(opts, asynq.Timeout(s.Timeout))
	}
	if s.Deadline != 0 {
		opts = append(opts, asynq.Deadline(time.Unix(s.Deadline, 0)))
	}
	if s.Retention > 0 {
		opts = append(opts, asynq.Retention(s.Retention))
	}
	if !due.IsZero() {
		opts = append(opts, asynq.ProcessAt(due))
	}
	return opts
}
