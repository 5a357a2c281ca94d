package handoff

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// Code and message of a 500: the server is at fault, not the client or a lock.
const (
	codeClaimFailed = "LOCK_CLAIM_FAILED"
	failedMessage   = "the request could not be served"
)

// Code and message of a 409, as in the lock server.
const (
	codeTaskExists    = "TASK_EXISTS"
	taskExistsMessage = "the job exists already"
)

// Refusal is the answer to a request that gets no lock:
//
//	status  errors                                Retry-After
//	429     ErrHeld, ErrTimeout, ErrBusy          what is left of the lock: see Guard.MaxRetryAfter
//	503     ErrUnavailable, ErrClosed, ErrLost    1 s
//	503     a context that has ended              1 s
//	409     asynq's ErrTaskIDConflict             none
//	409     asynq's ErrDuplicateTask              none
//	400     ErrInvalid about an invalid key       none
//	400     ErrInvalid of the claim function      none
//	500     any other                             none
//
// An error that matches both ErrHeld and asynq's ErrTaskIDConflict gives a 409: the request's own job exists, and a
// second try would find it again.
//
// The table holds for errors of the Locker and of the claim function, so a claim function can refuse with an error of
// joblock. Other errors are, for example, a Claim that names no key or has a field out of bounds, a value in the store
// that is not a lock, and a nil argument of Middleware.
//
// As JSON a Refusal is what a client may see, the object {"message","code"}, so any framework can answer with Status,
// RetryAfter and the Refusal itself as the body.
//
// A *Refusal is an error, which Guard.Do returns. Its text is Message, so it is harmless in an answer too. It wraps Err,
// so errors.Is finds joblock.ErrHeld and the like.
type Refusal struct {
	Status int `json:"-"` // of the answer; a status below 200 or above 999 is sent as 500
	// Message is for the client: one sentence for each code. It contains no error text, which may name the key, the holder
	// and the job.
	Message string `json:"message"`
	Code    string `json:"code"` // of the error; TASK_EXISTS with 409, and LOCK_CLAIM_FAILED with 500
	// RetryAfter is when to try again, in whole seconds; 0 for no advice.
	RetryAfter time.Duration `json:"-"`
	Err        error         `json:"-"` // the error itself, with all its details; not for the client
}

// Error returns Message: what a client may see, and neither the key nor the holder. For a log use Err.
func (f *Refusal) Error() string {
	if f == nil {
		return failedMessage
	}
	return cmp.Or(f.Message, failedMessage)
}

// Unwrap returns Err.
func (f *Refusal) Unwrap() error {
	if f == nil {
		return nil
	}
	return f.Err
}

// ServeHTTP writes the default answer: the status, Retry-After, and the JSON object {"message","code"}. It deletes
// headers that describe another body, such as Content-Encoding. The zero Refusal is a 500.
func (f Refusal) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	if f.Status < http.StatusOK || f.Status > 999 { // net/http would panic, or wait for another status
		f.Status = http.StatusInternalServerError
	}
	f.Code = cmp.Or(f.Code, codeClaimFailed)
	f.Message = cmp.Or(f.Message, failedMessage)
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
	_ = json.NewEncoder(w).Encode(f) // a client that is gone needs no answer
}

// Refuse answers a request whose handler got err from Guard.Do, Enqueue or a Locker. The answer is the one that a
// Middleware gives for err; see Refusal. Behind a Middleware or a Guard the fields of the Guard apply (OnRefusal,
// MaxRetryAfter, Logger). Elsewhere the defaults apply; to apply a Guard's fields there, use Guard.Refuse.
//
// Refuse reveals neither the key nor its holder to the client, unlike http.Error with the text of err. An error that is
// neither about a lock nor about a task that exists is answered with 500, and so is a nil err: handle both before
// Refuse.
func Refuse(w http.ResponseWriter, r *http.Request, err error) {
	guardFrom(r.Context()).Refuse(w, r, err)
}

// RefusalOf returns the answer that Refuse gives for err, for handlers without an http.ResponseWriter. If err is or
// wraps a *Refusal, it returns that one. ctx is the context of the request. RefusalOf logs what Refuse logs.
func RefusalOf(ctx context.Context, err error) *Refusal { return guardFrom(ctx).refusalOf(ctx, err) }

// blameKey is blame for the key that err names.
func blameKey(err error) error {
	var e *joblock.Error
	if errors.As(err, &e) {
		return blame(err, e.Key)
	}
	return err
}

// answers has the answers to errors of joblock. The first row whose sentinel matches counts.
var answers = []struct {
	sentinel error
	status   int
	message  string
}{
	{joblock.ErrHeld, http.StatusTooManyRequests, "the lock is held by another request or job"},
	{joblock.ErrBusy, http.StatusTooManyRequests, "the lock is held by another request or job"},
	{joblock.ErrTimeout, http.StatusTooManyRequests, "the lock did not become free in time"},
	{joblock.ErrUnavailable, http.StatusServiceUnavailable, "locks are unavailable at the moment"},
	{joblock.ErrClosed, http.StatusServiceUnavailable, "locks are unavailable at the moment"},
	{joblock.ErrLost, http.StatusServiceUnavailable, "the request has lost its lock"},
	{joblock.ErrInvalid, http.StatusBadRequest, "the request names no valid lock"},
}

// newRefusal makes the answer to err, an error of the claim function, the Locker or a handler. ctx is the request's.
func newRefusal(ctx context.Context, err error, maxRetryAfter time.Duration) Refusal {
	f := Refusal{Status: http.StatusInternalServerError, Code: codeClaimFailed, Message: failedMessage, Err: err}
	var e *joblock.Error
	var ours *claimError
	switch {
	case errors.Is(err, asynq.ErrTaskIDConflict), errors.Is(err, asynq.ErrDuplicateTask):
		f.Status, f.Code, f.Message = http.StatusConflict, codeTaskExists, taskExistsMessage
	case errors.As(err, &ours):
	case errors.As(err, &e):
		for _, a := range answers {
			if errors.Is(e, a.sentinel) {
				f.Status, f.Code, f.Message = a.status, e.Code, a.message
				break
			}
		}
	case over(ctx, err):
		// The client has disconnected, or the server shuts down. 503 rather than nginx's 499, which is no standard. Returning
		// without an answer would be a 200.
		f.Status, f.Code = http.StatusServiceUnavailable, joblock.CodeOf(joblock.ErrTimeout)
		f.Message = "the request ended before it could be served"
	}
	switch f.Status {
	case http.StatusTooManyRequests:
		f.RetryAfter = time.Duration(wholeSeconds(min(envelope.ComeBack(e.Job, e.Remaining), maxRetryAfter))) * time.Second
	case http.StatusServiceUnavailable:
		f.RetryAfter = time.Second
	}
	return f
}

// over reports whether err says that a context has ended: ctx, or a context that the handler has derived
// from ctx. An EnqueueMany that has ended early counts too.
func over(ctx context.Context, err error) bool {
	cause := context.Cause(ctx)
	return cause != nil && errors.Is(err, cause) || errors.Is(err, ErrNotSent) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// wholeSeconds rounds d up to whole seconds, at least 1.
func wholeSeconds(d time.Duration) int64 { return max(1, int64(math.Ceil(d.Seconds()))) }
