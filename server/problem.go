package server

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/problem"
)

// answers has the status and the title for each sentinel of package joblock.
var answers = []struct {
	sentinel error
	status   int
	title    string
}{
	{joblock.ErrHeld, http.StatusConflict, "The lock has another holder"},
	{joblock.ErrTimeout, http.StatusConflict, "The lock did not become free in time"},
	{joblock.ErrBusy, http.StatusConflict, "Another holder of the token has the lock"},
	{joblock.ErrNotOwner, http.StatusConflict, "The token does not name the present holding of the lock"},
	{joblock.ErrNotFound, http.StatusNotFound, "There is no such lock"},
	{joblock.ErrAlreadyReleased, http.StatusGone, "The lock was released before"},
	{joblock.ErrLost, http.StatusGone, "The lock was lost"},
	{joblock.ErrUnavailable, http.StatusServiceUnavailable, "The store of the locks is not available"},
	{joblock.ErrClosed, http.StatusServiceUnavailable, "The server is closing"},
	{joblock.ErrInvalid, http.StatusBadRequest, "A value is bad"},
}

// maxRetryAfter bounds Retry-After, as in package handoff.
const maxRetryAfter = time.Hour

// problemOf returns the problem for an error. The text of an error from outside package joblock is logged, but not sent.
func (c *call) problemOf(err error) *problem.Problem {
	var p *problem.Problem
	var e *joblock.Error
	var other moved
	switch {
	case errors.As(err, &other):
		p := c.problemOf(other.error)
		p.Status = http.StatusPreconditionFailed
		return p
	case errors.As(err, &p):
		return p
	case errors.Is(err, ops.ErrOtherBody):
		return problem.New(http.StatusUnprocessableEntity, problem.Idempotency, "the first request with this Idempotency-Key has the lock, but had other parameters")
	case errors.Is(err, ops.ErrNotRecorded):
		c.detail = err
		return problem.New(http.StatusServiceUnavailable, problem.NotRecorded, "nothing was changed").Again(time.Second)
	case errors.Is(err, asynq.ErrTaskIDConflict), errors.Is(err, asynq.ErrDuplicateTask):
		return problem.New(http.StatusConflict, problem.TaskExists, "nothing was enqueued")
	case errors.As(err, &e):
		return c.lockProblem(err, e)
	case errors.Is(err, errClosing), errors.Is(err, errGone), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return problem.Closing()
	}
	c.detail = err
	return problem.New(http.StatusInternalServerError, problem.Internal, "a fault of the server, which its log describes")
}

func (c *call) lockProblem(err error, e *joblock.Error) *problem.Problem {
	for _, a := range answers {
		if !errors.Is(e, a.sentinel) {
			continue
		}
		p := &problem.Problem{
			Status: a.status, Code: e.Code, Title: a.title, Detail: e.Detail, Retryable: joblock.Retryable(e) || e.Code == problem.Closed,
			Key: e.Key, Holder: e.Holder, Job: e.Job, Remaining: e.Remaining.Milliseconds(), Ended: e.Ended, Reason: e.Reason,
		}
		switch {
		case a.status == http.StatusBadRequest:
			p.Key = "" // the key may be the bad value
		case a.status == http.StatusServiceUnavailable:
			p.RetryAfter, c.detail = time.Second, err
			switch {
			case e.Code == problem.Closed:
			case err == error(e) && errors.Is(e.Err, driver.ErrRefused): // the refused call was the only step of the request
				p.Detail = "the store refused the call, and this attempt changed nothing"
			case c.reads():
				p.Detail = "the store did not answer"
			default:
				p.Detail = "it is unknown whether the call took effect"
			}
		case p.Retryable:
			p.RetryAfter = max(time.Millisecond, min(envelope.ComeBack(e.Job, e.Remaining), maxRetryAfter))
		}
		return p
	}
	c.detail = err
	return problem.New(http.StatusInternalServerError, problem.Internal, "a fault of the server, which its log describes")
}

// reads reports whether the request changes nothing.
func (c *call) reads() bool {
	return c.r != nil && (c.r.Method == http.MethodGet || c.r.Method == http.MethodHead)
}

// wholeSeconds rounds d up to whole seconds, at least 1.
func wholeSeconds(d time.Duration) int64 { return max(1, int64(math.Ceil(d.Seconds()))) }
