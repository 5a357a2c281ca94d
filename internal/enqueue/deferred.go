package enqueue

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
)

// Deferred is an enqueue that was written down, and that any process with the same locks' store can do later. Its JSON
// form hides the tokens of locks.
type Deferred struct {
	Queue   string            `json:"queue"`
	ID      string            `json:"id"`              // the task's
	Named   bool              `json:"named,omitempty"` // the caller has chosen ID
	Keys    []string          `json:"keys"`            // of the lock or the sequence of the job
	Headers map[string]string `json:"headers,omitempty"`
	Options Options           `json:"options"`

	// Kind names the type of How in storable. If the caller has handed locks over, Kind is empty and Locks has the job's
	// envelope, encrypted.
	Kind  string          `json:"kind,omitempty"`
	How   json.RawMessage `json:"how,omitempty"`
	Locks string          `json:"locks,omitempty"`

	dispatch *dispatch // has parked the locks; nil for a Deferred that was read
}

// storable has a value of each How whose exported fields say all that a later enqueue needs.
var storable = []How{Unique{}, Sequence{}, Debounce{}}

// Defer checks req as Enqueue does, and returns what is to be kept of it. The locks of a Carry or of Sequence.Lock are
// parked for the job: Undo gives them back. For any other How nothing is sent to the locks' store, so a conflict about the
// key is found by the later enqueue. After an error the caller has its locks as after Enqueue.
func (c *Client) Defer(ctx context.Context, req Request) (*Deferred, error) {
	d, err := c.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := checkOpen(c.locks, opEnqueue); err != nil {
		return nil, err
	}
	out := &Deferred{Queue: d.queue, ID: d.id, Headers: envelope.Strip(d.task.Headers())}
	out.Keys, _ = d.kind.keys()
	if trace := traceHeaders(ctx, c.locks); len(trace) > 0 {
		merged := maps.Clone(trace)
		maps.Copy(merged, out.Headers)
		out.Headers = merged
	}
	for _, opt := range d.opts {
		out.Named = out.Named || opt.Type() == asynq.TaskIDOpt
		if err := out.Options.set(opt); err != nil {
			return nil, err
		}
	}
	switch kind := d.kind.(type) {
	case *carry, *firstInLine:
		return out, out.park(ctx, d)
	case *permit:
		return nil, Invalid(opEnqueue, kind.of.Key, "Unique.Limit is %d, must be 0 for an enqueue that is done later: use a Sequence with a Limit", kind.of.Limit)
	}
	for _, key := range out.Keys {
		if err := (*core.Locker)(c.locks).Check(opEnqueue, key); err != nil {
			return nil, d.wrap(err)
		}
	}
	how := reflect.TypeOf(req.How)
	for _, s := range storable {
		if reflect.TypeOf(s) == how {
			out.Kind = how.Name()
			out.How, err = json.Marshal(req.How)
			return out, err
		}
	}
	return nil, badTask("a %s cannot be enqueued later", how.Name())
}

// park parks the locks of d and encrypts their envelope.
func (f *Deferred) park(ctx context.Context, d *dispatch) error {
	if err := d.c.ready(ctx, opEnqueue); err != nil {
		return d.wrap(err)
	}
	f.dispatch = d
	err := d.c.prepare(ctx, d)[0]
	if err == nil {
		err = d.seal(ctx)
	}
	if err == nil {
		f.Locks, err = d.c.ring.Encrypt(ctx, d.header)
		err = d.wrap(err)
	}
	if err != nil {
		dctx, cancel := settling(ctx)
		defer cancel()
		return d.takeBack(dctx, err)
	}
	return nil
}

// Undo gives the locks that Defer has parked back to their handles. The errors are those of Lock.Reclaim.
func (f *Deferred) Undo(ctx context.Context) error {
	if f.dispatch == nil {
		return nil
	}
	return f.dispatch.kind.undo(ctx)
}

// Restore returns the enqueue that was deferred as f, with the task's type and payload. name is different for each
// Deferred. The enqueue may be repeated, even at the same time: see Request.Call. An error matches joblock.ErrInvalid
// if f can never be enqueued, and is otherwise an error of the locks' store.
func (c *Client) Restore(ctx context.Context, f *Deferred, name, taskType string, payload []byte) (Request, error) {
	if err := c.ready(ctx, opEnqueue); err != nil {
		return Request{}, err
	}
	derived, err := c.ring.Derive(ctx, "deferred enqueue "+name)
	if err != nil {
		return Request{}, err
	}
	sum := sha256.Sum256(derived)
	req := Request{
		Task: asynq.NewTaskWithHeaders(taskType, payload, f.Headers),
		Opts: append(f.Options.list(), asynq.Queue(f.Queue), asynq.TaskID(f.ID)),
		Call: Call{Owner: hex.EncodeToString(derived[:16]), Nonce: strings.ToLower(base32.HexEncoding.EncodeToString(sum[:])[:13])},
	}
	if f.Locks != "" {
		req.How = kept{f}
		return req, nil
	}
	for _, s := range storable {
		if t := reflect.TypeOf(s); t.Name() == f.Kind {
			how := reflect.New(t)
			if err := json.Unmarshal(f.How, how.Interface()); err != nil {
				return Request{}, badTask("the kept %s cannot be read: %s", f.Kind, err)
			}
			req.How = how.Elem().Interface().(How)
			return req, nil
		}
	}
	return Request{}, badTask("a kept enqueue of kind %q is not known to this build", f.Kind)
}

// kept is the How of locks that Defer has parked.
type kept struct{ *Deferred }

func (k kept) plan(ctx context.Context, d *dispatch) (kind, error) {
	header, err := d.c.ring.Decrypt(ctx, k.Locks)
	var e envelope.Opened
	if err == nil {
		e, _, err = envelope.Open(ctx, d.c.ring.Open, envelope.Task{
			Job: d.job, Type: d.task.Type(), Headers: map[string]string{envelope.Header: header},
		})
	}
	var unreadable *envelope.Unreadable
	switch {
	case err == nil:
		return &keptKind{dispatch: d, env: e.Envelope}, nil
	case errors.Is(err, seal.ErrUnknownKey):
		// The store has lost its keys, and with them the locks. With new tokens the job takes its locks when it runs.
		env, err := unheld(d, k.Keys)
		return &keptKind{dispatch: d, env: env}, err
	case joblock.Retryable(err) || joblock.CodeOf(err) != "" || ctx.Err() != nil:
		return nil, err
	case errors.As(err, &unreadable):
		return nil, badTask("the kept locks cannot be read by this build: %s", err)
	}
	return nil, badTask("the kept locks cannot be read: %s", err)
}

// unheld returns an envelope with a new token for each of keys, under which no lock is held.
func unheld(d *dispatch, keys []string) (env envelope.Envelope, err error) {
	for _, key := range keys {
		token, err := joblock.NewToken(key, newTaskID(), (*core.Locker)(d.c.locks).Settings().TTL)
		if err != nil {
			return env, err
		}
		env.Tokens = append(env.Tokens, token)
	}
	env.Retries = d.retries
	return env, nil
}

// keptKind is the kind of a kept. Its locks are parked for the job, and stay so if the enqueue fails: it will be
// repeated.
type keptKind struct {
	*dispatch
	env envelope.Envelope
}

func (k *keptKind) keys() (named, alone []string) {
	for _, token := range k.env.Tokens {
		named = append(named, token.Key())
	}
	return named, named
}

func (k *keptKind) ask(*batch) { k.tokens = k.env.Tokens }

func (k *keptKind) mark(_ context.Context, env *envelope.Envelope) ([]asynq.Option, error) {
	*env = k.env
	if env.Sequence == nil {
		return nil, nil
	}
	return k.dueOnTime(), nil
}

func (k *keptKind) undo(context.Context) error    { return nil }
func (k *keptKind) abandon(context.Context) error { return nil }

// Options has the last option of each type that a task was enqueued with. Durations are in nanoseconds.
type Options struct {
	MaxRetry  *int           `json:"max_retry,omitempty"`
	Timeout   *time.Duration `json:"timeout,omitempty"`
	Deadline  *time.Time     `json:"deadline,omitempty"`
	Unique    *time.Duration `json:"unique,omitempty"`
	ProcessAt *time.Time     `json:"process_at,omitempty"`
	Retention *time.Duration `json:"retention,omitempty"`
	Group     *string        `json:"group,omitempty"`
}

// set notes opt. ProcessIn is noted as a time, counted from now. The queue and the task ID are not noted.
func (o *Options) set(opt asynq.Option) (err error) {
	switch opt.Type() {
	case asynq.QueueOpt, asynq.TaskIDOpt:
	case asynq.MaxRetryOpt:
		o.MaxRetry, err = pointerTo[int](opt)
	case asynq.TimeoutOpt:
		o.Timeout, err = pointerTo[time.Duration](opt)
	case asynq.DeadlineOpt:
		o.Deadline, err = pointerTo[time.Time](opt)
	case asynq.UniqueOpt:
		o.Unique, err = pointerTo[time.Duration](opt)
	case asynq.ProcessAtOpt:
		o.ProcessAt, err = pointerTo[time.Time](opt)
	case asynq.ProcessInOpt:
		var in time.Duration
		in, err = valueOf[time.Duration](opt)
		at := time.Now().Add(in)
		o.ProcessAt = &at
	case asynq.RetentionOpt:
		o.Retention, err = pointerTo[time.Duration](opt)
	case asynq.GroupOpt:
		o.Group, err = pointerTo[string](opt)
	default:
		err = badTask("the option %s cannot be kept for a later enqueue", opt)
	}
	return err
}

func pointerTo[T any](opt asynq.Option) (*T, error) {
	v, err := valueOf[T](opt)
	return &v, err
}

// list returns the options for asynq.
func (o *Options) list() (opts []asynq.Option) {
	opts = listed(opts, o.MaxRetry, asynq.MaxRetry)
	opts = listed(opts, o.Timeout, asynq.Timeout)
	opts = listed(opts, o.Deadline, asynq.Deadline)
	opts = listed(opts, o.Unique, asynq.Unique)
	opts = listed(opts, o.ProcessAt, asynq.ProcessAt)
	opts = listed(opts, o.Retention, asynq.Retention)
	return listed(opts, o.Group, asynq.Group)
}

func listed[T any](opts []asynq.Option, v *T, option func(T) asynq.Option) []asynq.Option {
	if v == nil {
		return opts
	}
	return append(opts, option(*v))
}

// Locks returns the Locker of c.
func (c *Client) Locks() *joblock.Locker { return c.locks }

// TaskInfo returns what asynq knows of a task. Absent is true if asynq has no such task.
func (c *Client) TaskInfo(ctx context.Context, queue, id string) (info *asynq.TaskInfo, absent bool, err error) {
	info, err = c.taskInfo(ctx, queue, id)
	if isGone(err) {
		return nil, true, nil
	}
	return info, false, err
}
