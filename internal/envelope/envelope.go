// Package envelope is the header format in which an asynq task carries locks: handoff writes it and worker reads it.
// A header, unlike a payload, leaves asynq's Unique key and consumers in other languages untouched.
//
// Whoever has a token can take its lock. So whoever can write a header could take locks, or make another's task carry
// them. Hence an envelope is sealed for one job (package seal). The key of the seal is known only to those who can
// read the locks' store, or it is a configured secret. An envelope that is not genuine counts as absent.
//
// The payload is not sealed: asynq lets people change the payload of a scheduled task, and the task must then keep
// its lock.
package envelope

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
)

// Header is the name of the one header. The header's value, sealed by package seal, has the job, the type of the task,
// the tokens, and which tokens the worker treats specially. There is one header, so that no part can be left out, added
// or exchanged. The value is JSON, so that people can read it.
const Header = "joblock"

const (
	// MaxTokens bounds the locks that are handed over with one task.
	MaxTokens = 64
	// MaxCarried bounds the locks that a task may carry: an aggregated task has the locks of all members of its
	// group.
	MaxCarried = 1024
)

// Envelope is what a task carries.
type Envelope struct {
	// Tokens are the tokens of all locks that the task carries.
	Tokens []joblock.Token

	// Retries is the author's own MaxRetry, or -1 if the task has no spare retry. With a spare retry asynq's MaxRetry
	// is one more than Retries. When the retries are used up, asynq archives the task without asking whether the last
	// attempt counts. So without a spare retry a busy lock would cost the job.
	Retries int

	// UntilStart and FromStart list the Tokens whose locks have a shorter life than the job. The worker releases the
	// locks of UntilStart when the handler starts. The worker takes the locks of FromStart when the task is about to
	// run; before then, nobody has these locks.
	UntilStart, FromStart []joblock.Token

	// Sequence, unless nil, is the job's part in a sequence.
	Sequence *Sequence
}

// Sequence is a job's part in a sequence of jobs: see package handoff, Jobs in a sequence.
type Sequence struct {
	Token joblock.Token // of Tokens: for the sequence's key, or for a slot of that key
	Halt  bool          // after a final failure of the job, the key stays with the job
	Limit int           // how many jobs of the sequence may run at a time: the number of slots; 0 means 1

	// Waits says that the task was enqueued to wait for its turn. Then the time of the task in asynq is Wait after the
	// enqueue, and NotBefore is the time that the task's author has asked for, rounded up to a whole second. Zero means
	// none.
	Waits     bool
	NotBefore time.Time
}

// MayWait returns what the headers of a task say of the job's place in line, or nil. The seal is not verified: MayWait
// is for a first look at many tasks.
func MayWait(headers map[string]string) *Sequence {
	if text := headers[Header]; strings.Contains(text, `"sequence":`) {
		return &Sequence{Waits: strings.Contains(text, `"waits":true`)}
	}
	return nil
}

// Wait is how far away the time of a task is that waits for its turn. Such a task is scheduled or snoozed for so long,
// and whoever gives the key to its job runs the task. If nobody has run the task by then, the task itself asks whether
// its turn has come.
const Wait = 24 * time.Hour

// Patience is how long the place of a job in line lasts. It outlasts each Wait with its jitter, so that a job without a
// keeper has its place still when the job asks.
const Patience = 2 * Wait

// EnqueueGrace is how long an enqueue may take after it has parked its lock: for so long the lock is kept even if the
// task does not exist. A minute is enough: by default go-redis gives up on a silent server after some twenty seconds, and
// a frozen server applies all received commands before the server answers a later command.
const EnqueueGrace = time.Minute

// Job returns the name under which locks are bound to a task. Slashes in the queue's name are escaped, so that no two
// tasks have the same name.
func Job(queue, taskID string) string { return queueEscaper.Replace(queue) + "/" + taskID }

// ParseJob is the reverse of Job. ok is true if job has the form of a result of Job, with a task ID that is not empty.
func ParseJob(job string) (queue, taskID string, ok bool) {
	queue, taskID, ok = strings.Cut(job, "/")
	queue = queueUnescaper.Replace(queue)
	return queue, taskID, ok && taskID != "" && Job(queue, taskID) == job
}

var (
	queueEscaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	queueUnescaper = strings.NewReplacer("%25", "%", "%2F", "/")
)

const aggregatePrefix = "aggregate:"

// AggregateID returns an ID for the task that asynq aggregates a group into. The ID names the lead, which is one of the
// members. Until asynq has enqueued the aggregated task, the members still exist, and need the locks that are bound to
// the ID.
func AggregateID(lead string) string { return aggregatePrefix + uuid.NewString() + ":" + lead }

// LeadOf is the reverse of AggregateID. ok is false if AggregateID has not made taskID.
func LeadOf(taskID string) (lead string, ok bool) {
	rest, ok := strings.CutPrefix(taskID, aggregatePrefix)
	if !ok {
		return "", false
	}
	_, lead, ok = strings.Cut(rest, ":")
	return lead, ok && lead != ""
}

// content is the JSON of an envelope.
type content struct {
	Job        string   `json:"job"`
	Type       string   `json:"type"`
	Retries    int      `json:"retries"`
	Tokens     []string `json:"tokens"`
	UntilStart []int    `json:"untilStart,omitempty"` // indices in Tokens
	FromStart  []int    `json:"fromStart,omitempty"`

	Sequence *sequence `json:"sequence,omitempty"`
}

// sequence is the JSON of a Sequence.
type sequence struct {
	Token     int   `json:"token"` // index in content.Tokens
	Halt      bool  `json:"halt,omitempty"`
	Limit     int   `json:"limit,omitempty"`
	Waits     bool  `json:"waits,omitempty"`
	NotBefore int64 `json:"notBefore,omitempty"` // in Unix milliseconds; 0 means none
}

// Seal returns the header's value for the task with this job name and type.
func (e Envelope) Seal(ctx context.Context, ring *seal.Ring, job, taskType string) (string, error) {
	c := content{Job: job, Type: taskType, Retries: e.Retries}
	for _, t := range e.Tokens {
		text, err := t.MarshalText()
		if err != nil {
			return "", err
		}
		c.Tokens = append(c.Tokens, string(text))
	}
	var err1, err2 error
	c.UntilStart, err1 = e.places(e.UntilStart)
	c.FromStart, err2 = e.places(e.FromStart)
	err3 := e.writeSequence(&c)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return "", err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("seal envelope: %w", err)
	}
	return ring.Seal(ctx, string(text))
}

// The method places returns the indices, in e.Tokens, of the tokens in the parameter some.
func (e Envelope) places(some []joblock.Token) ([]int, error) {
	var places []int
	for _, t := range some {
		i := slices.Index(e.Tokens, t)
		if i < 0 {
			return nil, door.Invalid("seal envelope", "", "%s is not among the tokens", t)
		}
		places = append(places, i)
	}
	return places, nil
}

// writeSequence puts e.Sequence into c.
func (e Envelope) writeSequence(c *content) error {
	if e.Sequence == nil {
		return nil
	}
	at, err := e.places([]joblock.Token{e.Sequence.Token})
	if err != nil {
		return err
	}
	c.Sequence = &sequence{Token: at[0], Halt: e.Sequence.Halt, Limit: e.Sequence.Limit, Waits: e.Sequence.Waits}
	if t := e.Sequence.NotBefore; !t.IsZero() {
		c.Sequence.NotBefore = t.UnixMilli()
	}
	return nil
}

// readSequence is the reverse of writeSequence.
func (e *Envelope) readSequence(c *content) error {
	if c.Sequence == nil {
		return nil
	}
	token, err := e.at([]int{c.Sequence.Token})
	if err != nil {
		return err
	}
	e.Sequence = &Sequence{Token: token[0], Halt: c.Sequence.Halt, Limit: c.Sequence.Limit, Waits: c.Sequence.Waits}
	if ms := c.Sequence.NotBefore; ms != 0 {
		e.Sequence.NotBefore = time.UnixMilli(ms)
	}
	return nil
}

// Task has the parts of a task that Open reads.
type Task struct {
	Job     string // "" if not known: then the caller of Open must check Opened.Job
	Type    string
	Headers map[string]string
}

// Opened is a genuine envelope.
type Opened struct {
	Envelope
	Job string // the job for which the envelope was sealed

	// Elsewhere is true if the sealer has the same secret as this process, but uses another store.
	Elsewhere bool
}

// Distrust is the error about an envelope that counts as absent.
type Distrust struct {
	Cause Cause
	Of    string // the other task for which the envelope was sealed; "" unless Cause is Copied
	Err   error
}

// Cause is why an envelope counts as absent.
type Cause string

const (
	Forged  Cause = "forged"       // the seal does not match
	Unknown Cause = "unknown key"  // the seal's key is not known here
	Copied  Cause = "copied"       // the envelope was sealed for another task
	Unread  Cause = "not readable" // the envelope is of no version that this build knows
)

func (d *Distrust) Error() string {
	if d.Of != "" {
		return fmt.Sprintf("the locks in the task's header count for nothing (%s): the header was sealed for %s", d.Cause, d.Of)
	}
	return fmt.Sprintf("the locks in the task's header count for nothing (%s): %s", d.Cause, d.Err)
}

func (d *Distrust) Unwrap() error { return d.Err }

// An Opener verifies a seal: the method Open or OpenKnown of a seal.Ring.
type Opener func(ctx context.Context, sealed string) (seal.Opened, error)

// Open reads the envelope of a task. ok is false if the task has no envelope. A header is untrusted input: Open
// verifies the seal before decoding anything, and then compares job and type. A *Distrust means that the envelope is
// not this task's. Any other error means that the store has not answered.
func Open(ctx context.Context, open Opener, task Task) (e Opened, ok bool, err error) {
	sealed, ok := task.Headers[Header]
	if !ok {
		return Opened{}, false, nil
	}
	text, err := open(ctx, sealed)
	switch {
	case errors.Is(err, seal.ErrMalformed):
		return Opened{}, true, &Distrust{Cause: Unread, Err: err}
	case errors.Is(err, seal.ErrMismatch):
		return Opened{}, true, &Distrust{Cause: Forged, Err: err}
	case errors.Is(err, seal.ErrUnknownKey):
		return Opened{}, true, &Distrust{Cause: Unknown, Err: err}
	case err != nil:
		return Opened{}, true, err
	}
	e, taskType, err := read(text.Text)
	if err != nil {
		return Opened{}, true, &Distrust{Cause: Unread, Err: err}
	}
	if task.Job != "" && e.Job != task.Job || taskType != task.Type {
		return Opened{}, true, &Distrust{Cause: Copied, Of: e.Job + " of type " + strconv.Quote(taskType)}
	}
	e.Elsewhere = text.Elsewhere
	return e, true, nil
}

// Peek returns what the header of a task claims, for people. The seal is not verified, so never act on the result. ok is
// false if there is no claim about this task that can be read.
func Peek(task Task) (e Opened, ok bool) {
	e, ok, err := Open(context.Background(), func(_ context.Context, sealed string) (seal.Opened, error) {
		text, err := seal.Text(sealed)
		return seal.Opened{Text: text}, err
	}, task)
	return e, ok && err == nil
}

// read decodes the text of an envelope.
func read(text string) (e Opened, taskType string, err error) {
	var c content
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return e, "", err
	}
	if len(c.Tokens) == 0 || len(c.Tokens) > MaxCarried || c.Retries < -1 {
		return e, "", door.Invalid("open envelope", "", "%d tokens, must be from 1 to %d; or %d retries, must be at least -1",
			len(c.Tokens), MaxCarried, c.Retries)
	}
	e.Job, e.Retries = c.Job, c.Retries
	for _, text := range c.Tokens {
		t, err := joblock.ParseToken(text)
		if err != nil {
			return e, "", err
		}
		e.Tokens = append(e.Tokens, t)
	}
	var err1, err2 error
	e.UntilStart, err1 = e.at(c.UntilStart)
	e.FromStart, err2 = e.at(c.FromStart)
	return e, c.Type, cmp.Or(err1, err2, e.readSequence(&c))
}

// The method at is the reverse of the method places.
func (e Envelope) at(places []int) ([]joblock.Token, error) {
	var some []joblock.Token
	for _, i := range places {
		if i < 0 || i >= len(e.Tokens) {
			return nil, door.Invalid("open envelope", "", "there is no token %d", i)
		}
		some = append(some, e.Tokens[i])
	}
	return some, nil
}

// Strip returns a copy of headers without the envelope, or nil if nothing is left.
func Strip(headers map[string]string) map[string]string {
	if _, ok := headers[Header]; ok && len(headers) == 1 {
		return nil
	}
	rest := maps.Clone(headers)
	delete(rest, Header)
	if len(rest) == 0 {
		return nil
	}
	return rest
}
