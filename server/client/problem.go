package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The errors that a Problem may match, in addition to the sentinels of package joblock.
var (
	// ErrNotRecorded says that an action was refused, because it could not be recorded. Nothing was changed.
	ErrNotRecorded = ops.ErrNotRecorded

	// ErrTaskExists means that there is another task with the TaskID of an EnqueueRequest, and that nothing was enqueued.
	// It is asynq's error, which package handoff also returns.
	ErrTaskExists = asynq.ErrTaskIDConflict

	// ErrTaskNotFound says that asynq does not have the task or, for SkipJob, that no job has the key. The Problem also
	// matches joblock.ErrNotFound.
	ErrTaskNotFound = errors.New("client: there is no such task")

	// ErrTaskState says that the state of the task does not allow the action, or that the task has moved on from its Step.
	// Nothing was changed.
	ErrTaskState = errors.New("client: the state of the task does not allow the action")

	// ErrCronNotFound says that no node has seen the cron job. The Problem also matches joblock.ErrNotFound, as the error of
	// package scheduler does.
	ErrCronNotFound = errors.New("client: there is no such cron job")

	// ErrBackfilling says that the cron job has a backfill that has not ended. It is the error of package scheduler.
	ErrBackfilling = ops.ErrBackfilling
)

// matches has the sentinels for each code that does not belong to package joblock.
var matches = map[string][]error{
	"ACTION_NOT_RECORDED": {ErrNotRecorded},
	"REQUEST_INVALID":     {joblock.ErrInvalid},
	"TASK_EXISTS":         {ErrTaskExists},
	"TASK_NOT_FOUND":      {ErrTaskNotFound, joblock.ErrNotFound},
	"TASK_STATE":          {ErrTaskState},
	"CRON_NOT_FOUND":      {ErrCronNotFound, joblock.ErrNotFound},
	"CRON_BACKFILLING":    {ErrBackfilling},
}

var (
	codeClosed      = joblock.CodeOf(joblock.ErrClosed)
	codeUnavailable = joblock.CodeOf(joblock.ErrUnavailable)
)

// Problem is the error of a call: a server's answer, or the lack of an answer. It matches the sentinel of package joblock
// or of this package that has its Code.
type Problem struct {
	Status    int    // the HTTP status; 0 if there was no answer
	Code      string // see package server; "" if the answer does not come from a lock server
	Title     string
	Detail    string
	Retryable bool // the same request may succeed later

	// RetryAfter is how long to wait until then; 0 if the server does not say.
	RetryAfter time.Duration

	// Key and the following fields describe the lock, if the Code is about a lock.
	Key       string
	Holder    string
	Job       string
	Remaining time.Duration
	Ended     driver.Ended
	Reason    string

	Request string // the server's name for the request, as in its log

	op     string
	err    error // of the connection
	unsent bool  // the request has reached no server
}

// Error returns one line.
func (p *Problem) Error() string {
	if inner := p.lock(); inner != nil {
		return inner.Error()
	}
	text := strings.TrimSuffix(cmp.Or(p.Detail, p.Title), ".")
	if p.Code == "" {
		return fmt.Sprintf("%s: %s", p.op, text)
	}
	return fmt.Sprintf("%s: %s (%s)", p.op, text, p.Code)
}

// Is reports whether target is a sentinel of this package, or joblock.ErrNotFound, and the Code stands for it. Unwrap
// covers the other sentinels of package joblock.
func (p *Problem) Is(target error) bool { return slices.Contains(matches[p.Code], target) }

// Unwrap returns the *joblock.Error with the code of the problem, or the underlying error.
func (p *Problem) Unwrap() error {
	if inner := p.lock(); inner != nil {
		return inner
	}
	return p.err
}

// lock returns the error of package joblock that the problem stands for, or nil.
func (p *Problem) lock() *joblock.Error {
	if !strings.HasPrefix(p.Code, "LOCK_") {
		return nil
	}
	return &joblock.Error{
		Code: p.Code, Op: p.op, Key: p.Key, Holder: p.Holder, Job: p.Job, Remaining: p.Remaining, Ended: p.Ended, Reason: p.Reason,
		Detail: p.Detail, Err: p.err,
	}
}

// unanswered returns the problem for a call that got no answer.
func unanswered(op call, base string, err error) *Problem {
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err // the URL may contain the key
	}
	host := strings.TrimPrefix(strings.TrimPrefix(base, "https://"), "http://")
	p := &Problem{Code: codeUnavailable, Retryable: true, Key: op.key, op: op.op, err: fmt.Errorf("no answer from %s: %w", host, err)}
	var dial *net.OpError
	p.unsent = errors.As(err, &dial) && dial.Op == "dial"
	return p
}

// problemOf returns the problem of an answer that reports a failure.
func problemOf(op *call, res *http.Response, text []byte) *Problem {
	var body struct {
		Title, Detail, Code, Key, Holder, Job, Reason string

		Retryable bool         `json:"retryable"`
		Remaining ops.Millis   `json:"remaining_ms"`
		Ended     driver.Ended `json:"ended"`
	}
	p := &Problem{Status: res.StatusCode, op: op.op, Request: res.Header.Get("Joblock-Request")}
	if seconds, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && seconds > 0 {
		p.RetryAfter = time.Duration(seconds) * time.Second
	}
	if err := json.Unmarshal(text, &body); err != nil || body.Code == "" {
		p.Title = fmt.Sprintf("the answer is %s, and does not come from a lock server", res.Status)
		return p
	}
	p.Code, p.Title, p.Detail, p.Retryable = body.Code, body.Title, body.Detail, body.Retryable
	p.Key, p.Holder, p.Job, p.Remaining = body.Key, body.Holder, body.Job, body.Remaining.Duration()
	p.Ended, p.Reason = body.Ended, body.Reason
	return p
}
