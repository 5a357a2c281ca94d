// Package envelope is the header format in which an asynq task carries locks: handoff writes it and worker reads it.
// A header, unlike a payload, leaves asynq's Unique key and consumers in other languages untouched.
//
// A token is enough to take its lock, so anyone who can write a header could take locks, or make another caller's task
// carry them. Hence an envelope is sealed for one job (package seal). The key of the seal is known only to those who can
// read the locks' store, or it is a configured secret. An envelope that is proven not to be genuine counts as absent. One
// that this process cannot check does not: its task waits for a process that can.
//
// The payload is not sealed: asynq allows changing the payload of a scheduled task, and the task must then keep its lock.
package envelope

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
)

// Header is the name of the header. Its value, sealed by package seal, has the job, the type of the task, the tokens, and
// which tokens the worker treats specially. There is only one header, so that no part can be left out, added or
// exchanged.
const Header = "joblock"

const (
	// MaxTokens is the maximum number of locks handed over with one task.
	MaxTokens = 64
	// MaxCarried is the maximum number of locks a task may carry: an aggregated task has the locks of all members of its
	// group.
	MaxCarried = 1024
)

// Envelope is what a task carries.
type Envelope struct {
	// Tokens are the tokens of all locks that the task carries.
	Tokens []joblock.Token

	// Retries is the author's own MaxRetry, or -1 if the task has no spare retry. With a spare retry asynq's MaxRetry is
	// one more than Retries. asynq archives a task whose retries are used up without asking whether the last attempt
	// counts, so without a spare retry a busy lock would cost the job.
	Retries int

	// UntilStart and FromStart list the Tokens whose locks have a shorter life than the job. The worker releases the
	// locks of UntilStart when the handler starts. It takes the locks of FromStart when the task is about to run; until
	// then the job does not hold them.
	UntilStart, FromStart []joblock.Token

	// Newest lists the Tokens with whose locks the job was enqueued, if a newer job replaces it while it waits. Of two jobs
	// with locks on the same key, the one with the larger fence is the newer one: it must not run first.
	Newest []joblock.Token

	// Cooldowns are the locks that stay reserved, for no job, for a time after the job is done; those of UntilStart after the
	// job has started. No token has two.
	Cooldowns []Cooldown

	// Cancel says that the job ends the older job that has the key of FromStart, and that a newer job of the key ends this
	// one.
	Cancel bool

	// OwnQueue says that Cancel ends no job of another queue, because the caller that has enqueued the job may touch none.
	OwnQueue bool

	// Sequence, unless nil, is the job's part in a sequence.
	Sequence *Sequence

	// Members is how many tasks of a group asynq has aggregated into the task, those without locks included; 0 if the task
	// is no aggregate.
	Members int

	// Chain, unless nil, is the task's part in a chain.
	Chain *chain.Chain
}

// Cooldown says for how long the lock of Token stays reserved.
type Cooldown struct {
	Token joblock.Token // of Envelope.Tokens
	For   time.Duration
}

// Sequence is a job's part in a sequence of jobs: see package handoff, Jobs in a sequence.
type Sequence struct {
	Token joblock.Token // of Tokens: for the sequence's key, or for a slot of that key
	Halt  bool          // after a final failure of the job, the key stays with the job
	Limit int           // how many jobs of the sequence may run at a time: the number of slots; 0 means 1

	LimitName string // the name of the limit whose value an operator may set in place of Limit; "" for none

	// Waits says that the task was enqueued to wait for its turn. Its time in asynq is then Wait after the enqueue, and
	// NotBefore is the time that the author asked for, rounded up to a whole second; zero means none.
	Waits     bool
	NotBefore time.Time
}

// Wait is how far in the future a task that waits for its turn is scheduled or snoozed. The process that gives the key to
// its job runs the task. If none has by then, the task itself asks whether its turn has come.
const Wait = 24 * time.Hour

// Patience is how long the place of a job in line lasts. It outlasts each Wait with its jitter, so that a job without a
// keeper still has its place when it asks.
const Patience = 2 * Wait

// EnqueueGrace is how long an enqueue may take after it has parked its lock: during that time the lock is kept even if
// the task does not exist. A minute is enough: by default go-redis gives up on a silent server after some twenty seconds,
// and a frozen server applies all commands it has received before it answers a later one.
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

// CoolingPrefix begins the names under which locks are reserved while they cool down, instead of the name of a job.
// ParseJob accepts none of these names.
const CoolingPrefix = "%cooldown:"

// Cooling returns the name under which a lock is reserved during the cooldown that follows job.
func Cooling(job string) string { return CoolingPrefix + job }

// ParseCooling is the reverse of Cooling. cools is true if a lock that is reserved for name cools down.
func ParseCooling(name string) (job string, cools bool) {
	return strings.CutPrefix(name, CoolingPrefix)
}

// reservedShare is the part of a long reservation that a client waits before it asks again.
const reservedShare = 60

// ComeBack returns after how long a refused client should ask again for a lock that stays reserved for job for left.
// That is left, or a sixtieth of left but at least a minute if that is shorter, because a lock that is reserved for an
// hour can become free in a second. A lock that cools down becomes free only with time: for such a lock ComeBack
// returns left.
func ComeBack(job string, left time.Duration) time.Duration {
	left -= time.Millisecond // by which stores keep a lease longer than asked for; it must not cost a second
	if _, cools := ParseCooling(job); !cools {
		left = min(left, max(time.Minute, left/reservedShare))
	}
	return left
}

const aggregatePrefix = "aggregate:"

// AggregateID returns an ID for the task that asynq aggregates a group into. The ID names the lead, which is one of the
// members. Until asynq has enqueued the aggregated task, the members still exist, and need the locks that are bound to
// the ID.
func AggregateID(lead string) string { return aggregatePrefix + uuid.NewString() + ":" + lead }

// LeadOf is the reverse of AggregateID. ok is false if taskID does not come from AggregateID.
func LeadOf(taskID string) (lead string, ok bool) {
	rest, ok := strings.CutPrefix(taskID, aggregatePrefix)
	if !ok {
		return "", false
	}
	_, lead, ok = strings.Cut(rest, ":")
	return lead, ok && lead != ""
}

// Seal returns the header's value for the task with this job name and type.
func (e Envelope) Seal(ctx context.Context, ring *seal.Ring, job, taskType string) (string, error) {
	text, err := e.text(job, taskType)
	if err != nil {
		return "", err
	}
	return ring.Seal(ctx, text)
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

// Cause is why an envelope counts as absent, or cannot be read.
type Cause string

// Causes of a *Distrust.
const (
	Forged    Cause = "forged"    // the seal does not match
	Copied    Cause = "copied"    // the envelope was sealed for another task
	Malformed Cause = "malformed" // the header is no sealed text
)

// Causes of an *Unreadable.
const (
	Newer   Cause = "newer build" // of the toolkit has sealed or written the envelope
	Unknown Cause = "unknown key" // the seal's key is not known here
)

func (d *Distrust) Error() string {
	if d.Of != "" {
		return fmt.Sprintf("the locks in the task's header are ignored (%s): the header was sealed for %s", d.Cause, d.Of)
	}
	return fmt.Sprintf("the locks in the task's header are ignored (%s): %s", d.Cause, d.Err)
}

func (d *Distrust) Unwrap() error { return d.Err }

// Unreadable is the error about an envelope that may be genuine, but that this process cannot verify or read. It does not
// count as absent: its locks may be the task's, so the task must wait for a process that can read the envelope.
type Unreadable struct {
	Cause Cause // Newer or Unknown
	Err   error
}

func (e *Unreadable) Error() string {
	if e.Cause == Unknown {
		return "the locks in the task's header cannot be verified here: " + e.Err.Error()
	}
	return "a newer build of the toolkit has written which locks the task carries, and this build cannot read it: " + e.Err.Error()
}

func (e *Unreadable) Unwrap() error { return e.Err }

// An Opener verifies a seal: Ring.Open or Ring.OpenKnown of package seal.
type Opener func(ctx context.Context, sealed string) (seal.Opened, error)

// Open reads the envelope of a task. ok is false if the task has no envelope. A header is untrusted input: Open verifies
// the seal before decoding anything, and then compares job and type. A *Distrust means that the envelope is not this
// task's, an *Unreadable that it may be, and any other error that the store has not answered.
func Open(ctx context.Context, open Opener, task Task) (e Opened, ok bool, err error) {
	sealed, ok := task.Headers[Header]
	if !ok {
		return Opened{}, false, nil
	}
	text, err := open(ctx, sealed)
	switch {
	case errors.Is(err, seal.ErrMalformed):
		return Opened{}, true, &Distrust{Cause: Malformed, Err: err}
	case errors.Is(err, seal.ErrMismatch):
		return Opened{}, true, &Distrust{Cause: Forged, Err: err}
	case errors.Is(err, seal.ErrNewer):
		return Opened{}, true, &Unreadable{Cause: Newer, Err: err}
	case errors.Is(err, seal.ErrUnknownKey):
		return Opened{}, true, &Unreadable{Cause: Unknown, Err: err}
	case err != nil:
		return Opened{}, true, err
	}
	e, taskType, err := read(text.Text)
	if err != nil {
		return Opened{}, true, &Unreadable{Cause: Newer, Err: err}
	}
	if task.Job != "" && e.Job != task.Job || taskType != task.Type {
		return Opened{}, true, &Distrust{Cause: Copied, Of: e.Job + " of type " + strconv.Quote(taskType)}
	}
	e.Elsewhere = text.Elsewhere
	return e, true, nil
}

// Peek returns what the header of a task claims, for people. The seal is not verified, so never act on the result. ok is
// false if there is no readable claim about this task.
func Peek(task Task) (e Opened, ok bool) {
	e, ok, err := Open(context.Background(), func(_ context.Context, sealed string) (seal.Opened, error) {
		text, err := seal.Text(sealed)
		return seal.Opened{Text: text}, err
	}, task)
	return e, ok && err == nil
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
