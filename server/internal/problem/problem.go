// Package problem has the errors of the lock server's routes: RFC 9457 objects, with a code that is stable.
package problem

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The codes that are not those of package joblock.
const (
	Request      = "REQUEST_INVALID"
	Auth         = "AUTH_REQUIRED"
	AuthDown     = "AUTH_UNAVAILABLE"
	Forbidden    = "FORBIDDEN"
	NoRoute      = "NOT_FOUND"
	Method       = "METHOD_NOT_ALLOWED"
	Accept       = "NOT_ACCEPTABLE"
	Slow         = "REQUEST_TIMEOUT"
	TaskExists   = "TASK_EXISTS"
	TooLarge     = "BODY_TOO_LARGE"
	MediaType    = "UNSUPPORTED_MEDIA_TYPE"
	Idempotency  = "IDEMPOTENCY_MISMATCH"
	Rate         = "RATE_LIMITED"
	Waits        = "TOO_MANY_WAITS"
	Locks        = "TOO_MANY_LOCKS"
	Internal     = "INTERNAL"
	Precondition = "PRECONDITION_REQUIRED"
	NoCron       = "CRON_NOT_FOUND"
	Backfilling  = "CRON_BACKFILLING"
	NoTask       = "TASK_NOT_FOUND"
	TaskState    = "TASK_STATE"
	NoJournal    = "JOURNAL_NOT_FOUND"
	NotRecorded  = "ACTION_NOT_RECORDED"
	Misdirected  = "HOST_UNKNOWN"
)

// The codes of package joblock that the server uses itself.
var (
	Invalid  = joblock.CodeOf(joblock.ErrInvalid)
	Closed   = joblock.CodeOf(joblock.ErrClosed)
	NotOwner = joblock.CodeOf(joblock.ErrNotOwner)
)

// Titles has the sentence for each code that is not one of package joblock.
var Titles = map[string]string{
	Request:      "The request cannot be read",
	Auth:         "The caller is not known",
	AuthDown:     "The rights of the caller cannot be looked up at the moment",
	Forbidden:    "The caller may not do this",
	NoRoute:      "There is nothing at this path",
	Method:       "The path has no such method",
	Accept:       "The answer has none of the accepted types",
	Slow:         "The body came too slowly",
	TaskExists:   "A task with this ID exists",
	TooLarge:     "The body is too large",
	MediaType:    "The body is not JSON",
	Idempotency:  "The Idempotency-Key came before, with other parameters",
	Rate:         "The caller sends too many requests",
	Waits:        "Too many requests wait for locks",
	Locks:        "The caller has too many locks",
	Internal:     "The server has a fault",
	NoCron:       "There is no such cron job",
	NoTask:       "There is no such task",
	TaskState:    "The state of the task is in the way",
	Backfilling:  "The cron job has a backfill that has not ended",
	NoJournal:    "There is no journal",
	Precondition: "The request must name the holding that it means",
	NotRecorded:  "The action cannot be recorded, and was not begun",
	Misdirected:  "The server is not reached under this name",
}

// Problem is an RFC 9457 answer, and an error.
type Problem struct {
	Type      string       `json:"type"`
	Title     string       `json:"title"`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty"`
	Instance  string       `json:"instance"`
	Code      string       `json:"code"`
	Retryable bool         `json:"retryable"`
	Key       string       `json:"key,omitempty"`
	Holder    string       `json:"holder,omitempty"`
	Job       string       `json:"job,omitempty"`
	Remaining int64        `json:"remaining_ms,omitempty"`
	Ended     driver.Ended `json:"ended,omitempty"`
	Reason    string       `json:"reason,omitempty"`

	RetryAfter time.Duration `json:"-"` // of the header Retry-After; 0 for none
}

// Error returns the code and the detail.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// New returns a Problem with the title of its code.
func New(status int, code, format string, args ...any) *Problem {
	return &Problem{Status: status, Code: code, Title: cmp.Or(Titles[code], "A value is bad"), Detail: fmt.Sprintf(format, args...)}
}

// Again marks p as retryable after d, and returns p.
func (p *Problem) Again(d time.Duration) *Problem {
	p.Retryable, p.RetryAfter = true, d
	return p
}

// Closing returns the Problem of a server that is closing.
func Closing() *Problem {
	p := &Problem{Status: http.StatusServiceUnavailable, Code: Closed, Title: "The server is closing", Detail: "another replica serves the same request"}
	return p.Again(time.Second)
}

// NotHolder returns the Problem of a request that does not name the present holding of the lock.
func NotHolder(detail string) *Problem {
	p := New(http.StatusConflict, NotOwner, "%s", detail)
	p.Title = "The token does not name the present holding of the lock"
	return p
}

// Shown returns a text of a client for a log or an error: short, and without control sequences for a terminal.
func Shown(text string) string {
	const most = 64
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	if !strings.ContainsFunc(text, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }) {
		return text
	}
	if quoted := strconv.Quote(text); !utf8.ValidString(text) || quoted != `"`+text+`"` {
		return quoted
	}
	return text
}
