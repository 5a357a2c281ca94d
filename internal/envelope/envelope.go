// Package envelope is the header format in which an asynq task carries locks:
// what handoff writes and worker reads. A header, unlike a payload, leaves asynq's
// Unique key and consumers in other languages untouched.
//
// A token is good for its lock. So whoever can write a header could take locks, or make
// another's task carry them. Hence envelopes are sealed for one job, by those who have the
// locks' store or a secret (package seal). An envelope that is not genuine counts as absent.
//
// The payload is not sealed: asynq lets people change that of a scheduled task, and such a
// task is to keep its lock.
package envelope

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
)

// Header is the name of the one header. Its value is a text sealed by package seal: the job,
// the type of the task, the tokens, and what the worker is to do with them. One header, so
// that no part can be left out, added or exchanged; as JSON, so that people can read it.
const Header = "joblock"

const (
	// MaxTokens bounds the locks that are handed over with one task.
	MaxTokens = 64
	// MaxCarried bounds the locks that a task may carry: one that a group was aggregated
	// into has those of all members.
	MaxCarried = 1024
)

// Envelope is what a task carries.
type Envelope struct {
	// Tokens are those of all locks.
	Tokens []joblock.Token

	// Retries is the author's own MaxRetry. The task itself has one more, the spare retry:
	// asynq archives a task that has used up its retries before it asks whether the last
	// attempt counts, so without a spare one a busy lock would cost the job. -1 if the
	// task has no spare retry.
	Retries int

	// Of Tokens, those of locks with a shorter life than the job. UntilStart are released
	// when the handler starts. FromStart nobody has taken yet; the worker takes them when
	// the task is about to run.
	UntilStart, FromStart []joblock.Token
}

// Job returns the name under which locks are bound to a task. A slash in the queue's name is
// escaped, so that no two tasks have the same name.
func Job(queue, taskID string) string { return queueEscaper.Replace(queue) + "/" + taskID }

// ParseJob is the reverse of Job. ok is false if job is no name of a task.
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

// AggregateID returns an ID for the task that a group is aggregated into. It names one of
// the members, the lead. While asynq has not enqueued the new task, the members still exist,
// and need the locks that are bound to it.
func AggregateID(lead string) string {
	return aggregatePrefix + uuid.NewString() + ":" + lead
}

// LeadOf returns the lead that an ID of AggregateID names.
func LeadOf(taskID string) (lead string, ok bool) {
	rest, ok := strings.CutPrefix(taskID, aggregatePrefix)
	if !ok {
		return "", false
	}
	_, lead, ok = strings.Cut(rest, ":")
	return lead, ok && lead != ""
}

// content is an envelope as it is written.
type content struct {
	Job        string   `json:"job"`
	Type       string   `json:"type"`
	Retries    int      `json:"retries"`
	Tokens     []string `json:"tokens"`
	UntilStart []int    `json:"untilStart,omitempty"` // places in Tokens
	FromStart  []int    `json:"fromStart,omitempty"`
}

// Seal returns the header's value for the task of that name and type.
func (e Envelope) Seal(ctx context.Context, ring *seal.Ring, job, taskType string) (string, error) {
	c := content{Job: job, Type: taskType, Retries: e.Retries}
	for _, t := range e.Tokens {
		text, err := t.MarshalText()
		if err != nil {
			return "", err
		}
		c.Tokens = append(c.Tokens, string(text))
	}
	var err error
	if c.UntilStart, err = e.places(e.UntilStart); err != nil {
		return "", err
	}
	if c.FromStart, err = e.places(e.FromStart); err != nil {
		return "", err
	}
	text, err := json.Marshal(c)
	if err != nil {
		return "", fmt.Errorf("seal envelope: %w", err)
	}
	return ring.Seal(ctx, string(text))
}

func (e Envelope) places(some []joblock.Token) ([]int, error) {
	var places []int
	for _, t := range some {
		i := slices.Index(e.Tokens, t)
		if i < 0 {
			return nil, invalid("seal envelope", fmt.Sprintf("%s is not among the tokens", t))
		}
		places = append(places, i)
	}
	return places, nil
}

// Task is a task as far as its envelope is about it.
type Task struct {
	Job     string // "" if it is not known, and Opened.Job is to be trusted for the moment
	Type    string
	Headers map[string]string
}

// Opened is an envelope that was found to be genuine.
type Opened struct {
	Envelope
	Job string // that it was sealed for

	// Elsewhere says that the sealer has the same secret and uses another store.
	Elsewhere bool
}

// Carries reports whether a task has an envelope, genuine or not.
func (t Task) Carries() bool {
	_, ok := t.Headers[Header]
	return ok
}

// Distrust is the error about an envelope that counts as absent.
type Distrust struct {
	Cause Cause
	Of    string // the job that it was sealed for, where that is known and another
	Err   error
}

// Cause is a reason to take an envelope for absent.
type Cause string

// The causes.
const (
	Forged  Cause = "forged"       // the seal does not match
	Unknown Cause = "unknown key"  // nor is there a key that it could be compared with
	Copied  Cause = "copied"       // it is another task's
	Unread  Cause = "not readable" // it is of no version that this build knows
)

func (d *Distrust) Error() string {
	if d.Of != "" {
		return fmt.Sprintf("the locks in the task's header count for nothing (%s): it was sealed for %s", d.Cause, d.Of)
	}
	return fmt.Sprintf("the locks in the task's header count for nothing (%s): %s", d.Cause, d.Err)
}

func (d *Distrust) Unwrap() error { return d.Err }

// Opener verifies a seal: Open or OpenKnown of a seal.Ring.
type Opener func(ctx context.Context, sealed string) (seal.Opened, error)

// Open reads the envelope of a task. ok is false for a task that has none. A header is
// untrusted input: nothing of it is decoded before its seal was found right, and then job
// and type are compared. A *Distrust says that the envelope is not this task's; any other
// error says that the store has not answered.
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
	e, c, err := read(text.Text)
	if err != nil {
		return Opened{}, true, &Distrust{Cause: Unread, Err: err}
	}
	if task.Job != "" && c.Job != task.Job || c.Type != task.Type {
		return Opened{}, true, &Distrust{Cause: Copied, Of: c.Job + " of type " + strconv.Quote(c.Type)}
	}
	e.Elsewhere = text.Elsewhere
	return e, true, nil
}

// Unverified reads an envelope without checking its seal. It is for tests: whoever acts upon
// what it returns acts for anybody who can enqueue a task.
func Unverified(headers map[string]string) (Opened, bool, error) {
	sealed, ok := headers[Header]
	if !ok {
		return Opened{}, false, nil
	}
	text, err := seal.Text(sealed)
	if err != nil {
		return Opened{}, true, err
	}
	e, _, err := read(text)
	return e, true, err
}

// read decodes the text of an envelope.
func read(text string) (e Opened, c content, err error) {
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return e, c, err
	}
	if len(c.Tokens) == 0 || len(c.Tokens) > MaxCarried || c.Retries < -1 {
		return e, c, invalid("open envelope", fmt.Sprintf("%d tokens, must be from 1 to %d; or %d retries, must be at least -1",
			len(c.Tokens), MaxCarried, c.Retries))
	}
	for _, text := range c.Tokens {
		t, err := joblock.ParseToken(text)
		if err != nil {
			return e, c, err
		}
		e.Tokens = append(e.Tokens, t)
	}
	if e.UntilStart, err = e.at(c.UntilStart); err != nil {
		return e, c, err
	}
	if e.FromStart, err = e.at(c.FromStart); err != nil {
		return e, c, err
	}
	e.Job, e.Retries = c.Job, c.Retries
	return e, c, nil
}

func (e Envelope) at(places []int) ([]joblock.Token, error) {
	var some []joblock.Token
	for _, i := range places {
		if i < 0 || i >= len(e.Tokens) {
			return nil, invalid("open envelope", fmt.Sprintf("there is no token %d", i))
		}
		some = append(some, e.Tokens[i])
	}
	return some, nil
}

// Strip returns headers without an envelope: nil if nothing is left, and headers
// themselves if there is none.
func Strip(headers map[string]string) map[string]string {
	if _, ok := headers[Header]; !ok {
		return headers
	}
	if len(headers) == 1 {
		return nil
	}
	rest := maps.Clone(headers)
	delete(rest, Header)
	return rest
}

func invalid(op, detail string) error {
	return door.Invalid(op, "", "%s", detail)
}
