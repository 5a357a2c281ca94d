package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/server/client"
)

// wantIs fails the test unless err matches the sentinel.
func wantIs(t *testing.T, what string, err, sentinel error) {
	t.Helper()
	var p *client.Problem
	if !errors.Is(err, sentinel) || !errors.As(err, &p) {
		t.Errorf("%s: %v, want a Problem that matches %v", what, err, sentinel)
	}
}

// A lock by token, through its life, and the error of each call that does not fit.
func TestByToken(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		ctx := t.Context()
		g, err := c.Acquire(ctx, client.AcquireRequest{Key: key, TTL: 10 * time.Second, Holder: "me"})
		testkit.WantNil(t, "Acquire", err)
		if st := n.status(); st.State != joblock.StateHeld || st.Fence != g.Fence || st.Holder != "me" || g.TTL != 10*time.Second || g.Key != key {
			t.Errorf("%+v, %+v", g, st)
		}
		_, err = c.Acquire(ctx, client.AcquireRequest{Key: key})
		wantIs(t, "a second Acquire", err, joblock.ErrHeld)
		var p *client.Problem
		if errors.As(err, &p); p.Status != 409 || p.Holder != "me" || p.Remaining <= 0 || p.RetryAfter <= 0 || !p.Retryable || p.Request == "" {
			t.Errorf("%+v", p)
		}
		_, err = c.Acquire(ctx, client.AcquireRequest{Key: key, MaxWait: -time.Hour})
		testkit.WantErr(t, err, joblock.ErrInvalid)
		_, err = c.Acquire(ctx, client.AcquireRequest{Key: key, MaxWait: 2 * time.Second})
		wantIs(t, "a wait", err, joblock.ErrTimeout)
		_, err = c.Acquire(ctx, client.AcquireRequest{Key: ""})
		wantIs(t, "no key", err, joblock.ErrInvalid)

		time.Sleep(time.Second)
		renewed, err := c.Renew(ctx, client.RenewRequest{Token: g.Token})
		testkit.WantNil(t, "Renew", err)
		if !renewed.ExpiresAt.After(g.ExpiresAt) || renewed.Fence != g.Fence {
			t.Errorf("%+v after %+v", renewed, g)
		}
		parked, err := c.Park(ctx, client.ParkRequest{Token: g.Token, Reserve: time.Minute})
		testkit.WantNil(t, "Park", err)
		_, err = c.Renew(ctx, client.RenewRequest{Token: g.Token})
		wantIs(t, "Renew with the old token", err, joblock.ErrNotOwner)
		back, err := c.Resume(ctx, client.ResumeRequest{Token: parked, TTL: 5 * time.Second})
		testkit.WantNil(t, "Resume", err)
		if back.Fence <= g.Fence {
			t.Errorf("%+v after %+v", back, g)
		}
		_, err = c.Resume(ctx, client.ResumeRequest{Token: parked})
		wantIs(t, "Resume of a lock that runs", err, joblock.ErrBusy)
		testkit.WantNil(t, "Release", c.Release(ctx, back.Token, "done"))
		testkit.WantNil(t, "Release again", c.Release(ctx, back.Token, "done"))
		_, err = c.Renew(ctx, client.RenewRequest{Token: back.Token})
		wantIs(t, "Renew after Release", err, joblock.ErrAlreadyReleased)

		short, err := c.Acquire(ctx, client.AcquireRequest{Key: key, TTL: time.Second})
		testkit.WantNil(t, "Acquire", err)
		time.Sleep(2 * time.Second)
		_, err = c.Renew(ctx, client.RenewRequest{Token: short.Token})
		wantIs(t, "Renew too late", err, joblock.ErrLost)
		wantIs(t, "Release too late", c.Release(ctx, short.Token, ""), joblock.ErrLost)
	})
}

// An answer that is late grants no time: what the caller relies on has ended before the lease has.
func TestUntilIsBeforeTheEndOfTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		for _, late := range []time.Duration{0, time.Second, 3 * time.Second} {
			n.answers(func(*http.Request, *http.Response) error { time.Sleep(late); return nil })
			began := time.Now()
			g, err := c.Acquire(t.Context(), client.AcquireRequest{Key: fmt.Sprint(late), TTL: 10 * time.Second})
			testkit.WantNil(t, "Acquire", err)
			if d := g.ExpiresAt.Sub(began); d > 10*time.Second || d < 9*time.Second {
				t.Errorf("an answer that comes after %s: the lock is trusted for %s from the sending on", late, d)
			}
		}
		// A wait is time too: the lease begins at its end.
		n.answers(nil)
		_, err := c.Acquire(t.Context(), client.AcquireRequest{Key: key, TTL: 5 * time.Second})
		testkit.WantNil(t, "Acquire", err)
		g, err := c.Acquire(t.Context(), client.AcquireRequest{Key: key, TTL: 10 * time.Second, MaxWait: 30 * time.Second})
		testkit.WantNil(t, "Acquire", err)
		if st := n.status(); g.ExpiresAt.After(time.Now().Add(st.Lease)) || time.Until(g.ExpiresAt) < 9*time.Second {
			t.Errorf("trusted for %s, the lease lasts %s", time.Until(g.ExpiresAt), st.Lease)
		}
	})
}

var errCut = errors.New("the connection is cut")

// A lost answer is asked for again, and what took effect took effect once. What must not happen twice is not repeated.
func TestLostAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		ctx := t.Context()
		once := func() {
			lost := false
			n.answers(func(*http.Request, *http.Response) error {
				if !lost {
					lost = true
					return errCut
				}
				return nil
			})
		}
		names := func(want int) []string {
			t.Helper()
			sent := n.requests()
			if len(sent) != want {
				t.Fatalf("%d requests, want %d: %q", len(sent), want, sent)
			}
			return sent
		}
		once()
		g, err := c.Acquire(ctx, client.AcquireRequest{Key: key})
		testkit.WantNil(t, "Acquire", err)
		if two := names(2); strings.TrimPrefix(two[0], "a ") != strings.TrimPrefix(two[1], "b ") || n.status().Fence != g.Fence {
			t.Errorf("%q; %+v, %+v", two, g, n.status())
		}
		once()
		_, err = c.Renew(ctx, client.RenewRequest{Token: g.Token})
		testkit.WantNil(t, "Renew", err)
		names(2)
		once()
		parked, err := c.Park(ctx, client.ParkRequest{Token: g.Token})
		testkit.WantNil(t, "Park", err)
		once()
		g, err = c.Resume(ctx, client.ResumeRequest{Token: parked})
		testkit.WantNil(t, "Resume", err)
		names(2)
		once()
		_, err = c.Lock(ctx, key)
		testkit.WantNil(t, "Lock", err)
		once()
		_, err = c.Act(ctx, client.ForceRelease{Key: key, Fence: g.Fence, Reason: "test"})
		wantIs(t, "Force", err, joblock.ErrUnavailable)
		names(1)
		once()
		_, err = c.Acquire(ctx, client.AcquireRequest{Key: "limited", Limit: 2})
		wantIs(t, "Acquire with a Limit", err, joblock.ErrUnavailable)
		names(1)
		once()
		testkit.WantNil(t, "Release", c.Release(ctx, g.Token, ""))
		names(2)
		if st := n.status(); st.State != joblock.StateFree {
			t.Errorf("%+v", st)
		}
	})
}

// A replica that is down, closing, or cut off from the store is passed over, and the next call goes to the one that
// answered.
func TestOtherReplica(t *testing.T) {
	for name, fail := range map[string]func(n *network){
		"down":    func(n *network) { n.down("a") },
		"closing": func(n *network) { testkit.WantNil(n, "Close", n.replicas["a"].s.Close(n.Context())) },
		"no store": func(n *network) {
			n.replicas["a"].store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Acquire)
		},
		"silent": func(n *network) {
			n.answers(func(r *http.Request, _ *http.Response) error {
				if r.Host == "a" {
					<-r.Context().Done()
					return r.Context().Err()
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, n *network, c *client.Client) {
				n.answers(nil)
				fail(n)
				_, err := c.Acquire(t.Context(), client.AcquireRequest{Key: key, MaxWait: 3 * time.Second})
				testkit.WantNil(t, "Acquire", err)
				_, err = c.Acquire(t.Context(), client.AcquireRequest{Key: "second"})
				testkit.WantNil(t, "Acquire", err)
				if sent := n.requests(); len(sent) != 3 || !strings.HasPrefix(sent[2], "b ") {
					t.Errorf("%q", sent)
				}
			})
		})
	}
}

func TestNoServerAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		n.down("a")
		n.down("b")
		_, err := c.Acquire(t.Context(), client.AcquireRequest{Key: key})
		wantIs(t, "Acquire", err, joblock.ErrUnavailable)
		_, err = c.Hold(t.Context(), client.HoldRequest{Key: key})
		wantIs(t, "Hold", err, joblock.ErrUnavailable)
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		if _, err = c.Acquire(ctx, client.AcquireRequest{Key: key}); !errors.Is(err, why) {
			t.Error(err)
		}
	})
}

// What the Client returns is all that the server has sent: encoded again, it is the same.
func TestObjectsLoseNothing(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		ctx := t.Context()
		g, err := c.Acquire(ctx, client.AcquireRequest{Key: key, TTL: time.Minute})
		testkit.WantNil(t, "Acquire", err)
		_, err = c.Acquire(ctx, client.AcquireRequest{Key: "geocoder", Limit: 2})
		testkit.WantNil(t, "Acquire", err)
		_, err = c.Park(ctx, client.ParkRequest{Token: g.Token, Job: "default/1"})
		testkit.WantNil(t, "Park", err)
		waits, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = c.Hold(waits, client.HoldRequest{Key: key, WaitForever: true})
		}()
		time.Sleep(time.Second)
		var text []byte
		n.answers(func(_ *http.Request, res *http.Response) error {
			var err error
			text, err = io.ReadAll(res.Body)
			res.Body = io.NopCloser(strings.NewReader(string(text)))
			return err
		})
		same := func(what string, got any, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			again, err := json.Marshal(got)
			testkit.WantNil(t, what, err)
			var a, b any
			_ = json.Unmarshal(text, &a)
			_ = json.Unmarshal(again, &b)
			if items, ok := b.([]any); ok { // what the client returns one by one, of several pages
				a, b = a.(map[string]any)["items"], items
			}
			if fmt.Sprint(a) != fmt.Sprint(b) || len(again) < 3 {
				t.Errorf("%s: sent %s, got %s", what, text, again)
			}
		}
		lock, err := c.Lock(ctx, key)
		same("Lock", lock, err)
		explanation, err := c.Explain(ctx, key)
		same("Explain", explanation, err)
		permits, err := c.Permits(ctx, "geocoder", 2)
		same("Permits", permits, err)
		statuses, err := c.Statuses(ctx, key, "other")
		same("Statuses", statuses, err)
		var locks []client.Lock
		for l, err := range c.Locks(ctx, client.LocksQuery{States: []joblock.State{joblock.StateParked}}) {
			testkit.WantNil(t, "Locks", err)
			locks = append(locks, l)
		}
		same("Locks", locks, nil)
		var line []client.Waiter
		for w, err := range c.Waiters(ctx, key) {
			testkit.WantNil(t, "Waiters", err)
			line = append(line, w)
		}
		same("Waiters", line, nil)
		var jobs []client.Job
		for j, err := range c.Jobs(ctx, client.JobsQuery{}) {
			testkit.WantNil(t, "Jobs", err)
			jobs = append(jobs, j)
		}
		same("Jobs", jobs, nil)
		keeper, err := c.Keeper(ctx)
		same("Keeper", keeper, err)
		boxes, err := c.Outboxes(ctx)
		same("Outboxes", boxes, err)
		plan, err := c.CronPreview(ctx, client.CronPreviewQuery{Spec: "30 2 * * *", Zone: "Europe/Berlin", N: 3})
		same("CronPreview", plan, err)
		checkup, err := c.Doctor(ctx)
		same("Checkup", checkup, err)
		me, err := c.Me(ctx)
		if err != nil || me.ID != "anyone" || !slices.Equal(me.Scopes, []string{"admin"}) || !me.AllKeys || !me.AllQueues {
			t.Errorf("%+v, %v", me, err)
		}
		of, task, err := c.Job(ctx, "default/1")
		if err != nil || len(of) != 1 || of[0].Key != key || task.State != "unknown" {
			t.Errorf("%+v, %+v, %v", of, task, err)
		}
		for _, err := range c.Audit(ctx, client.AuditQuery{Key: key, Since: time.Now()}) {
			t.Error(err)
		}
		_, err = c.Act(ctx, client.ForceRelease{Key: key, Fence: lock.Fence, Reason: "test"})
		wantIs(t, "an action without an audit", err, client.ErrNotRecorded)
		if _, err = c.CronJobs(ctx, "none"); err == nil {
			t.Error("a scope that the server does not have")
		}
		cancel()
		<-ended
	})
}

func TestConfig(t *testing.T) {
	token := func(context.Context) (string, error) { return "x", nil }
	for says, cfg := range map[string]client.Config{
		"URLs is empty":  {},
		"a URL is bad":   {URLs: []string{"localhost:7420"}},
		"without a user": {URLs: []string{"https://u:secret@h"}},
		"in the clear":   {URLs: []string{"http://locks.internal"}, Token: token},
		"Timeout":        {URLs: []string{"https://h"}, Timeout: -1},
		"set together":   {URLs: []string{"https://h"}, CertFile: "cert"},
		"the authorit":   {URLs: []string{"https://h"}, CAFile: "/none"},
		"need a URL":     {URLs: []string{"http://h"}, CAFile: "/none"},
	} {
		if _, err := client.New(cfg); !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%+v: %v, want %q", cfg.URLs, err, says)
		}
	}
	if _, err := client.New(client.Config{URLs: []string{"https://h"}, CAFile: "/none"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	for _, cfg := range []client.Config{
		{URLs: []string{"http://127.0.0.1:1", "http://[::1]:2"}, Token: token}, {URLs: []string{"http://h"}, Token: token, Insecure: true},
	} {
		if _, err := client.New(cfg); err != nil {
			t.Error(err)
		}
	}
}

// The token is that of the file, also after the file has changed, and goes nowhere else.
func TestTokenFromFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	from := client.FromFile(file)
	if _, err := from(t.Context()); err == nil {
		t.Error("no file, and no error")
	}
	for i, text := range []string{"jl_a_first\n", "jl_a_second-one\r\n"} {
		testkit.WantNil(t, "WriteFile", os.WriteFile(file, []byte(text), 0o600))
		testkit.WantNil(t, "Chtimes", os.Chtimes(file, time.Unix(int64(i), 0), time.Unix(int64(i), 0)))
		if got, err := from(t.Context()); err != nil || got != strings.TrimSpace(text) {
			t.Errorf("%q, %v", got, err)
		}
	}
	testkit.WantNil(t, "WriteFile", os.WriteFile(file, []byte("two words"), 0o600))
	if got, err := from(t.Context()); err == nil || strings.Contains(err.Error(), "words") {
		t.Errorf("%q, %v", got, err)
	}
	bubble(t, func(t *testing.T, n *network, _ *client.Client) {
		n.answers(nil)
		c := n.client(func(cfg *client.Config) {
			cfg.Insecure = true
			cfg.Token = func(context.Context) (string, error) { return "t", nil }
		})
		_, err := c.Me(t.Context())
		testkit.WantNil(t, "Me", err)
		if sent := n.requests(); sent[0] != "a GET /v1/me Bearer t" {
			t.Errorf("%q", sent)
		}
	})
}

// The client recognizes answers that are not those of a lock server.
func TestOtherAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		n.answers(func(_ *http.Request, res *http.Response) error {
			res.StatusCode, res.Status = 404, "404 Not Found"
			res.Body = io.NopCloser(strings.NewReader("<html>"))
			return nil
		})
		_, err := c.Lock(t.Context(), key)
		var p *client.Problem
		if !errors.As(err, &p) || p.Status != 404 || p.Code != "" || errors.Is(err, joblock.ErrNotFound) || !strings.Contains(err.Error(), "does not come from a lock server") {
			t.Errorf("%v", err)
		}
	})
}

// A later server may have other states, and other ways in which a holding ends. They hide nothing else of an answer.
func TestNamesOfLaterServers(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		ctx := t.Context()
		answer := func(status int, text string) {
			n.answers(func(_ *http.Request, res *http.Response) error {
				res.StatusCode, res.Status = status, http.StatusText(status)
				res.Body = io.NopCloser(strings.NewReader(text))
				return nil
			})
		}
		answer(200, `{"items":[{"key":"a","state":"leased","ended":"moved","fence":3},{"key":"b","state":"held","fence":4}]}`)
		var got []string
		for l, err := range c.Locks(ctx, client.LocksQuery{}) {
			testkit.WantNil(t, "Locks", err)
			got = append(got, fmt.Sprint(l.Key, " ", l.State, " ", l.Ended, " ", l.Locked()))
		}
		if fmt.Sprint(got) != "[a unknown unknown true b held  true]" {
			t.Errorf("the locks are %q", got)
		}
		token, err := joblock.NewToken(key, "later", 9*time.Second)
		testkit.WantNil(t, "NewToken", err)
		text, err := token.MarshalText()
		testkit.WantNil(t, "MarshalText", err)
		answer(200, fmt.Sprintf(`{"key":%q,"token":%q,"fence":7,"ttl_ms":9000,"valid_ms":8000,"prior":"moved"}`, key, text))
		g, err := c.Acquire(ctx, client.AcquireRequest{Key: key})
		if err != nil || g.Fence != 7 || g.Prior == driver.EndedNone || g.Prior.String() != "unknown" {
			t.Errorf("Acquire: %+v, %v", g, err)
		}
		answer(409, `{"code":"LOCK_ALREADY_RELEASED","ended":"moved","reason":"to the other site"}`)
		_, err = c.Renew(ctx, client.RenewRequest{Token: token})
		if wantIs(t, "Renew", err, joblock.ErrAlreadyReleased); !strings.Contains(err.Error(), "unknown: to the other site") {
			t.Error(err)
		}
	})
}

// A request for all cron jobs says so, and no other action is about all.
func TestActionsOnAllCronJobs(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		ctx := t.Context()
		for _, act := range []client.Action{
			client.TriggerCron{Reason: "test"}, client.TriggerCron{Wait: true, Reason: "test"}, client.ForgetCron{}, client.StopBackfill{}, client.PauseCron{Reason: "test"}, client.ResumeCron{},
		} {
			if _, err := c.Act(ctx, act); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%#v: %v", act, err)
			}
		}
		_, err := c.CronJob(ctx, "", "")
		testkit.WantErr(t, err, joblock.ErrInvalid)
		_, err = c.CronNext(ctx, client.CronNextQuery{})
		testkit.WantErr(t, err, joblock.ErrInvalid)
		_, err = c.CronCount(ctx, client.CronRange{})
		testkit.WantErr(t, err, joblock.ErrInvalid)
		_, err = c.Act(ctx, client.BackfillCron{})
		testkit.WantErr(t, err, joblock.ErrInvalid)
		if sent := n.requests(); len(sent) > 0 {
			t.Errorf("sent were %q", sent)
		}
		_, _ = c.Act(ctx, client.PauseAllCron{Reason: "test"})
		_, _ = c.Act(ctx, client.ResumeCron{Name: "digest", Reason: "test"})
		if sent := fmt.Sprint(n.requests()); !strings.Contains(sent, "/v1/cron-pause") || !strings.Contains(sent, "/v1/cron/digest/resume") {
			t.Errorf("sent were %s", sent)
		}
	})
}

// An EnqueueRequest has all that a server takes, and a duration of less than a millisecond is not sent as none.
func TestEnqueueSendsAll(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		var sent map[string]any
		n.answers(func(r *http.Request, _ *http.Response) error {
			body, err := r.GetBody()
			if err == nil {
				err = json.NewDecoder(body).Decode(&sent)
			}
			return err
		})
		retries := 0
		_, _ = c.Enqueue(t.Context(), client.EnqueueRequest{ // this server enqueues nothing
			Key: key, Type: "report", Payload: json.RawMessage(`{"n":1}`), Bytes: []byte("x"), Queue: "low", TaskID: "7", MaxRetry: &retries,
			Timeout: time.Minute, Delay: time.Microsecond, Retention: 1500 * time.Microsecond, Until: client.UntilStarted, OnConflict: client.KeepLast,
			Cooldown: time.Second, Wait: time.Second, MaxWait: time.Minute, Leading: true,
			Sequence: true, Limit: 2, MaxWaiting: 3, OnFailure: client.Halt,
		})
		if sent["timeout_ms"] != 60_000.0 || sent["delay_ms"] != 1.0 || sent["retention_ms"] != 2.0 || sent["max_retry"] != 0.0 {
			t.Errorf("sent was %v", sent)
		}
		text, err := os.ReadFile("../openapi.json")
		testkit.WantNil(t, "ReadFile", err)
		var document struct {
			Components struct {
				Schemas map[string]struct {
					Properties map[string]struct{ Enum []string }
				}
			}
		}
		testkit.WantNil(t, "the document", json.Unmarshal(text, &document))
		takes := document.Components.Schemas["EnqueueRequest"].Properties
		if !slices.Equal(slices.Sorted(maps.Keys(sent)), slices.Sorted(maps.Keys(takes))) {
			t.Errorf("sent was %v, a server takes %v", sent, takes)
		}
		for name, words := range map[string][]string{
			"until":       {string(client.UntilDone), string(client.UntilStarted)},
			"on_conflict": {string(client.Reject), string(client.Skip), string(client.Replace), string(client.KeepLast), string(client.CancelInProgress)},
			"on_failure":  {string(client.GoOn), string(client.Halt)},
		} {
			if !slices.Equal(takes[name].Enum, words) {
				t.Errorf("%s: the client has %q, a server takes %q", name, words, takes[name].Enum)
			}
		}
	})
}

// What is about no lock matches the sentinel that the same call gives without a server.
func TestProblemsOfTasksAndCronJobs(t *testing.T) {
	sentinels := []error{client.ErrNotRecorded, client.ErrTaskExists, client.ErrTaskNotFound, client.ErrTaskState, client.ErrCronNotFound, client.ErrBackfilling,
		joblock.ErrNotFound, joblock.ErrBusy}
	for code, want := range map[string][]error{
		"ACTION_NOT_RECORDED": {client.ErrNotRecorded},
		"TASK_EXISTS":         {client.ErrTaskExists, asynq.ErrTaskIDConflict},
		"TASK_NOT_FOUND":      {client.ErrTaskNotFound, joblock.ErrNotFound},
		"TASK_STATE":          {client.ErrTaskState},
		"CRON_NOT_FOUND":      {client.ErrCronNotFound, joblock.ErrNotFound},
		"CRON_BACKFILLING":    {client.ErrBackfilling, admin.ErrBackfilling},
		"FORBIDDEN":           nil,
	} {
		err := fmt.Errorf("wrapped: %w", &client.Problem{Code: code, Title: "it"})
		for _, s := range append(sentinels, want...) {
			if got := errors.Is(err, s); got != slices.Contains(want, s) {
				t.Errorf("%s matches %v: %v", code, s, got)
			}
		}
		if text, err := os.ReadFile("../openapi.json"); err != nil || !strings.Contains(string(text), code) {
			t.Errorf("no server has the code %s: %v", code, err)
		}
	}
}

// What cannot be sent as it is is refused before it is sent: package json would make one key of two.
func TestBadTextsAreNotSent(t *testing.T) {
	bubble(t, func(t *testing.T, n *network, c *client.Client) {
		ctx, bad := t.Context(), "acct:\xfe"
		for what, call := range map[string]func() error{
			"Acquire":  func() error { _, err := c.Acquire(ctx, client.AcquireRequest{Key: bad}); return err },
			"Hold":     func() error { _, err := c.Hold(ctx, client.HoldRequest{Key: bad}); return err },
			"Enqueue":  func() error { _, err := c.Enqueue(ctx, client.EnqueueRequest{Key: "k", Type: bad}); return err },
			"Statuses": func() error { _, err := c.Statuses(ctx, "k", bad); return err },
			"ForceRelease": func() error {
				_, err := c.Act(ctx, client.ForceRelease{Key: "k", Fence: 1, Reason: bad})
				return err
			},
			"Payload": func() error {
				_, err := c.Enqueue(ctx, client.EnqueueRequest{Key: "k", Type: "t", Payload: []byte("no")})
				return err
			},
			"IdempotencyKey": func() error {
				_, err := c.Acquire(ctx, client.AcquireRequest{Key: "k", IdempotencyKey: "a\nb"})
				return err
			},
			"RunTask": func() error { _, err := c.Act(ctx, client.RunTask{Queue: "default"}); return err },
			"Job":     func() error { _, _, err := c.Job(ctx, "/id"); return err },
			"New":     func() error { _, err := client.New(client.Config{URLs: []string{"http://a?"}}); return err },
		} {
			if err := call(); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", what, err)
			}
		}
		if n.asked("a")+n.asked("b") != 0 {
			t.Errorf("%d requests were sent", n.asked("a")+n.asked("b"))
		}
		_, err := c.CronJob(ctx, "", "..") // reaches the route of cron jobs
		if wantIs(t, "CronJob", err, joblock.ErrInvalid); !strings.Contains(err.Error(), "scope") {
			t.Error(err)
		}
	})
}
