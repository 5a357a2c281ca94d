package joblock_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

var sentinels = map[string]error{
	"LOCK_ACQUISITION_FAILED": joblock.ErrHeld, "LOCK_TIMEOUT": joblock.ErrTimeout, "LOCK_NOT_FOUND": joblock.ErrNotFound,
	"LOCK_OWNERSHIP_MISMATCH": joblock.ErrNotOwner, "LOCK_ALREADY_RELEASED": joblock.ErrAlreadyReleased,
	"LOCK_BUSY": joblock.ErrBusy, "LOCK_LOST": joblock.ErrLost, "LOCK_UNAVAILABLE": joblock.ErrUnavailable,
	"LOCK_INVALID": joblock.ErrInvalid, "LOCK_CLOSED": joblock.ErrClosed,
}

func TestErrorsMatchTheirOwnSentinelOnly(t *testing.T) {
	retryable := map[string]bool{
		joblock.CodeOf(joblock.ErrHeld): true, joblock.CodeOf(joblock.ErrTimeout): true, joblock.CodeOf(joblock.ErrBusy): true, joblock.CodeOf(joblock.ErrUnavailable): true,
	}
	for code := range sentinels {
		err := fmt.Errorf("wrapped: %w", &joblock.Error{Code: code, Op: "acquire", Key: "key", Holder: "h"})
		for other, sentinel := range sentinels {
			if got := errors.Is(err, sentinel); got != (code == other) {
				t.Errorf("errors.Is(%s, %s) is %v", code, other, got)
			}
		}
		if joblock.CodeOf(err) != code {
			t.Errorf("CodeOf gives %q, want %q", joblock.CodeOf(err), code)
		}
		if joblock.Retryable(err) != retryable[code] {
			t.Errorf("Retryable(%s) is %v", code, !retryable[code])
		}
		// An error with details is no sentinel.
		if errors.Is(sentinels[code], &joblock.Error{Code: code, Key: "key"}) {
			t.Errorf("the sentinel %s matches an error with a key", code)
		}
	}
	for _, err := range []error{nil, context.Canceled, errors.New("x")} {
		if joblock.Retryable(err) || joblock.CodeOf(err) != "" {
			t.Errorf("%v is retryable or has a code", err)
		}
	}
}

func TestErrorTextIsOneLine(t *testing.T) {
	for _, c := range []struct {
		err  *joblock.Error
		want string
	}{
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrClosed)}, "joblock: locker is closed"},
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Op: "acquire", Key: "k", Holder: "web-1", Job: "mail/7", Remaining: 1500 * time.Millisecond},
			`joblock: acquire "k": held by another (web-1) for job mail/7, 1.5s left`},
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrAlreadyReleased), Op: "resume", Key: "k", Ended: driver.EndedForced, Reason: "deploy"},
			`joblock: resume "k": already released (forced: deploy)`},
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrLost), Op: "renew", Key: "k", Holder: "web-1", Remaining: time.Second},
			`joblock: renew "k": lock lost: held by another (web-1), 1s left`},
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrLost), Key: "k", Detail: "why"}, `joblock: "k": lock lost: why`},
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: "acquire", Key: "a\nb", Detail: "key is bad"},
			`joblock: acquire "a\nb": invalid: key is bad`},
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "renew", Err: errors.New("EOF")},
			"joblock: renew: store unavailable, outcome unknown: EOF"},
		{&joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "acquire", Key: "k", Err: errors.Join(context.Canceled, fmt.Errorf("OOM: %w", driver.ErrRefused))},
			"joblock: acquire \"k\": store unavailable, call refused: context canceled\nOOM: the server has refused the call"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	long := (&joblock.Error{Code: joblock.CodeOf(joblock.ErrHeld), Key: strings.Repeat("ž", 10000)}).Error()
	if len(long) > 200 {
		t.Errorf("a long key makes a message of %d bytes", len(long))
	}
	if cause := errors.New("x"); !errors.Is(&joblock.Error{Code: joblock.CodeOf(joblock.ErrLost), Err: cause}, cause) {
		t.Error("the cause is not unwrapped")
	}
}

func TestNamesOfStatesAndEnds(t *testing.T) {
	for want, got := range map[string]fmt.Stringer{
		"free": joblock.StateFree, "held": joblock.StateHeld, "parked": joblock.StateParked,
		"orphaned": joblock.StateOrphaned, "foreign": joblock.StateForeign, "unknown": joblock.State(99),
		"": driver.EndedNone, "released": driver.EndedReleased, "forced": driver.EndedForced, "lapsed": driver.EndedLapsed, "done": driver.EndedDone,
	} {
		if got.String() != want {
			t.Errorf("%#v is called %q, want %q", got, got, want)
		}
	}
}

// A name of a later version is neither free nor the end of nothing.
func TestNamesOfLaterVersions(t *testing.T) {
	var got struct {
		State joblock.State
		Ended driver.Ended
	}
	testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(`{"State":"leased","Ended":"moved"}`), &got))
	if got.State.String() != "unknown" || got.Ended.String() != "unknown" || (joblock.Status{State: got.State}).Locked() {
		t.Errorf("%v, %v", got.State, got.Ended)
	}
	for i := range 5 {
		state, ended := joblock.State(i), driver.Ended(i)
		text, err := json.Marshal(map[string]any{"State": state, "Ended": ended})
		testkit.WantNil(t, "Marshal", err)
		testkit.WantNil(t, "Unmarshal", json.Unmarshal(text, &got))
		if got.State != state || got.Ended != ended {
			t.Errorf("%s is read as %v, %v", text, got.State, got.Ended)
		}
	}
}

// An error says of what time is left: of the lease of a holder that runs, or of the reservation of a job.
func TestErrorSaysOfWhatTimeIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		says := func(want string) {
			t.Helper()
			_, err := k.peer().TryAcquire(t.Context(), "key")
			wantErr(t, err, joblock.ErrHeld)
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q in it", err, want)
			}
			if _, err = k.peer().Acquire(t.Context(), "key", joblock.MaxWait(time.Millisecond)); !errors.Is(err, joblock.ErrTimeout) || !strings.Contains(err.Error(), want[strings.Index(want, "left"):]) {
				t.Errorf("%v, want %q in it", err, want)
			}
		}
		lock := k.acquire("key", joblock.TTL(time.Minute))
		says("left of the lease")
		k.park(lock, joblock.ForJob("q/1"), joblock.Reserve(time.Hour))
		says("left of the reservation")
	})
}
