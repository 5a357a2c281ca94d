// Package envelope is the header format in which an asynq task carries locks: handoff
// writes it and worker reads it. A header, unlike a payload, leaves asynq's Unique key and
// consumers in other languages untouched.
//
// Whoever has a token can take its lock. So whoever can write a header could take locks, or
// make another's task carry them. Hence envelopes are sealed for one job, with a key that
// only those have who use the locks' store, or with a secret (package seal). An envelope
// that is not genuine counts as absent.
//
// The payload is not sealed: asynq lets people change the payload of a scheduled task, and
// the task must keep its lock then.
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
	// MaxCarried bounds the locks that a task may carry: an aggregated task has those of
	// all members of its group.
	MaxCarried = 1024
)

// Envelope is what a task carries.
type Envelope struct {
	// Tokens are the tokens of all locks that the task carries.
	Tokens []joblock.Token

	// Retries is the author's own MaxRetry, or -1 if the task has no spare retry. The spare
	// retry is one more than that: asynq archives a task that has used up its retries
	// before it asks whether the last attempt counts, so without it a busy lock would cost
	// the job.
	Retries int

	// Some of Tokens, whose locks have a shorter life than the job. UntilStart are released
	// when the handler starts. FromStart are taken by the worker when the task is about to
	// run; nobody has them before.
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
// the members, the lead: until asynq has enqueued the new task the members still exist, and
// need the locks that are bound to it.
func AggregateID(lead string) string {
	return aggregatePrefix + uuid.NewString() + ":" + lead
}

// LeadOf returns the lead in an ID made by AggregateID.
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

// Task is what Open needs to know of a task.
type Task struct {
	Job     string // "" if not known: then compare Opened.Job
	Type    string
	Headers map[string]string
}

// Opened is an envelope that was found to be genuine.
type Opened struct {
	Envelope
	Job string // for which it was sealed

	// Elsewhere is true if the sealer has the same secret but uses another store.
	Elsewhere bool
}

// Carries reports whether a task has an envelope, genuine or not.
func (t Task) Carries() bool {
	_, ok := t.Headers[Header]
	return ok
}

// Distrust is the error for an envelope that counts as absent.
type Distrust struct {
	Cause Cause
	Of    string // the job for which it was sealed, if that is known to be another
	Err   error
}

// Cause is why an envelope counts as absent.
type Cause string

const (
	Forged  Cause = "forged"       // the seal does not match
	Unknown Cause = "unknown key"  // the seal's key is not known here
	Copied  Cause = "copied"       // it was sealed for another task
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

// Open reads the envelope of a task. ok is false if the task has none. A header is
// untrusted input: its seal is verified before anything is decoded, and then job and type
// are compared. A *Distrust means that the envelope is not this task's; any other error,
// that the store has not answered.
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

// Unverified reads an envelope without checking its seal, for tests. Do not act on what it
// returns: anybody who can enqueue a task may have written it.
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

// Strip returns headers without the envelope: nil if nothing is left. headers is not
// changed.
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
