package server

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/scheduler"
)

// What a caller may not do is neither offered nor done.
func TestRightsOnThePages(t *testing.T) {
	actions := map[string]func(s *stage) []string{
		"force-release":  func(s *stage) []string { return []string{"key", heldKey, "fence", s.fence(heldKey), "typed", heldKey} },
		"free-if-idle":   func(s *stage) []string { return []string{"key", jobKey, "fence", s.fence(jobKey)} },
		"run-task":       func(s *stage) []string { return []string{"job", s.job} },
		"delete-task":    func(s *stage) []string { return []string{"job", s.job} },
		"cron-pause":     func(s *stage) []string { return []string{"scope", "shop", "name", cronName} },
		"cron-trigger":   func(s *stage) []string { return []string{"scope", "shop", "name", cronName} },
		"cron-pause-all": func(s *stage) []string { return []string{"scope", "shop", "typed", "shop"} },
	}
	order := []string{"run-task", "delete-task", "force-release", "cron-pause", "cron-trigger", "cron-pause-all", "free-if-idle"} // with the lock goes the right to steer its job
	cron := []string{"cron-pause", "cron-trigger", "cron-pause-all"}
	for name, tc := range map[string]struct {
		who   Principal
		pages PagesConfig
		may   func(do string) bool
		looks int // the status of the overview
	}{
		"nothing":    {Principal{ID: "x", Scopes: ScopeLock, AllKeys: true, AllQueues: true}, PagesConfig{}, func(string) bool { return false }, 403},
		"reader":     {Principal{ID: "x", Scopes: ScopeRead, AllKeys: true, AllQueues: true}, PagesConfig{}, func(string) bool { return false }, 200},
		"operator":   {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, AllKeys: true, AllQueues: true}, PagesConfig{}, func(do string) bool { return !slices.Contains(cron, do) }, 200},
		"cron":       {Principal{ID: "x", Scopes: ScopeRead | ScopeCron, AllKeys: true, AllQueues: true}, PagesConfig{}, func(do string) bool { return slices.Contains(cron, do) }, 200},
		"admin":      {Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{}, func(string) bool { return true }, 200},
		"read-only":  {Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{ReadOnly: true}, func(string) bool { return false }, 200},
		"other keys": {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"import:"}, AllQueues: true}, PagesConfig{}, func(string) bool { return false }, 200},
		"own keys":   {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"export:"}, AllQueues: true}, PagesConfig{}, func(do string) bool { return !slices.Contains(cron, do) }, 200},
		"queues":     {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Queues: []string{"mail"}, AllKeys: true}, PagesConfig{}, func(do string) bool { return do == "force-release" || do == "free-if-idle" }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			authorize := func(cfg *Config) {
				cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return tc.who, nil })
			}
			staged(t, tc.pages, authorize, func(s *stage) {
				s.open("").has(tc.looks)
				if tc.looks != http.StatusOK {
					s.open("locks").has(403)
					return
				}
				audit := http.StatusForbidden
				if tc.who.Scopes&ScopeAdmin != 0 {
					audit = http.StatusOK
				}
				s.open("audit").has(audit)
				sees := tc.who.mayUse(heldKey)
				locks := s.open("locks").has(200)
				if strings.Contains(locks.whole(), heldKey) != sees {
					t.Errorf("sees the key: %t", !sees)
				}
				for _, path := range []string{s.lockPage(heldKey), "act?do=force-release&key=" + url.QueryEscape(heldKey)} {
					page := s.open(path)
					if offers := strings.Contains(page.text, `do=force-release`) || strings.Contains(page.text, `value="force-release"`); offers != tc.may("force-release") {
						t.Errorf("%s offers to force: %t", path, offers)
					}
				}
				seesJob := 200
				if !tc.who.mayEnqueueIn("default") {
					seesJob = 403
				}
				job := s.open("job?job=" + url.QueryEscape(s.job)).has(seesJob)
				if jobs := s.open("jobs").has(200); strings.Contains(jobs.whole(), s.job) != (sees && seesJob == 200) {
					t.Errorf("sees the job in the list: %t", seesJob != 200)
				}
				if !sees && strings.Contains(job.words(), "no disk") {
					t.Error("the job of another caller's key is shown")
				}
				for _, do := range order {
					page := s.submit("act", append(actions[do](s), "do", do, "reason", "x")...)
					if tc.may(do) != (page.status == http.StatusSeeOther || page.status == http.StatusConflict) || !tc.may(do) && page.status != http.StatusForbidden {
						t.Errorf("%s: %d %s", do, page.status, page.words())
					}
				}
				bulk := s.open("bulk?prefix=export:")
				if (bulk.status == 200) != (tc.may("free-if-idle")) && name != "other keys" {
					t.Errorf("bulk: %d", bulk.status)
				}
				forged := s.submit("bulk", "query", "prefix=export:", "k", heldKey, "f", s.fence(heldKey), "s", "held", "live", "1", "typed", "1 live", "reason", "x")
				if tc.may("free-if-idle") != (forged.status == 200) {
					t.Errorf("bulk: %d %s", forged.status, forged.words())
				}
			})
		})
	}
}

// Pages and API have one rule for tasks: what the task carries by a genuine header must be the caller's. A lock that is
// bound to the task, as its holder binds it, gives no right over the task, and takes none away.
func TestPagesSteerOnlyTasksThatCarryTheCallersLocks(t *testing.T) {
	who := Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"export:"}, AllQueues: true}
	authorize := func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
	}
	staged(t, PagesConfig{}, authorize, func(s *stage) {
		l, err := s.locks.TryAcquire(s.Context(), "secret:payroll")
		testkit.WantNil(t, "TryAcquire", err)
		bound := "default/of-another-lock"
		_, err = l.Park(s.Context(), joblock.ForJob(bound), joblock.Reserve(time.Hour))
		testkit.WantNil(t, "Park", err)
		for job, c := range map[string]struct {
			headers map[string]string
			own     bool
		}{
			s.job:                    {nil, false}, // which the caller's lock is bound to
			"default/foreign":        {s.carry("default/foreign", "secret:payroll"), false},
			"default/both":           {s.carry("default/both", jobKey, "secret:payroll"), false},
			"default/of-another-job": {s.carry(s.job, jobKey), false},
			"default/forged":         {map[string]string{envelope.Header: s.carry("default/forged", jobKey)[envelope.Header] + "x"}, false},
			"default/own":            {s.carry("default/own", jobKey), true},
			bound:                    {s.carry(bound, jobKey), true},
		} {
			queue, id, _ := strings.Cut(job, "/")
			put := func() {
				s.tasks.put(job, asynq.TaskInfo{ID: id, Queue: queue, Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1, LastErr: "a secret", Headers: c.headers})
			}
			put()
			if p := s.open("job?job=" + url.QueryEscape(job)); !c.own && job != "default/both" && strings.Contains(p.text, "a secret") {
				t.Errorf("%s: the page of the job shows the task", job)
			}
			left := s.tasks.count()
			api, page, gone := http.StatusForbidden, http.StatusForbidden, 0
			if c.own {
				api, page, gone = http.StatusOK, http.StatusSeeOther, 1
			}
			if r := s.do(http.MethodPost, "/v1/jobs/default/"+id+"/drop", map[string]any{"reason": "x"}, with("If-Match", "*")); r.status != api || s.tasks.count() != left-gone {
				t.Errorf("%s: the API answers %d %s", job, r.status, r.text)
			}
			put()
			if p := s.submit("act", "do", "delete-task", "job", job, "reason", "x"); p.status != page || s.tasks.count() != left-gone {
				t.Errorf("%s: the page answers %d, %d tasks are left", job, p.status, s.tasks.count())
			}
		}
	})
}

// A page names a job as the API and the command line do: with %2F for a slash in the name of the queue, and %25 for a %.
func TestPagesSteerTasksOfEveryQueue(t *testing.T) {
	who := Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, AllKeys: true, Queues: []string{"a/b%c"}}
	authorize := func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
	}
	staged(t, PagesConfig{}, authorize, func(s *stage) {
		const job, other = "a%2Fb%25c/1", "a%2Fb%25/1"
		s.tasks.put("a/b%c/1", asynq.TaskInfo{ID: "1", Queue: "a/b%c", Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1})
		s.tasks.put("a/b%/1", asynq.TaskInfo{ID: "1", Queue: "a/b%", Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1})
		left := s.tasks.count()
		for _, bad := range []string{"a/b%c/1", "a%2fb%25c/1", "/1", "a%2Fb%25c/"} {
			if p := s.submit("act", "do", "delete-task", "job", bad, "reason", "x"); p.status != http.StatusBadRequest && p.status != http.StatusForbidden {
				t.Errorf("%s: %d %s", bad, p.status, p.words())
			}
		}
		s.submit("act", "do", "delete-task", "job", other, "reason", "x").has(http.StatusForbidden)
		s.open("job?" + url.Values{"job": {other}}.Encode()).has(http.StatusForbidden)
		s.open("job?"+url.Values{"job": {job}}.Encode()).has(http.StatusOK, "Delete the task")
		s.submit("act", "do", "run-task", "job", job, "reason", "x").has(http.StatusSeeOther)
		s.submit("act", "do", "delete-task", "job", job, "reason", "x").has(http.StatusSeeOther)
		if n := s.tasks.count(); n != left-1 {
			t.Errorf("%d tasks are left of %d", n, left)
		}
	})
}

// The API and the pages show a caller no task in a queue that is not its own, and the doctor tells a caller with prefixes of
// its own keys only. What the pages have read for others before makes no difference.
func TestNothingOfOthersIsShown(t *testing.T) {
	var who Principal
	authorize := func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
	}
	staged(t, PagesConfig{}, authorize, func(s *stage) {
		j, err := journal.New(s.s.cfg.Redis, nil)
		testkit.WantNil(t, "journal.New", err)
		for range 3 {
			j.Observe(event.Event{Kind: event.Lost, Key: heldKey, Holder: "web1:71", Fence: 7, Err: joblock.ErrLost})
			j.Observe(event.Event{Kind: event.Lost, Key: "secret:payroll", Holder: "web9:99", Fence: 7, Err: errors.New("payroll is broken")})
			j.ObserveCron("shop")(scheduler.Event{Kind: scheduler.Failed, Tick: scheduler.Tick{Name: "wages", At: time.Now()}, Err: errors.New("no money")})
		}
		testkit.WantNil(t, "Close", j.Close(s.Context()))
		for _, key := range []string{"export:paused", "secret:paused"} {
			_, err := s.s.desk.As("root", "").Act(s.Context(), ops.PauseKey{Key: key, Reason: key[:7] + "why"})
			testkit.WantNil(t, "PauseKey", err)
		}
		relays, err := (*core.Locker)(s.locks).TryAcquire(s.Context(), keyspace.Outboxes, core.Options{OwnKey: true, Memo: true})
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "WriteMemo", relays.WriteMemo(s.Context(), workerstats.Relays{"orders": {At: time.Now(), Began: time.Now(), LastError: "secret:refused", FailedAt: time.Now()}}.Encode()))
		testkit.WantNil(t, "Release", relays.Release(s.Context(), core.Release{}))
		all := Principal{ID: "all", Scopes: ScopeRead, AllKeys: true, AllQueues: true}
		keys := Principal{ID: "keys", Scopes: ScopeRead, Prefixes: []string{"export:", "shop"}, AllQueues: true}
		queues := Principal{ID: "queues", Scopes: ScopeRead, AllKeys: true, Queues: []string{"mine"}}
		jobPath := "/v1/locks/" + url.QueryEscape(jobKey)
		task, foreign := []string{"no disk", "retry"}, []string{"secret:payroll", "web9", "payroll is broken", "wages", "no money", cronName}
		for _, c := range []struct {
			who         Principal
			path        string
			has, hasNot []string
		}{
			{all, jobPath, task, nil}, {all, jobPath + "/explain", task, nil}, {all, "lock?key=" + jobKey, task[:1], nil},
			{queues, jobPath, nil, task}, {queues, jobPath + "/explain", nil, task}, {queues, "lock?key=" + jobKey, nil, task},
			{keys, jobPath, task, nil},
			{all, "/v1/doctor", []string{heldKey, "secret:payroll"}, nil}, {all, "doctor", []string{heldKey, "secret:payroll"}, nil}, {all, "", nil, nil},
			{keys, "/v1/doctor", []string{heldKey}, foreign}, {keys, "doctor", []string{heldKey}, foreign}, {keys, "", nil, foreign[:3]},
			{all, "limits", []string{"export%3apaused", "secret%3apaused", "secret:why"}, nil}, {all, "nodes", []string{"orders", "secret:refused"}, nil},
			{keys, "limits", []string{"export%3apaused"}, []string{"secret"}}, {keys, "nodes", []string{"orders"}, []string{"secret:"}},
			{keys, "/v1/controls", []string{"export:paused"}, []string{"secret:"}}, {keys, "/v1/outboxes", []string{"orders"}, []string{"secret:"}},
		} {
			who = c.who
			var text string
			if strings.HasPrefix(c.path, "/") {
				text = string(s.get(c.path).text)
			} else {
				s.open(c.path)
				time.Sleep(5 * time.Second)
				text = s.open(c.path).text
			}
			for _, want := range c.has {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %q does not have %q: %s", c.who.ID, c.path, want, text)
				}
			}
			for _, never := range c.hasNot {
				if strings.Contains(text, never) {
					t.Errorf("%s: %q has %q: %s", c.who.ID, c.path, never, text)
				}
			}
		}
	})
}
