package server

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// A call that the store refused is not called one of unknown outcome, unless it was only a step of what was asked for.
func TestDetailOfAnUnavailableStore(t *testing.T) {
	unavailable := func(cause error) *joblock.Error {
		return &joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "acquire", Key: "k", Err: cause}
	}
	refused := unavailable(fmt.Errorf("OOM: %w", driver.ErrRefused))
	const unknown, nothing = "it is unknown whether the call took effect", "the store refused the call, and this attempt changed nothing"
	for name, c := range map[string]struct {
		method string
		err    error
		want   string
	}{
		"no answer":           {http.MethodPost, unavailable(errors.New("i/o timeout")), unknown},
		"no answer to a read": {http.MethodGet, unavailable(errors.New("i/o timeout")), "the store did not answer"},
		"refused":             {http.MethodPost, refused, nothing},
		"a refused read":      {http.MethodGet, refused, nothing},
		"a later step of it":  {http.MethodPost, fmt.Errorf("the task was enqueued, but: %w", refused), unknown},
	} {
		p := (&call{r: &http.Request{Method: c.method}}).problemOf(c.err)
		if p.Status != 503 || !p.Retryable || p.RetryAfter != time.Second || p.Detail != c.want {
			t.Errorf("%s: %+v", name, p)
		}
	}
}

// A client does not ask every minute for the lock of a job that needs days, and waits for the end of a cooldown.
func TestRetryAfterOfAHeldLock(t *testing.T) {
	for _, c := range []struct {
		job        string
		left, want time.Duration
	}{
		{"", time.Millisecond, time.Millisecond},
		{"", 20 * time.Second, 20 * time.Second},
		{"default/1", 30 * time.Minute, time.Minute},
		{"default/1", 20 * time.Hour, 20 * time.Minute},
		{"default/1", 20 * 24 * time.Hour, time.Hour},
		{envelope.Cooling("default/1"), 30 * time.Minute, 30 * time.Minute},
	} {
		p := (&call{}).problemOf(&joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Key: "k", Job: c.job, Remaining: c.left})
		if d := c.want - p.RetryAfter; d < 0 || d > time.Millisecond {
			t.Errorf("%q, %s left: Retry-After %s, want %s", c.job, c.left, p.RetryAfter, c.want)
		}
	}
}
