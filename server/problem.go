package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// The codes of problems that are not those of package joblock.
const (
	codeRequest      = "REQUEST_INVALID"
	codeAuth         = "AUTH_REQUIRED"
	codeAuthDown     = "AUTH_UNAVAILABLE"
	codeForbidden    = "FORBIDDEN"
	codeNoRoute      = "NOT_FOUND"
	codeMethod       = "METHOD_NOT_ALLOWED"
	codeAccept       = "NOT_ACCEPTABLE"
	codeSlow         = "REQUEST_TIMEOUT"
	codeTaskExists   = "TASK_EXISTS"
	codeTooLarge     = "BODY_TOO_LARGE"
	codeMediaType    = "UNSUPPORTED_MEDIA_TYPE"
	codeIdempotency  = "IDEMPOTENCY_MISMATCH"
	codeRate         = "RATE_LIMITED"
	codeWaits        = "TOO_MANY_WAITS"
	codeLocks        = "TOO_MANY_LOCKS"
	codeInternal     = "INTERNAL"
	codePrecondition = "PRECONDITION_REQUIRED"
	codeNoCron       = "CRON_NOT_FOUND"
	codeBackfilling  = "CRON_BACKFILLING"
	codeNoTask       = "TASK_NOT_FOUND"
	codeTaskState    = "TASK_STATE"
	codeNoJournal    = "JOURNAL_NOT_FOUND"
	codeNotRecorded  = "ACTION_NOT_RECORDED"
	codeMisdirected  = "HOST_UNKNOWN"
)

// The codes of package joblock that the server uses itself.
var (
	codeInvalid = joblock.CodeOf(joblock.ErrInvalid)
	codeClosed  = joblock.CodeOf(joblock.ErrClosed)
)

// A problem is an RFC 9457 answer, and an error.
type problem struct {
	Type      string        `json:"type"`
	Title     string        `json:"title"`
	Status    int           `json:"status"`
	Detail    string        `json:"detail,omitempty"`
	Instance  string        `json:"instance"`
	Code      string        `json:"code"`
	Retryable bool          `json:"retryable"`
	Key       string        `json:"key,omitempty"`
	Holder    string        `json:"holder,omitempty"`
	Job       string        `json:"job,omitempty"`
	Remaining int64         `json:"remaining_ms,omitempty"`
	Ended     joblock.Ended `json:"ended,omitempty"`
	Reason    string        `json:"reason,omitempty"`

	retryAfter time.Duration
}

func (p *problem) Error() string { return p.Code + ": " + p.Detail }

// problemf returns a problem of a code that is not about the state of a lock.
func problemf(status int, code, format string, args ...any) *problem {
	return &problem{Status: status, Code: code, Title: cmp.Or(titles[code], "A value is bad"), Detail: fmt.Sprintf(format, args...)}
}

// titles has the sentence for each code.
var titles = map[string]string{
	codeRequest:      "The request cannot be read",
	codeAuth:         "The caller is not known",
	codeAuthDown:     "The rights of the caller cannot be looked up at the moment",
	codeForbidden:    "The caller may not do this",
	codeNoRoute:      "There is nothing at this path",
	codeMethod:       "The path has no such method",
	codeAccept:       "The answer has none of the accepted types",
	codeSlow:         "The body came too slowly",
	codeTaskExists:   "A task with this ID exists",
	codeTooLarge:     "The body is too large",
	codeMediaType:    "The body is not JSON",
	codeIdempotency:  "The Idempotency-Key came before, with other parameters",
	codeRate:         "The caller sends too many requests",
	codeWaits:        "Too many requests wait for locks",
	codeLocks:        "The caller has too many locks",
	codeInternal:     "The server has a fault",
	codeNoCron:       "There is no such cron job",
	codeNoTask:       "There is no such task",
	codeTaskState:    "The state of the task is in the way",
	codeBackfilling:  "The cron job has a backfill that has not ended",
	codeNoJournal:    "There is no journal",
	codePrecondition: "The request must name the holding that it means",
	codeNotRecorded:  "The action cannot be recorded, and was not begun",
	codeMisdirected:  "The server is not reached under this name",
}

// answers has the status and the title for each sentinel of package joblock.
var answers = []struct {
	sentinel error
	status   int
	title    string
}{
	{joblock.ErrHeld, http.StatusConflict, "Somebody else has the lock"},
	{joblock.ErrTimeout, http.StatusConflict, "The lock did not become free in time"},
	{joblock.ErrBusy, http.StatusConflict, "Another holder of the token has the lock"},
	{joblock.ErrNotOwner, http.StatusConflict, "The token does not name the present holding of the lock"},
	{joblock.ErrNotFound, http.StatusNotFound, "There is no such lock"},
	{joblock.ErrAlreadyReleased, http.StatusGone, "The lock was released before"},
	{joblock.ErrLost, http.StatusGone, "The lock was lost"},
	{joblock.ErrUnavailable, http.StatusServiceUnavailable, "The store of the locks did not answer"},
	{joblock.ErrClosed, http.StatusServiceUnavailable, "The server is closing"},
	{joblock.ErrInvalid, http.StatusBadRequest, "A value is bad"},
}

func closed() *problem {
	return &problem{Status: http.StatusServiceUnavailable, Code: codeClosed, Title: "The server is closing",
		Detail: "another replica serves the same request", Retryable: true, retryAfter: time.Second}
}

// maxRetryAfter bounds Retry-After: a lock that is reserved for an hour can become free in a second.
const maxRetryAfter = time.Minute

// problemOf returns the problem for an error. The text of an error that is no error of package joblock goes into the
// log only.
func (c *call) problemOf(err error) *problem {
	var p *problem
	var e *joblock.Error
	switch {
	case errors.As(err, &p):
		return p
	case errors.Is(err, ops.ErrOtherBody):
		return problemf(http.StatusUnprocessableEntity, codeIdempotency, "the first request with this Idempotency-Key has the lock, but had other parameters")
	case errors.Is(err, ops.ErrNotRecorded):
		c.detail = err
		p := problemf(http.StatusServiceUnavailable, codeNotRecorded, "nothing was changed")
		p.Retryable, p.retryAfter = true, time.Second
		return p
	case errors.Is(err, asynq.ErrTaskIDConflict), errors.Is(err, asynq.ErrDuplicateTask):
		return problemf(http.StatusConflict, codeTaskExists, "nothing was enqueued")
	case errors.As(err, &e):
		return c.lockProblem(err, e)
	case errors.Is(err, errClosing), errors.Is(err, errGone), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return closed()
	}
	c.detail = err
	return problemf(http.StatusInternalServerError, codeInternal, "a fault of the server, which its log describes")
}

func (c *call) lockProblem(err error, e *joblock.Error) *problem {
	for _, a := range answers {
		if !errors.Is(e, a.sentinel) {
			continue
		}
		p := &problem{
			Status: a.status, Code: e.Code, Title: a.title, Detail: e.Detail, Retryable: joblock.Retryable(e) || e.Code == codeClosed,
			Key: e.Key, Holder: e.Holder, Job: e.Job, Remaining: e.Remaining.Milliseconds(), Ended: e.Ended, Reason: e.Reason,
		}
		switch {
		case a.status == http.StatusBadRequest:
			p.Key = "" // which may be what is bad
		case a.status == http.StatusServiceUnavailable:
			p.retryAfter, c.detail = time.Second, err
			if e.Code != codeClosed {
				p.Detail = "it is unknown whether the call took effect"
			}
		case p.Retryable:
			// Stores keep a lease a millisecond longer than asked for, which must not cost a second.
			p.retryAfter = max(time.Millisecond, min(e.Remaining-time.Millisecond, maxRetryAfter))
		}
		return p
	}
	c.detail = err
	return problemf(http.StatusInternalServerError, codeInternal, "a fault of the server, which its log describes")
}

// wholeSeconds rounds d up to whole seconds, at least 1.
func wholeSeconds(d time.Duration) int64 { return max(1, int64(math.Ceil(d.Seconds()))) }
