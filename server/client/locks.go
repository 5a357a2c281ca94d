package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/routes"
)

// AcquireRequest says which lock Acquire takes. Key is required.
type AcquireRequest struct {
	Key     string        `wire:"key"`
	TTL     time.Duration `wire:"ttl_ms"`  // of the lease; 0 means the server's default
	MaxWait time.Duration `wire:"wait_ms"` // how long to wait for the lock; 0 means not at all. "serve --max-wait" bounds it
	Holder  string        `wire:"holder"`  // a label for display; "" means the server's
	Limit   int           `wire:"limit"`   // 0, or the number of permits of Key; see package limit

	// IdempotencyKey names this call. A later call with the same name, key and parameters finds the lock that this one
	// has taken, even after this process has restarted. Keep it secret. Default: a random name, so that the Client can
	// repeat the request when an answer is lost. A call with a Limit is never repeated.
	IdempotencyKey string
}

// Grant is a lock that a call has taken or renewed.
type Grant struct {
	Key       string
	Token     joblock.Token // a secret; zero after Renew, which leaves the token as it is
	Fence     int64         // send it to the resource that the lock protects
	TTL       time.Duration
	ExpiresAt time.Time    // the lock can be relied on until then, by the monotonic clock; see the package comment
	Prior     driver.Ended // how the previous holding of the key ended
}

// granted is the answer of acquire, renew and resume, and a line of a stream.
type granted struct {
	Key     string         `json:"key"`
	Token   *joblock.Token `json:"token"`
	Fence   int64          `json:"fence"`
	TTL     ops.Millis     `json:"ttl_ms"`
	Elapsed ops.Millis     `json:"elapsed_ms"`
	Valid   ops.Millis     `json:"valid_ms"`
	Prior   driver.Ended   `json:"prior"`
}

func (g *granted) grant(sent time.Time) Grant {
	out := Grant{Key: g.Key, Fence: g.Fence, TTL: g.TTL.Duration(), ExpiresAt: g.until(sent), Prior: g.Prior}
	if g.Token != nil {
		out.Token = *g.Token
	}
	return out
}

// until implements the rule in the section Trust of package server.
func (g *granted) until(sent time.Time) time.Time {
	return sent.Add(g.Elapsed.Duration() - g.Elapsed.Duration()/10_000 + g.Valid.Duration())
}

// ms returns d in milliseconds, rounded away from 0, so that a d below 1 ms does not become the 0 that means a default.
func ms(d time.Duration) int64 {
	n := d.Milliseconds()
	switch rest := d % time.Millisecond; {
	case rest > 0:
		n++
	case rest < 0:
		n--
	}
	return n
}

const idempotencyHeader = "Idempotency-Key"

// Acquire takes a lock, and waits for it for at most AcquireRequest.MaxWait. The lock is not renewed automatically; call
// Renew.
//
// Errors match joblock.ErrHeld, joblock.ErrTimeout after a wait, joblock.ErrUnavailable, and joblock.ErrInvalid. If the
// request has an IdempotencyKey, errors may also match joblock.ErrBusy and joblock.ErrAlreadyReleased: an earlier call
// with this name has taken the lock, and the lock was parked or released.
func (c *Client) Acquire(ctx context.Context, req AcquireRequest) (Grant, error) {
	if req.MaxWait < 0 {
		return Grant{}, core.Invalid("acquire", req.Key, "MaxWait is %s, must not be negative", req.MaxWait)
	}
	op := lockCall("acquire", routes.Acquire.Path, req.Key, req)
	op.wait, op.again = req.MaxWait, false
	if req.Limit == 0 {
		op = op.named(req.IdempotencyKey)
	}
	return c.grant(ctx, op)
}

// lockCall returns a call about a lock. Its body has the fields of req with the tag wire that are not zero. Durations are
// in milliseconds.
func lockCall(op, path, key string, req any) call {
	v, body := reflect.ValueOf(req), make(map[string]any)
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, of := f.Tag.Get("wire"), v.FieldByIndex(f.Index)
		if name == "" || of.IsZero() {
			continue
		}
		body[name] = of.Interface()
		if d, ok := of.Interface().(time.Duration); ok {
			body[name] = ms(d)
		}
	}
	return call{op: op, key: key, method: http.MethodPost, path: path, again: true, body: body}
}

// named makes op repeatable under a name, or under a random one if name is "".
func (op call) named(name string) call {
	op.again, op.header = true, http.Header{idempotencyHeader: {cmp.Or(name, rand.Text())}}
	return op
}

func (c *Client) grant(ctx context.Context, op call) (Grant, error) {
	var got granted
	op.into = &got
	sent, err := c.do(ctx, op)
	if err != nil {
		return Grant{}, err
	}
	return got.grant(sent), nil
}

// RenewRequest says which lease Renew begins.
type RenewRequest struct {
	Token   joblock.Token `wire:"token"`
	TTL     time.Duration `wire:"ttl_ms"`     // 0 means the TTL of the token
	Reserve time.Duration `wire:"reserve_ms"` // how long the key of a job's lock stays reserved after the lease; 0 keeps the present value
}

// Renew begins a new lease of the lock of a token.
//
// Errors match joblock.ErrLost, joblock.ErrNotOwner, joblock.ErrAlreadyReleased, joblock.ErrNotFound and
// joblock.ErrUnavailable. After joblock.ErrUnavailable the lock can still be relied on until the previous ExpiresAt.
func (c *Client) Renew(ctx context.Context, req RenewRequest) (Grant, error) {
	return c.grant(ctx, lockCall("renew", routes.Renew.Path, req.Token.Key(), req))
}

// Release gives the lock of token back. The reason may be "". A repeated Release succeeds.
//
// Errors match those of Renew. With joblock.ErrLost the lease had already ended, and another holder may have had the lock.
func (c *Client) Release(ctx context.Context, token joblock.Token, reason string) error {
	var got struct {
		Already bool         `json:"already"`
		Ended   driver.Ended `json:"ended"`
		Reason  string       `json:"reason"`
	}
	op := lockCall("release", routes.Release.Path, token.Key(), struct {
		Token  joblock.Token `wire:"token"`
		Reason string        `wire:"reason"`
	}{token, reason})
	op.into = &got
	_, err := c.do(ctx, op)
	if err == nil && got.Already {
		return &Problem{Status: http.StatusOK, Code: joblock.CodeOf(joblock.ErrAlreadyReleased), Key: token.Key(), Ended: got.Ended, Reason: got.Reason, op: "release"}
	}
	return err
}

// ParkRequest says what Park reserves.
type ParkRequest struct {
	Token   joblock.Token `wire:"token"`
	Job     string        `wire:"job"`        // "queue/taskID": only this job can resume the lock; "": the bearer of the new token
	Reserve time.Duration `wire:"reserve_ms"` // how long the key stays reserved; 0 means the server's default
}

// Park ends the lease, and reserves the key for the bearer of the token that Park returns. Errors match those of Renew.
func (c *Client) Park(ctx context.Context, req ParkRequest) (joblock.Token, error) {
	var got granted
	op := lockCall("park", routes.Park.Path, req.Token.Key(), req)
	op.into = &got
	_, err := c.do(ctx, op)
	if err != nil {
		return joblock.Token{}, err
	}
	if got.Token == nil {
		return joblock.Token{}, errors.New("client: the answer of park has no token")
	}
	return *got.Token, nil
}

// ResumeRequest says which lock Resume takes over.
type ResumeRequest struct {
	Token   joblock.Token `wire:"token"`
	Job     string        `wire:"job"`    // the job that the lock is parked for, if it is for a job
	TTL     time.Duration `wire:"ttl_ms"` // 0 means the TTL of the token
	Holder  string        `wire:"holder"`
	Reserve time.Duration `wire:"reserve_ms"` // how long the key stays reserved after the lease; 0 keeps the value from the Park

	IdempotencyKey string // as in AcquireRequest
}

// Resume takes over the parked lock of a token, under a new fence and with a new token. Errors match those of Renew, and
// joblock.ErrBusy while another holder of the token runs.
func (c *Client) Resume(ctx context.Context, req ResumeRequest) (Grant, error) {
	return c.grant(ctx, lockCall("resume", routes.Resume.Path, req.Token.Key(), req).named(req.IdempotencyKey))
}

// EnqueueRequest is a task of asynq, and the key of the lock that the task carries. Key and Type are required. The zero
// value of any other field means the server's default; /openapi.json describes them.
type EnqueueRequest struct {
	Key  string `wire:"key"`
	Type string `wire:"type"` // of the task

	Payload json.RawMessage `wire:"payload"`        // JSON; or
	Bytes   []byte          `wire:"payload_base64"` // any bytes

	Queue     string        `wire:"queue"`
	TaskID    string        `wire:"task_id"`
	MaxRetry  *int          `wire:"max_retry"`
	Timeout   time.Duration `wire:"timeout_ms"`   // of an attempt
	Delay     time.Duration `wire:"delay_ms"`     // how long to wait before the first attempt
	Retention time.Duration `wire:"retention_ms"` // how long asynq keeps a completed task

	// Until, OnConflict and Cooldown are for one job per key, as in handoff.Unique.
	Until      Until         `wire:"until"`
	OnConflict OnConflict    `wire:"on_conflict"`
	Cooldown   time.Duration `wire:"cooldown_ms"` // how long the key stays taken after the job is done; see handoff.Unique

	// Wait makes the request a debounce: of many requests, only the newest runs, once no further one has come for Wait.
	// See handoff.Debounce. Delay, TaskID, Until, OnConflict and Cooldown must then be zero.
	Wait    time.Duration `wire:"debounce_ms"` // how long no further enqueue must come: at least a second
	MaxWait time.Duration `wire:"max_wait_ms"` // the longest time from the first enqueue
	Leading bool          `wire:"leading"`     // the first job is due at once

	// Sequence puts the job into a line: at most Limit of its jobs run at a time, and at most MaxWaiting wait.
	Sequence   bool      `wire:"sequence"`
	Limit      int       `wire:"limit"`
	MaxWaiting int       `wire:"max_waiting"`
	OnFailure  OnFailure `wire:"on_failure"`

	IdempotencyKey string // as in AcquireRequest; the ID of the task is derived from it
}

// Until says how long a unique job has its key.
type Until string

// The values of Until; see handoff.Until. The default is UntilDone.
const (
	UntilDone    Until = "done"    // until the job is done or has failed for good
	UntilStarted Until = "started" // until the first attempt begins
)

// OnConflict says what Enqueue does if the key has a job.
type OnConflict string

// The values of OnConflict; see handoff.OnConflict. The default is Reject.
const (
	Reject   OnConflict = "reject"    // the error matches joblock.ErrHeld
	Skip     OnConflict = "skip"      // nothing is enqueued, and Enqueued is the task that has the key
	Replace  OnConflict = "replace"   // the new task takes the place of one that has not begun
	KeepLast OnConflict = "keep_last" // the new task runs after the present one, and replaces one that waits

	// CancelInProgress cancels the present job; the new task runs when the present job's handler has returned.
	CancelInProgress OnConflict = "cancel_in_progress"
)

// OnFailure says whether a line of jobs goes on after a job in it has failed for good.
type OnFailure string

// The values of OnFailure; see handoff.Sequence. The default is GoOn.
const (
	GoOn OnFailure = "go_on" // the next job runs
	Halt OnFailure = "halt"  // the line halts until an operator decides; see SkipJob
)

// Enqueued is a task that carries a lock.
type Enqueued struct {
	Key       string `json:"key"`
	Queue     string `json:"queue"`
	TaskID    string `json:"task_id"`
	State     string `json:"state"`
	Repeated  bool   `json:"repeated"`  // an earlier call with the same name has enqueued it
	Duplicate bool   `json:"duplicate"` // it is the task that had the key before
	Replaced  string `json:"replaced_task_id"`
	Waits     bool   `json:"waits"` // in the line of the key
	Ahead     int    `json:"ahead"`
}

// Enqueue takes a lock and enqueues a task that carries it, in one step. Errors match joblock.ErrHeld, ErrTaskExists,
// joblock.ErrInvalid, and joblock.ErrUnavailable, after which it is unknown whether the task exists.
func (c *Client) Enqueue(ctx context.Context, req EnqueueRequest) (Enqueued, error) {
	var got Enqueued
	op := lockCall("enqueue", routes.Enqueue.Path, req.Key, req).named(req.IdempotencyKey)
	op.into = &got
	_, err := c.do(ctx, op)
	return got, err
}

// Me is the caller as the server knows it. Without AllKeys the caller may use only keys that begin with one of Prefixes,
// and without AllQueues only jobs in Queues.
type Me struct {
	ID        string
	Scopes    []string
	Prefixes  []string
	AllKeys   bool
	Queues    []string
	AllQueues bool
	Expires   time.Time // zero for never
}

// Me returns the rights of the caller.
func (c *Client) Me(ctx context.Context) (Me, error) {
	who, err := ask(ctx, c, "me", routes.Me, routes.Empty{})
	me := Me{ID: who.ID, Scopes: who.Scopes, Prefixes: who.Prefixes, AllKeys: who.AllKeys, Queues: who.Queues, AllQueues: who.AllQueues}
	if who.Expires != nil {
		me.Expires = who.Expires.Time
	}
	return me, err
}
