package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
)

// audited has the actions recorded in a miniredis.
func audited(t *testing.T) (*miniredis.Miniredis, func(*Config)) {
	t.Helper()
	mini := redistest.Mini(t)
	rdb := redistest.MiniClient(t, mini)
	return mini, func(cfg *Config) { cfg.Redis = rdb }
}

func (a *replica) get(path string, change ...func(*http.Request)) *reply {
	a.Helper()
	return a.do(http.MethodGet, path, nil, change...)
}

func (o object) items() []object {
	list, _ := o["items"].([]any)
	out := make([]object, len(list))
	for i, item := range list {
		out[i] = item.(map[string]any)
	}
	return out
}

// Actions are recorded next to the locks, also if the locks are not at the default prefix.
func TestPrefixOfTheAudit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, c := range []struct {
			store  *redisstore.Config
			prefix string
			want   string
		}{
			{&redisstore.Config{Prefix: "shop:"}, "", "shop:%audit"},
			{&redisstore.Config{}, "", "joblock:%audit"},
			{&redisstore.Config{Prefix: "shop:"}, "ops:", "ops:%audit"},
			{nil, "", "joblock:%audit"},
		} {
			mini, record := audited(t)
			a := newReplica(t, store(), record, func(cfg *Config) {
				cfg.Prefix = c.prefix
				if c.store != nil {
					cfg.Store = testkit.Must(redisstore.New(cfg.Redis, c.store))
					t.Cleanup(func() { testkit.WantNil(t, "Close", cfg.Store.Close()) })
				}
			})
			_, err := a.locks.TryAcquire(t.Context(), key)
			testkit.WantNil(t, "TryAcquire", err)
			a.post("/v1/force-release", object{"key": key, "reason": "x"}, with("If-Match", fmt.Sprintf("%q", fmt.Sprint(a.status(key).Fence)))).ok()
			if got := mini.Keys(); !slices.Contains(got, c.want) {
				t.Errorf("%+v, Prefix %q: the keys are %q, want %s", c.store, c.prefix, got, c.want)
			}
		}
	})
}

// A lock is shown with its line, and its ETag says whether something has changed but the countdowns.
func TestShowALock(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		a := newReplica(t, peer())
		free := a.get("/v1/locks/" + url.PathEscape(key))
		if o := free.ok(); o.text("state") != "free" || free.header.Get("ETag") != `"0-free-0"` {
			t.Errorf("%v %v", o, free.header)
		}
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000, "holder": "python"}).ok().text("token")
		h := a.hold(object{"key": key, "holder": "in line"})
		h.until("waiting")
		r := a.get("/v1/lock?key=" + url.QueryEscape(key))
		o := r.ok()
		line, _ := o["line"].([]any)
		if o.text("holder") != "python" || o.number("waiters") != 1 || len(line) != 1 || line[0].(map[string]any)["holder"] != "in line" {
			t.Errorf("%s", r.text)
		}
		tag := r.header.Get("ETag")
		time.Sleep(time.Second)
		same := a.get("/v1/lock?key="+url.QueryEscape(key), with("If-None-Match", `"x", W/`+tag))
		if same.status != http.StatusNotModified || len(same.text) != 0 || same.header.Get("ETag") != tag {
			t.Errorf("%d %s %v", same.status, same.text, same.header)
		}
		h.leave()
		time.Sleep(time.Second)
		a.get("/v1/lock?key="+url.QueryEscape(key), with("If-None-Match", tag)).ok()
		if strings.Contains(string(r.text), token) {
			t.Errorf("the token is shown: %s", r.text)
		}
		e := a.get("/v1/explain?key=" + url.QueryEscape(key)).ok()
		if e["frees"].(map[string]any)["by"] != "holder" {
			t.Errorf("%v", e)
		}
		if l := a.get("/v1/locks/" + url.PathEscape(key) + "/line?limit=1").ok(); len(l.items()) != 0 {
			t.Errorf("%v", l)
		}
		a.post("/v1/acquire", object{"key": "geo", "limit": 3}).ok()
		if p := a.get("/v1/permits?key=geo").ok(); p.text("kind") != "limit" || p.number("taken") != 1 {
			t.Errorf("%v", p)
		}
		many := a.post("/v1/status", object{"keys": []string{key, "unused", "geo"}}).ok().items()
		if len(many) != 3 || many[0].text("state") != "held" || many[1].text("state") != "free" {
			t.Errorf("%v", many)
		}
		a.get("/v1/keeper").ok()
		a.get("/v1/doctor").ok()
	})
}

// A walk over locks comes in pages, and each lock comes in one of them.
func TestListLocksByPages(t *testing.T) {
	list := func(a *replica) {
		const most = 600
		for i := range most {
			a.post("/v1/acquire", object{"key": fmt.Sprint("export:", i), "ttl_ms": 3_600_000}).ok()
		}
		a.post("/v1/acquire", object{"key": "import:1"}).ok()
		seen, pages := make(map[string]bool), 0
		const path = "/v1/locks?prefix=export:&limit=100"
		for next := "start"; next != ""; pages++ {
			o := a.get(path + map[bool]string{false: "&cursor=" + next}[next == "start"]).ok()
			for _, l := range o.items() {
				seen[l.text("key")] = true
			}
			next = o.text("next")
		}
		if len(seen) != most || seen["import:1"] || pages < 2 {
			a.Errorf("%d locks on %d pages", len(seen), pages)
		}
		seen = make(map[string]bool)
		for next := "start"; next != ""; {
			o := a.get("/v1/locks?contains=ort:1&limit=1000" + map[bool]string{false: "&cursor=" + next}[next == "start"]).ok()
			for _, l := range o.items() {
				seen[l.text("key")] = true
			}
			next = o.text("next")
		}
		if len(seen) != 1+1+10+100 || !seen["export:1"] || !seen["import:1"] || !seen["export:199"] { // import:1, export:1, 10 to 19, 100 to 199
			a.Errorf("%d locks contain the text", len(seen))
		}
		a.get("/v1/locks?contains="+strings.Repeat("x", 513)).refused(http.StatusBadRequest, "LOCK_INVALID")
		if o := a.get("/v1/locks?state=parked,orphaned").ok(); len(o.items()) != 0 {
			a.Errorf("%v", o)
		}
	}
	t.Run("memstore", func(t *testing.T) { bubble(t, func(t *testing.T) { list(newReplica(t, store())) }) })
	t.Run("redis-server", func(t *testing.T) {
		server := redistest.Start(t)
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { _ = rdb.Close() })
		list(newReplica(t, testkit.Must(redisstore.New(rdb, nil))))
		redistest.Ran(t, server.Backend())
	})
}

// A caller with prefixes sees only keys that begin with one of them.
func TestPrefixesOfReaders(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
				who := Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, AllQueues: true}
				who.Prefixes, who.AllKeys = listed(r, "Prefixes")
				return who, nil
			})
		})
		for _, key := range []string{"a:1", "b:1"} {
			if _, err := a.locks.TryAcquire(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		one, two := with("Prefixes", "a:"), with("Prefixes", "a: b:")
		if items := a.get("/v1/locks", one).ok().items(); len(items) != 1 || items[0].text("key") != "a:1" {
			t.Errorf("%v", items)
		}
		a.get("/v1/locks", two).refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/locks?prefix=b:", one).refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/jobs?prefix=", two).refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/locks?prefix=b:1", two).ok()
		for _, path := range []string{"/v1/lock?key=b:1", "/v1/explain?key=b:1", "/v1/line?key=b:1", "/v1/permits?key=b:1", "/v1/locks/b:1"} {
			a.get(path, one).refused(http.StatusForbidden, "FORBIDDEN")
		}
		a.post("/v1/status", object{"keys": []string{"a:1", "b:1"}}, one).refused(http.StatusForbidden, "FORBIDDEN")
		a.post("/v1/force-release", object{"key": "b:1", "reason": "x"}, one, with("If-Match", `"1"`)).refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/audit", one).refused(http.StatusForbidden, "FORBIDDEN")
	})
}

// A forced release hits the holding that the caller has seen, and no other; it is recorded, or it is refused.
func TestForceRelease(t *testing.T) {
	eachStore(t, func(t *testing.T, peer func() driver.Store) {
		mini, change := audited(t)
		a := newReplica(t, peer(), change)
		body := object{"key": key, "reason": "stuck"}
		token := a.post("/v1/acquire", object{"key": key}).ok().text("token")
		seen := a.get("/v1/lock?key=" + url.QueryEscape(key)).header.Get("ETag")
		a.post("/v1/force-release", body).refused(http.StatusPreconditionRequired, "PRECONDITION_REQUIRED")
		for _, bad := range []string{"*", "x", `"x"`, `"0"`, `"-1"`, `"1", "2"`, `W/"1"`, "12"} {
			a.post("/v1/force-release", body, with("If-Match", bad)).refused(http.StatusBadRequest, "LOCK_INVALID")
		}
		a.post("/v1/force-release", object{"key": key, "reason": ""}, with("If-Match", seen)).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.post("/v1/force-release", object{"key": key, "reason": "idle?", "if_idle": true}, with("If-Match", seen)).refused(http.StatusConflict, "LOCK_BUSY")
		a.post("/v1/release", object{"token": token}).ok()
		a.post("/v1/force-release", body, with("If-Match", seen)).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
		next := a.post("/v1/acquire", object{"key": key}).ok()
		a.post("/v1/force-release", body, with("If-Match", seen)).refused(http.StatusPreconditionFailed, "LOCK_OWNERSHIP_MISMATCH")
		a.wantState(key, joblock.StateHeld)
		mini.SetError("down")
		a.post("/v1/force-release", body, with("If-Match", fmt.Sprintf(`"%d"`, next.number("fence")))).refused(http.StatusServiceUnavailable, "ACTION_NOT_RECORDED")
		mini.SetError("")
		a.wantState(key, joblock.StateHeld)
		done := a.post("/v1/locks/"+url.PathEscape(key)+"/force-release", object{"reason": "stuck"}, with("If-Match", fmt.Sprintf(`"%d"`, next.number("fence")))).ok()
		if done["before"].(map[string]any)["state"] != "held" || done.text("audit") == "" {
			t.Errorf("%v", done)
		}
		a.wantState(key, joblock.StateFree)
		a.post("/v1/renew", object{"token": next.text("token")}).refused(http.StatusGone, "LOCK_ALREADY_RELEASED")
		entries := a.get("/v1/audit?key=" + url.QueryEscape(key)).ok().items()
		if len(entries) < 2 || entries[0].text("outcome") != "done" || entries[0].text("by") != "anyone" || entries[0].text("reason") != "stuck" {
			t.Errorf("%v", entries)
		}
		a.wantNoSecrets(token, next.text("token"))
	})
}

// Without a place for records every action is refused.
func TestActionsWithoutAnAudit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.CronScopes = []string{"cron"} })
		fence := a.post("/v1/acquire", object{"key": key}).ok().number("fence")
		a.post("/v1/force-release", object{"key": key, "reason": "x"}, with("If-Match", fmt.Sprintf(`"%d"`, fence))).refused(http.StatusServiceUnavailable, "ACTION_NOT_RECORDED")
		a.post("/v1/cron-pause", object{"reason": "x"}).refused(http.StatusServiceUnavailable, "ACTION_NOT_RECORDED")
	})
}

func TestPausesAndLimits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, change := audited(t)
		a := newReplica(t, store(), change)
		list := func(name string) (all []object) {
			for _, item := range a.get("/v1/controls").ok()[name].([]any) {
				all = append(all, item.(map[string]any))
			}
			return all
		}
		if n := len(list("pauses")) + len(list("limits")); n != 0 {
			t.Errorf("%d at first", n)
		}
		a.post("/v1/pause", object{"key": "tenant:42", "reason": "moves", "for_ms": 3_600_000}).ok()
		if all := list("pauses"); len(all) != 1 || all[0].text("key") != "tenant:42" || all[0].text("note") != "moves" || all[0].text("by") != "anyone" || all[0].text("until") == "" {
			t.Errorf("paused are %v", all)
		}
		a.post("/v1/resume-key", object{"key": "tenant:42:x", "reason": "over"}).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
		a.post("/v1/resume-key", object{"key": "tenant:42", "reason": "over"}).ok()
		if all := list("pauses"); len(all) != 1 || !all[0].flag("ended") { // a worker starts the jobs, and then the pause is gone
			t.Errorf("after the end paused are %v", all)
		}
		a.post("/v1/resume-key", object{"key": "tenant:42", "reason": "over"}).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
		for _, name := range []string{"acme", "a/b %c?d", strings.Repeat("n", 128)} {
			at := "/v1/limits/" + url.PathEscape(name)
			a.post(at+"/set", object{"value": 600, "reason": "fast"}).ok()
			if all := list("limits"); len(all) != 1 || all[0].text("name") != name || all[0].number("value") != 600 || all[0].text("note") != "fast" {
				t.Errorf("set are %v", all)
			}
			a.post(at+"/clear", object{"reason": "over"}).ok()
			a.post(at+"/clear", object{"reason": "over"}).refused(http.StatusNotFound, "LOCK_NOT_FOUND")
		}
		for path, bad := range map[string]object{
			"/v1/pause":            {"key": "tenant:*", "reason": "x"},
			"/v1/resume-key":       {"key": "", "reason": "x"},
			"/v1/limits/acme/set":  {"value": 0, "reason": "x"},
			"/v1/limits/acme/set?": {"value": 1_000_001, "reason": "x"},
			"/v1/limits/b/set":     {"value": 1},
			"/v1/limits/a%00b/set": {"value": 1, "reason": "x"},
			"/v1/limits/%ff/set":   {"value": 1, "reason": "x"},
			"/v1/limits/" + strings.Repeat("n", 129) + "/set": {"value": 1, "reason": "x"},
		} {
			a.post(path, bad).refused(http.StatusBadRequest, "LOCK_INVALID")
		}
		if n := len(list("limits")); n != 0 {
			t.Errorf("%d limits are set", n)
		}
		var actions []string
		for _, e := range a.get("/v1/audit?limit=100").ok().items() {
			if e.text("outcome") == "done" {
				actions = append(actions, e.text("action"))
			}
		}
		slices.Reverse(actions)
		if want := []string{"pause key", "resume key", "set limit", "clear limit", "set limit", "clear limit", "set limit", "clear limit"}; !slices.Equal(actions, want) {
			t.Errorf("the audit has %q, want %q", actions, want)
		}
	})
}

func TestCronJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, change := audited(t)
		a := newReplica(t, store(), change, func(cfg *Config) { cfg.CronScopes = []string{"cron"} })
		s, err := scheduler.New(a.locks, &scheduler.Config{Scope: "cron", Node: "node"})
		testkit.WantNil(t, "scheduler.New", err)
		ran := 0
		testkit.WantNil(t, "Func", s.Func("nightly/report", "0 3 * * *", func(context.Context) error { ran++; return nil }))
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan error)
		go func() { over <- s.Run(ctx) }()
		time.Sleep(time.Minute)
		name := "/v1/cron/nightly%2Freport"
		if jobs := a.get("/v1/cron").ok().items(); len(jobs) != 1 || jobs[0].text("name") != "nightly/report" {
			t.Errorf("%v", jobs)
		}
		if j := a.get(name + "?scope=cron").ok(); !strings.HasSuffix(j.text("spec"), "0 3 * * *") || j.flag("paused") {
			t.Errorf("%v", j)
		}
		if ticks := a.get(name + "/next?n=3").ok().items(); len(ticks) != 3 {
			t.Errorf("%v", ticks)
		}
		if nodes := a.get("/v1/cron-nodes").ok().items(); len(nodes) != 1 || nodes[0].text("name") != "node" {
			t.Errorf("%v", nodes)
		}
		a.post(name+"/pause", object{"reason": "maintenance"}).ok()
		if j := a.get(name).ok(); !j.flag("paused") {
			t.Errorf("%v", j)
		}
		a.post(name+"/resume", object{"reason": "over"}).ok()
		if j := a.get(name).ok(); j.flag("paused") {
			t.Errorf("resumed: %v", j)
		}
		a.post(name+"/trigger", object{"reason": "now"}).ok()
		outcomes := func() (all []string) { // of the trigger, the newest first
			for _, e := range a.get("/v1/audit").ok().items() {
				if e.text("action") == "cron trigger" {
					all = append(all, e.text("outcome"))
				}
			}
			return all
		}
		if got := outcomes(); !slices.Equal(got, []string{"asked", ""}) {
			t.Errorf("the audit has %q", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if ran != 1 {
			t.Errorf("ran %d times", ran)
		}
		if got := outcomes(); !slices.Equal(got, []string{"done", "asked", ""}) {
			t.Errorf("after the run the audit has %q", got)
		}
		now := time.Now().UTC()
		day := func(n int) string { return now.AddDate(0, 0, n).Format(time.RFC3339) }
		between := "?" + url.Values{"from": {day(-3)}, "to": {day(0)}}.Encode()
		if n := a.get(name + "/backfill" + between).ok().number("ticks"); n != 3 {
			t.Errorf("%d ticks", n)
		}
		if o := a.post(name+"/backfill", object{"from": day(-3), "to": day(0), "reason": "lost"}).ok(); o.number("ticks") != 3 || o.text("audit") == "" {
			t.Errorf("%v", o)
		}
		a.post(name+"/backfill", object{"from": day(-3), "to": day(0), "reason": "lost"}).refused(http.StatusConflict, "CRON_BACKFILLING")
		time.Sleep(time.Minute)
		if b, _ := a.get(name).ok()["backfill"].(map[string]any); ran != 4 || object(b).number("done") != 3 {
			t.Errorf("ran %d times; %v", ran, b)
		}
		a.post(name+"/stop-backfill", object{"reason": "enough"}).ok()
		if entries := a.get("/v1/audit?limit=4").ok().items(); entries[3].text("action") != "cron backfill" || entries[1].text("action") != "cron stop backfill" {
			t.Errorf("%v", entries)
		}
		for _, o := range []object{
			{"from": day(0), "to": day(-3)}, {"from": day(-3), "to": day(3)}, {"to": day(0)}, {"from": day(0)}, {"from": "soon", "to": day(0)},
			{"from": day(0), "to": day(0)}, {"from": "1960-01-01T00:00:00Z", "to": day(0)},
		} {
			o["reason"] = "x"
			a.post(name+"/backfill", o).refused(http.StatusBadRequest, "LOCK_INVALID")
		}
		a.post(name+"/backfill", object{"from": day(-3), "to": day(0), "reason": ""}).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.get(name+"/backfill?from="+url.QueryEscape(day(0))).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.get(name+"/backfill?"+url.Values{"from": {day(-1)}, "to": {day(3)}}.Encode()).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.get("/v1/cron/unknown/backfill"+between).refused(http.StatusNotFound, "CRON_NOT_FOUND")
		a.post("/v1/cron/unknown/backfill", object{"from": day(-3), "to": day(0), "reason": "x"}).refused(http.StatusNotFound, "CRON_NOT_FOUND")
		a.post("/v1/cron-pause", object{"reason": "all"}).ok()
		if j := a.get(name).ok(); !j.flag("paused") {
			t.Errorf("all paused: %v", j)
		}
		a.post("/v1/cron-resume", object{"reason": "all"}).ok()
		if j := a.get(name).ok(); j.flag("paused") {
			t.Errorf("all resumed: %v", j)
		}
		a.post(name+"/pause", object{"reason": ""}).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.get("/v1/cron/unknown").refused(http.StatusNotFound, "CRON_NOT_FOUND")
		a.get("/v1/cron?scope=other").refused(http.StatusBadRequest, "LOCK_INVALID")
		plan := a.get("/v1/cron-preview?spec=" + url.QueryEscape("30 2 * * *") + "&zone=Europe/Berlin&n=2").ok()
		if ticks, _ := plan["ticks"].([]any); len(ticks) != 2 || plan.text("zone") != "Europe/Berlin" {
			t.Errorf("%v", plan)
		}
		a.get("/v1/cron-preview?spec=nonsense").refused(http.StatusBadRequest, "LOCK_INVALID")
		a.get("/v1/cron-preview?spec=x&zone=Atlantis").refused(http.StatusBadRequest, "LOCK_INVALID")
		if entries := a.get("/v1/audit?since=2000-01-01T00:00:00Z&limit=2").ok(); len(entries.items()) != 2 || !entries.flag("more") {
			t.Errorf("%v", entries)
		}
		cancel()
		<-over
	})
}

// The jobs that have locks are shown with the state of their tasks.
func TestJobs(t *testing.T) {
	server := redistest.Start(t)
	a := newShop(t, server.Addr())
	job := a.post("/v1/enqueue", object{"key": key, "type": "export", "task_id": "a b"}).ok()
	jobs := a.get("/v1/jobs").ok().items()
	if len(jobs) != 1 || jobs[0].text("key") != key || jobs[0]["task"].(map[string]any)["state"] != "pending" {
		t.Errorf("%v", jobs)
	}
	one := a.get("/v1/jobs/default/" + url.PathEscape(job.text("task_id"))).ok()
	if len(one.items()) != 1 {
		t.Errorf("%v", one)
	}
	if o := a.get("/v1/lock?key=" + url.QueryEscape(key)).ok(); o["task"].(map[string]any)["type"] != "export" {
		t.Errorf("%v", o)
	}
	if none := a.get("/v1/jobs/default/unknown").ok(); len(none.items()) != 0 || none["task"].(map[string]any)["state"] != "absent" {
		t.Errorf("%v", none)
	}
	if none := a.get("/v1/jobs?queue=other").ok().items(); len(none) != 0 {
		t.Errorf("jobs of another queue: %v", none)
	}
	a.get("/v1/doctor").ok()
}

// The doctor says whether the servers keep locks safe, with the word and the reason that the command has.
func TestTheDoctorSaysWhetherLocksAreSafe(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for name, c := range map[string]struct {
		store   bool
		set     string // maxmemory-policy
		word    string
		because string // begins so
		subject string
		node    string
	}{
		"not looked at": {false, "noeviction", "unknown", "this server does not look at the servers of the locks", "", ""},
		"in memory":     {true, "noeviction", "yes, but a restart of Redis, which is routine, frees held locks", "persistence at " + server.Addr() + ": ", "persistence", server.Addr()},
		"eviction":      {true, "allkeys-lru", "no", "maxmemory-policy at " + server.Addr() + ": ", "maxmemory-policy", server.Addr()},
	} {
		a := newShop(t, server.Addr(), func(cfg *Config) {
			if c.store {
				cfg.Store = testkit.Must(redisstore.New(server.Client(t), nil))
			}
		})
		for setting, value := range map[string]string{"maxmemory": "1gb", "maxmemory-policy": c.set} {
			testkit.WantNil(t, "CONFIG SET", a.rdb.ConfigSet(t.Context(), setting, value).Err())
		}
		safe, _ := a.get("/v1/doctor").ok()["safe"].(map[string]any)
		o := object(safe)
		if o.text("word") != c.word || !strings.HasPrefix(o.text("because"), c.because) || o.text("subject") != c.subject || o.text("node") != c.node {
			t.Errorf("%s: %v", name, safe)
		}
	}
}

// A job that runs is ended with one call, before its next attempt, and the answer says what happened to its task.
func TestAJobIsEnded(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, audit := audited(t)
	a := newShop(t, server.Addr(), audit)
	begun := make(chan string, 4)
	worker := asynq.NewServer(asynq.RedisClientOpt{Addr: server.Addr()}, asynq.Config{
		Concurrency: 2, LogLevel: asynq.FatalLevel, TaskCheckInterval: 50 * time.Millisecond, DelayedTaskCheckInterval: 50 * time.Millisecond,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 3 * time.Second },
	})
	testkit.WantNil(t, "Start", worker.Start(asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		begun <- id
		<-ctx.Done()
		return ctx.Err()
	})))
	t.Cleanup(worker.Shutdown)
	for then, became := range map[string]string{"archive": "archived", "drop": "dropped"} {
		a.post("/v1/enqueue", object{"key": "end:" + then, "type": "hangs", "task_id": then}).ok()
		if id := <-begun; id != then {
			t.Fatalf("%s has begun", id)
		}
		path := "/v1/jobs/default/" + then
		seen := with("If-Match", a.get(path).header.Get("ETag"))
		for _, bad := range []string{"run", "drop", "archive"} {
			if o := a.post(path+"/"+bad, object{"reason": "hangs", "then": then}, seen).refused(http.StatusBadRequest, "REQUEST_INVALID"); !strings.Contains(o.text("detail"), "then") {
				t.Errorf("%s: the detail is %q", bad, o.text("detail"))
			}
		}
		a.post(path+"/cancel", object{"reason": "hangs", "then": "hide"}, seen).refused(http.StatusBadRequest, "LOCK_INVALID")
		if o := a.post(path+"/cancel", object{"reason": "hangs", "then": then}, seen).ok(); o.text("outcome") != became || o.text("audit") == "" {
			t.Errorf("%v", o)
		}
		info, err := a.inspector.GetTaskInfo("default", then)
		if then == "drop" && !errors.Is(err, asynq.ErrTaskNotFound) || then == "archive" && (err != nil || info.State != asynq.TaskStateArchived) {
			t.Errorf("%s: %+v, %v", then, info, err)
		}
		a.post(path+"/cancel", object{"reason": "hangs", "then": then}, seen).refused(map[string]int{"archive": http.StatusPreconditionFailed, "drop": http.StatusNotFound}[then],
			map[string]string{"archive": "TASK_STATE", "drop": "TASK_NOT_FOUND"}[then])
	}
	select {
	case id := <-begun:
		t.Errorf("another attempt of %s has begun", id)
	default:
	}
}

// Tasks are steered at the step that the caller has seen, recorded, and within the rights of the caller.
func TestTasksAreSteered(t *testing.T) {
	server := redistest.Start(t)
	_, audit := audited(t)
	a := newShop(t, server.Addr(), audit, func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			who := Principal{ID: "ann", Scopes: ScopeAdmin}
			who.Prefixes, who.AllKeys = listed(r, "Prefixes")
			who.Queues, who.AllQueues = listed(r, "Queues")
			return who, nil
		})
	})
	const path = "/v1/jobs/default/a%2Fb"
	why, any := object{"reason": "stuck"}, with("If-Match", "*")
	a.post("/v1/enqueue", object{"key": key, "type": "export", "task_id": "a/b", "delay_ms": 3_600_000}).ok()
	seen := a.get(path).header.Get("ETag")
	if seen == "" {
		t.Fatal("the job has no ETag")
	}
	for _, verb := range []string{"run", "cancel", "drop", "archive"} {
		a.post(path+"/"+verb, why).refused(http.StatusPreconditionRequired, "PRECONDITION_REQUIRED")
		for _, bad := range []string{"x", `""`, `"a", "b"`, `W/"x"`} {
			a.post(path+"/"+verb, why, with("If-Match", bad)).refused(http.StatusBadRequest, "LOCK_INVALID")
		}
		a.post(path+"/"+verb, object{"reason": ""}, any).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.post(path+"/"+verb, why, with("If-Match", `"archived-9-1"`)).refused(http.StatusPreconditionFailed, "TASK_STATE")
		a.post("/v1/jobs/default/unknown/"+verb, why, any).refused(http.StatusNotFound, "TASK_NOT_FOUND")
		a.post(path+"/"+verb, why, any, with("Queues", "low")).refused(http.StatusForbidden, "FORBIDDEN")
		a.post(path+"/"+verb, why, any, with("Prefixes", "import:")).refused(http.StatusForbidden, "FORBIDDEN")
	}
	a.post(path+"/cancel", why, any).refused(http.StatusConflict, "TASK_STATE")
	if o := a.post(path+"/run", why, with("If-Match", seen), with("Prefixes", "export:")).ok(); o.text("audit") == "" {
		t.Errorf("%v", o)
	}
	if info, err := a.inspector.GetTaskInfo("default", "a/b"); err != nil || info.State != asynq.TaskStatePending {
		t.Errorf("%+v, %v", info, err)
	}
	a.post(path+"/drop", why, with("If-Match", seen)).refused(http.StatusPreconditionFailed, "TASK_STATE")
	a.post(path+"/drop", why, with("If-Match", a.get(path).header.Get("ETag"))).ok()
	if tag := a.get(path).header.Get("ETag"); tag != "" {
		t.Errorf("a task that is gone has the ETag %s", tag)
	}
	if e := a.get("/v1/audit?limit=1").ok().items(); e[0].text("action") != "delete task" || e[0].text("by") != "ann" || e[0].text("reason") != "stuck" {
		t.Errorf("%v", e)
	}

	skip := "/v1/locks/" + url.PathEscape("line") + "/skip"
	for i := range 2 {
		a.post("/v1/enqueue", object{"key": "line", "type": "webhook", "task_id": fmt.Sprint(i), "sequence": true, "on_failure": "halt"}).ok()
	}
	tag := a.get("/v1/lock?key=line").header.Get("ETag")
	a.post(skip, why).refused(http.StatusPreconditionRequired, "PRECONDITION_REQUIRED")
	a.post(skip, why, with("If-Match", tag)).refused(http.StatusConflict, "TASK_STATE")
	testkit.WantNil(t, "ArchiveTask", a.inspector.ArchiveTask("default", "0"))
	a.post(skip, why, with("If-Match", `"1"`)).refused(http.StatusPreconditionFailed, "LOCK_OWNERSHIP_MISMATCH")
	a.post(skip, why, with("If-Match", tag), with("Queues", "low")).refused(http.StatusForbidden, "FORBIDDEN")
	a.post(skip, why, with("If-Match", tag), with("Prefixes", "x:")).refused(http.StatusForbidden, "FORBIDDEN")
	a.post("/v1/skip", object{"key": "line", "reason": "void"}, with("If-Match", tag)).ok()
	if st := a.status("line"); st.Job != "default/1" {
		t.Errorf("%+v", st)
	}
	a.post("/v1/skip", object{"key": "unknown", "reason": "void"}, with("If-Match", `"1"`)).refused(http.StatusNotFound, "TASK_NOT_FOUND")
}

// A list of jobs comes by pages, each of which has its bound, and every job comes once.
func TestJobsByPages(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		const all = 700
		for i := range all {
			token := a.post("/v1/acquire", object{"key": fmt.Sprint("job:", i)}).ok().text("token")
			a.post("/v1/park", object{"token": token, "job": fmt.Sprint("default/", i)}).ok()
		}
		for _, limit := range []int{1, 7, 100, 1000} {
			seen, pages := make(map[string]bool), 0
			for next := ""; pages == 0 || next != ""; pages++ {
				if limit == 1 && pages == 20 {
					break
				}
				page := a.get(fmt.Sprint("/v1/jobs?limit=", limit, "&cursor=", next)).ok()
				if len(page.items()) > limit {
					t.Fatalf("%d items, at most %d were asked for", len(page.items()), limit)
				}
				for _, j := range page.items() {
					if seen[j.text("job")] {
						t.Errorf("limit %d: %s comes twice", limit, j.text("job"))
					}
					seen[j.text("job")] = true
				}
				next = page.text("next")
				if page.flag("more") != (next != "") {
					t.Errorf("more is %v, next is %q", page.flag("more"), next)
				}
			}
			if limit > 1 && len(seen) != all {
				t.Errorf("limit %d: %d jobs on %d pages", limit, len(seen), pages)
			}
		}
		for _, cursor := range []string{"x", "e30", "eyJwIjotMX0", "eyJwIjo5OX0", "eyJ4IjoxfQ"} { // {}, {"p":-1}, {"p":99}, {"x":1}
			r := a.get("/v1/jobs?cursor=" + cursor)
			if cursor == "e30" {
				r.ok()
			} else {
				r.refused(http.StatusBadRequest, "LOCK_INVALID")
			}
		}
	})
}

// The locks of jobs are listed from their own index, by pages, and a queue that is not the caller's shows none.
func TestListLocksOfJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
				who := Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true}
				who.Queues, who.AllQueues = listed(r, "Queues")
				return who, nil
			})
		})
		const all = 600
		for i := range all {
			token := a.post("/v1/acquire", object{"key": fmt.Sprint("job:", i)}).ok().text("token")
			a.post("/v1/park", object{"token": token, "job": fmt.Sprint([]string{"default", "low"}[i%2], "/", i), "reserve_ms": 3_600_000}).ok()
		}
		a.post("/v1/acquire", object{"key": "job:none", "ttl_ms": 3_600_000}).ok()
		for query, want := range map[string]int{"job=1": all, "queue=low": all / 2, "queue=other": 0, "job=1&prefix=job:1": 111, "job=1&state=held": 0} {
			seen := make(map[string]bool)
			for next, pages := "", 0; pages == 0 || next != ""; pages++ {
				page := a.get("/v1/locks?limit=70&" + query + "&cursor=" + next).ok()
				if len(page.items()) > 70 {
					t.Fatalf("%s: %d items", query, len(page.items()))
				}
				for _, l := range page.items() {
					if seen[l.text("key")] || l.text("job") == "" {
						t.Errorf("%s: %v", query, l)
					}
					seen[l.text("key")] = true
				}
				next = page.text("next")
			}
			if len(seen) != want {
				t.Errorf("%s: %d locks, want %d", query, len(seen), want)
			}
		}
		a.get("/v1/locks?queue=low", with("Queues", "default")).refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/locks?queue=low", with("Queues", "default low")).ok()
		a.get("/v1/locks?job=1&cursor=W10").refused(http.StatusBadRequest, "LOCK_INVALID")
	})
}

// However slow the store is, a page of jobs ends in time and says that there is more. So does a search for one job.
func TestJobsOfASlowStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		for i := range 2000 {
			lock, err := a.locks.TryAcquire(t.Context(), fmt.Sprint("job:", i), joblock.TTL(time.Hour))
			testkit.WantNil(t, "TryAcquire", err)
			_, err = lock.Park(t.Context(), joblock.ForJob(fmt.Sprint("default/", i)), joblock.Reserve(24*time.Hour))
			testkit.WantNil(t, "Park", err)
		}
		a.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 900 * time.Millisecond}, faultstore.Entries)
		began := time.Now()
		page := a.get("/v1/jobs?suspects=1").ok()
		if took := time.Since(began); took > 5*time.Second || page.text("next") == "" {
			t.Errorf("%d items after %s, next %q", len(page.items()), took, page.text("next"))
		}
		a.store.Set(faultstore.Fault{Mode: faultstore.Slow, Delay: 1900 * time.Millisecond}, faultstore.Entries)
		began = time.Now()
		one := a.get("/v1/jobs/default/unknown").ok()
		if took := time.Since(began); took > walkTime+3*time.Second || !one.flag("more") {
			t.Errorf("%v after %s", one, took)
		}
	})
}

func TestBadQueries(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.CronScopes = []string{"a", "b"} })
		for path, code := range map[string]string{
			"/v1/lock":                                     "LOCK_INVALID",
			"/v1/lock?key=":                                "LOCK_INVALID",
			"/v1/lock?key=%00":                             "LOCK_INVALID",
			"/v1/lock?kee=x":                               "REQUEST_INVALID",
			"/v1/lock?key=a&key=b":                         "REQUEST_INVALID",
			"/v1/locks?prefix=a%zz":                        "REQUEST_INVALID", // not a list of all locks
			"/v1/locks?prefix=a;b":                         "REQUEST_INVALID",
			"/v1/locks?%zz":                                "REQUEST_INVALID",
			"/v1/locks/a?key=b":                            "LOCK_INVALID",
			"/v1/locks?limit=0":                            "LOCK_INVALID",
			"/v1/locks?limit=1001":                         "LOCK_INVALID",
			"/v1/locks?limit=x":                            "LOCK_INVALID",
			"/v1/locks?state=busy":                         "LOCK_INVALID",
			"/v1/locks?ended=maybe":                        "LOCK_INVALID",
			"/v1/locks?cursor=!":                           "LOCK_INVALID",
			"/v1/locks?cursor=W10":                         "LOCK_INVALID",
			"/v1/locks?older_ms=-1":                        "LOCK_INVALID",
			"/v1/locks?prefix=" + strings.Repeat("x", 513): "LOCK_INVALID",
			"/v1/permits?key=a&n=-1":                       "LOCK_INVALID",
			"/v1/cron":                                     "LOCK_INVALID",
			"/v1/cron/x/next?scope=a&n=0":                  "LOCK_INVALID",
			"/v1/cron-preview?spec=" + strings.Repeat("x", 1025): "LOCK_INVALID",
			"/v1/audit?since=yesterday":                          "LOCK_INVALID",
			"/v1/line?key=a&limit=1001":                          "LOCK_INVALID",
		} {
			a.get(path).refused(http.StatusBadRequest, code)
		}
		a.post("/v1/cron-pause?scope=%zz", object{"reason": "x"}).refused(http.StatusBadRequest, "REQUEST_INVALID")
		a.post("/v1/status", object{"keys": []string{}}).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.post("/v1/status", object{"keys": "a"}).refused(http.StatusBadRequest, "REQUEST_INVALID")
		a.post("/v1/status", object{}).refused(http.StatusBadRequest, "LOCK_INVALID")
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Inspect, faultstore.List)
		for _, path := range []string{"/v1/lock?key=a", "/v1/locks", "/v1/explain?key=a", "/v1/keeper"} {
			a.get(path).refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
		}
	})
}
