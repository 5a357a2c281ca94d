package handoff

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// codeClaimFailed is the code of a 500: the server is at fault, not the client or a lock.
const codeClaimFailed = "LOCK_CLAIM_FAILED"

// Refusal says why a request gets no lock, and is the answer to it:
//
//	status  errors                                Retry-After
//	429     ErrHeld, ErrTimeout, ErrBusy          what is left of the lock
//	503     ErrUnavailable, ErrClosed, ErrLost    1 s
//	503     a context that has ended              1 s
//	400     ErrInvalid about a key that was given none
//	400     ErrInvalid of the claim function      none
//	500     any other                             none
//
// Errors of the claim function are judged like those of the Locker, so it can refuse with an
// error of joblock. Among the other errors are a Claim that names no key or has a field
// out of bounds, a value in the store that is not a lock, and a Middleware that was made
// without a Locker, a claim function or a next handler.
type Refusal struct {
	Status int    // of the answer; taken as 500 unless from 200 to 999
	Code   string // of the error; LOCK_CLAIM_FAILED with 500
	// Message is for the client: one sentence for each code. It has no text of an error,
	// which may name the key, the holder and the job.
	Message string
	// RetryAfter is when to try again, in whole seconds, 0 for no advice.
	RetryAfter time.Duration
	Err        error // the error itself, with all its details; not for the client
}

// ServeHTTP is the default answer: the status, Retry-After, and the JSON object
// {"message","code"}. Headers that describe another body, such as Content-Encoding, are
// deleted. The zero Refusal is a 500.
func (f Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if f.Status < http.StatusOK || f.Status > 999 { // net/http panics, or goes on waiting for an answer
		f.Status = http.StatusInternalServerError
	}
	f.Code = cmp.Or(f.Code, codeClaimFailed)
	f.Message = cmp.Or(f.Message, failedMessage)
	body, err := json.Marshal(struct {
		Message string `json:"message"`
		Code    string `json:"code"`
	}{f.Message, f.Code})
	if err != nil { // two strings always marshal
		panic("handoff: " + err.Error())
	}
	h := w.Header()
	// The handler may have set them for another body. http.Error deletes the same ones.
	for _, name := range []string{"Content-Length", "Content-Encoding", "Cache-Control", "Etag", "Last-Modified"} {
		h.Del(name)
	}
	h.Set("Content-Type", "application/json")
	if f.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(wholeSeconds(f.RetryAfter), 10))
	}
	w.WriteHeader(f.Status)
	_, _ = w.Write(append(body, '\n')) // a client that is gone needs no answer
}

// Refuse answers a request whose handler got err from Enqueue, EnqueueUnique or a Locker.
// The answer is the one that a Middleware gives for err; see Refusal. Behind a Middleware
// its options apply (OnRefusal, MaxRetryAfter, Logger), elsewhere the defaults.
//
// Unlike http.Error with the text of err, Refuse tells the client neither the key nor its
// holder. An error that is not about a lock, such as asynq.ErrTaskIDConflict, is answered
// with 500, and so is nil: handle these before.
func Refuse(w http.ResponseWriter, r *http.Request, err error) {
	m, ok := r.Context().Value(middlewareKey{}).(*middleware)
	if !ok {
		m = newMiddleware()
	}
	var e *joblock.Error
	if errors.As(err, &e) {
		err = blame(err, e.Key)
	}
	m.refuse(w, r, err)
}

// failedMessage tells a client nothing about the error.
const failedMessage = "the request could not be served"

// newRefusal makes the answer to err, an error of the claim function, the Locker or a
// handler. ctx is the request's.
func newRefusal(ctx context.Context, err error, maxRetryAfter time.Duration) Refusal {
	f := Refusal{Err: err}
	var e *joblock.Error
	var ours *claimError
	switch {
	case errors.As(err, &ours):
	case errors.As(err, &e):
		f.Code = e.Code
	case over(ctx, err):
		// The client went away, or the server shuts down. 503 rather than nginx's 499:
		// to return without an answer would be a 200.
		f.Status, f.Code = http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrTimeout)
		f.Message = "the request ended before it could be served"
		f.RetryAfter = time.Second
		return f
	}
	switch {
	case e == nil:
		f.Status, f.Code, f.Message = http.StatusInternalServerError, codeClaimFailed, failedMessage
	case errors.Is(e, joblock.ErrHeld), errors.Is(e, joblock.ErrBusy):
		f.Status, f.Message = http.StatusTooManyRequests, "the lock is held by another request or job"
		f.RetryAfter = retryAfter(e.Remaining, maxRetryAfter)
	case errors.Is(e, joblock.ErrTimeout):
		f.Status, f.Message = http.StatusTooManyRequests, "the lock did not become free in time"
		f.RetryAfter = retryAfter(e.Remaining, maxRetryAfter)
	case errors.Is(e, joblock.ErrUnavailable), errors.Is(e, joblock.ErrClosed):
		f.Status, f.Message = http.StatusServiceUnavailable, "locks are unavailable at the moment"
		f.RetryAfter = time.Second
	case errors.Is(e, joblock.ErrLost):
		f.Status, f.Message = http.StatusServiceUnavailable, "the request has lost its lock"
		f.RetryAfter = time.Second
	case errors.Is(e, joblock.ErrInvalid):
		f.Status, f.Message = http.StatusBadRequest, "the request names no valid lock"
	default:
		f.Status, f.Code, f.Message = http.StatusInternalServerError, codeClaimFailed, failedMessage
	}
	return f
}

// over reports whether err says that a context has ended: ctx, with whatever cause, or one
// that the handler has derived from it.
func over(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	return cause != nil && errors.Is(err, cause) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// retryAfter returns the Retry-After for a lock that lasts for left. Stores keep a lease a
// millisecond longer than asked for, which must not cost a second.
func retryAfter(left, most time.Duration) time.Duration {
	return time.Duration(wholeSeconds(min(left-time.Millisecond, most))) * time.Second
}

// wholeSeconds rounds up, to at least 1.
func wholeSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return max(1, s)
}
