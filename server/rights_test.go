package server

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// withQueues is an Authorizer whose caller "bulk" may use jobs of the queue "bulk" only, and keys that begin with
// "export:" or "bulk:". Every other caller may do everything.
var withQueues = AuthorizeFunc(func(r *http.Request) (Principal, error) {
	p := Principal{ID: r.Header.Get("Caller"), Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}
	if p.ID == "bulk" {
		p.Scopes = ScopeLock | ScopeEnqueue | ScopeRead
		p.Prefixes, p.AllKeys, p.Queues, p.AllQueues = []string{"export:", "bulk:"}, false, []string{"bulk"}, false
	}
	return p, nil
})

// A job replaces no job, and shows no task, that its caller could not have enqueued.
func TestReplaceOfAForeignJob(t *testing.T) {
	server := redistest.Start(t)
	a := newShop(t, server.Addr(), func(cfg *Config) { cfg.Authorize = withQueues })
	bulk, admin := with("Caller", "bulk"), with("Caller", "admin")
	for _, policy := range []string{"replace", "keep_last", "skip"} {
		t.Run(policy, func(t *testing.T) {
			name, id := "export:"+policy, "victim-"+policy
			a.post("/v1/enqueue", object{"key": name, "type": "pay", "queue": "payments", "task_id": id, "on_conflict": policy}, admin).ok()
			known := a.pending("bulk")
			r := a.post("/v1/enqueue", object{"key": name, "type": "x", "queue": "bulk", "on_conflict": policy}, bulk)
			r.refused(http.StatusForbidden, "FORBIDDEN")
			if n := a.pending("bulk"); n != known {
				t.Errorf("the queue has %d tasks, %d before", n, known)
			}
			info, err := a.inspector.GetTaskInfo("payments", id)
			testkit.WantNil(t, "GetTaskInfo", err)
			if info.State.String() != "pending" {
				t.Errorf("the foreign task is %s", info.State)
			}
			// Its own jobs, and those of a caller without bounds, are replaced as ever.
			own := object{"key": "bulk:" + policy, "type": "x", "queue": "bulk", "on_conflict": policy}
			first := a.post("/v1/enqueue", own, bulk).ok()
			second := a.post("/v1/enqueue", own, bulk).ok()
			if policy == "skip" != second.flag("duplicate") || policy != "skip" && second.text("replaced_task_id") != first.text("task_id") {
				t.Errorf("%v after %v", second, first)
			}
			if o := a.post("/v1/enqueue", object{"key": name, "type": "x", "on_conflict": policy}, admin).ok(); policy != "skip" && o.text("replaced_task_id") != id {
				t.Errorf("%v", o)
			}
		})
	}
}

// pending returns how many tasks of a queue are pending.
func (s *shop) pending(queue string) int {
	tasks, err := s.inspector.ListPendingTasks(queue)
	if err != nil {
		return 0 // no such queue
	}
	return len(tasks)
}

// A caller with queues binds no lock to a job in another queue, and sees no such job.
func TestJobOfAForeignQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store(), func(cfg *Config) { cfg.Authorize = withQueues })
		bulk, admin := with("Caller", "bulk"), with("Caller", "admin")
		parked := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}, bulk).ok().text("token")
		for body, code := range map[string]string{"payments/1": "FORBIDDEN", "bulk%2Fx/1": "FORBIDDEN", "nothing": "LOCK_INVALID", "bulk/": "LOCK_INVALID"} {
			status := http.StatusForbidden
			if code == "LOCK_INVALID" {
				status = http.StatusBadRequest
			}
			for _, verb := range []string{"park", "resume", "hold"} {
				a.post("/v1/"+verb, object{"token": parked, "job": body}, bulk).refused(status, code)
			}
		}
		if st := a.wantState(key, joblock.StateHeld); st.Job != "" {
			t.Errorf("%+v", st)
		}
		a.get("/v1/jobs/payments/1", bulk).refused(http.StatusForbidden, "FORBIDDEN")
		a.get("/v1/jobs?queue=payments", bulk).refused(http.StatusForbidden, "FORBIDDEN")
		foreign := a.post("/v1/acquire", object{"key": "export:foreign", "ttl_ms": 60_000}, admin).ok().text("token")
		a.post("/v1/park", object{"token": foreign, "job": "payments/1"}, admin).ok()
		own := a.post("/v1/acquire", object{"key": "export:own", "ttl_ms": 60_000}, admin).ok().text("token")
		a.post("/v1/park", object{"token": own, "job": "bulk/1"}, admin).ok()
		if items := a.get("/v1/jobs?prefix=export:", bulk).ok().items(); len(items) != 1 || items[0].text("job") != "bulk/1" {
			t.Errorf("%v", items)
		}
		if items := a.get("/v1/jobs", admin).ok().items(); len(items) != 2 {
			t.Errorf("%v", items)
		}
	})
}

// A caller with prefixes binds its lock to no task but one that carries the key, and has no right over a task that carries
// a lock of others, whatever locks are bound to it. The owner of the task keeps its rights.
func TestLockBoundToATaskOfOthers(t *testing.T) {
	mini := redistest.MiniServer(t)
	a := newShop(t, mini.Addr(), func(cfg *Config) {
		cfg.Redis = redistest.MiniClient(t, mini)
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			p := Principal{ID: r.Header.Get("Caller"), Scopes: scopeAny &^ ScopeAdmin, Prefixes: []string{r.Header.Get("Caller") + ":"}, AllQueues: true}
			if p.ID == "admin" {
				p.Scopes, p.Prefixes, p.AllKeys = ScopeAdmin, nil, true
			}
			if p.ID == "lead" {
				p.Prefixes, p.Scopes = []string{"a:"}, ScopeAdmin
			}
			return p, nil
		})
	})
	alice, bob, admin := with("Caller", "a"), with("Caller", "b"), with("Caller", "admin")
	a.post("/v1/enqueue", object{"key": "b:job", "type": "secret", "task_id": "victim"}, bob).ok()
	_, err := asynq.NewClientFromRedisClient(a.rdb).Enqueue(asynq.NewTask("secret", nil), asynq.TaskID("plain"))
	testkit.WantNil(t, "Enqueue", err)
	parked := a.post("/v1/acquire", object{"key": "a:parked", "ttl_ms": 60_000}, alice).ok().text("token")
	parked = a.post("/v1/park", object{"token": parked}, alice).ok().text("token")
	for _, id := range []string{"victim", "plain", "future"} {
		held := a.post("/v1/acquire", object{"key": "a:" + id, "ttl_ms": 60_000}, alice).ok().text("token")
		a.post("/v1/park", object{"token": held, "job": "default/" + id}, alice).refused(http.StatusForbidden, "FORBIDDEN")
		a.post("/v1/resume", object{"token": parked, "job": "default/" + id}, alice).refused(http.StatusForbidden, "FORBIDDEN")
		a.post("/v1/hold", object{"token": parked, "job": "default/" + id}, alice).refused(http.StatusForbidden, "FORBIDDEN")
		// A program that has the store binds what it likes. That gives no right either.
		lock, err := a.locks.TryAcquire(t.Context(), "a:bound-"+id)
		testkit.WantNil(t, "TryAcquire", err)
		_, err = lock.Park(t.Context(), joblock.ForJob("default/"+id))
		testkit.WantNil(t, "Park", err)
		for _, verb := range []string{"run", "cancel", "archive", "drop"} {
			a.post("/v1/jobs/default/"+id+"/"+verb, object{"reason": "x"}, alice, with("If-Match", "*")).refused(http.StatusForbidden, "FORBIDDEN")
		}
		for _, path := range []string{"/v1/lock?key=a:bound-" + id, "/v1/explain?key=a:bound-" + id, "/v1/jobs?prefix=a:", "/v1/jobs/default/" + id} {
			if o := fmt.Sprint(a.get(path, alice).ok()); strings.Contains(o, "secret") || strings.Contains(o, "pending") {
				t.Errorf("%s shows the task: %s", path, o)
			}
		}
		if id != "future" {
			a.post("/v1/skip", object{"key": "a:bound-" + id, "reason": "x"}, alice, with("If-Match", fmt.Sprintf("%q", fmt.Sprint(a.status("a:bound-"+id).Fence)))).refused(http.StatusConflict, "TASK_STATE")
		}
	}
	for _, job := range []string{"nothing", "default/", "50%/x"} {
		for _, verb := range []string{"park", "resume", "hold"} {
			a.post("/v1/"+verb, object{"token": parked, "job": job}, alice).refused(http.StatusBadRequest, "LOCK_INVALID")
		}
	}
	a.post("/v1/jobs/default/victim/archive", object{"reason": "x"}, bob, with("If-Match", "*")).ok()
	a.post("/v1/jobs/default/victim/drop", object{"reason": "x"}, bob, with("If-Match", "*")).ok()
	a.post("/v1/jobs/default/plain/drop", object{"reason": "x"}, admin, with("If-Match", "*")).ok()
	// A task that carries the key may get the lock on the key.
	a.post("/v1/enqueue", object{"key": "a:job", "type": "x", "task_id": "own"}, alice).ok()
	a.post("/v1/force-release", object{"key": "a:job", "reason": "x"}, alice, with("If-Match", fmt.Sprintf("%q", fmt.Sprint(a.status("a:job").Fence)))).ok()
	again := a.post("/v1/acquire", object{"key": "a:job", "ttl_ms": 60_000}, alice).ok().text("token")
	a.post("/v1/park", object{"token": again, "job": "default/own"}, alice).ok()
	if o := fmt.Sprint(a.get("/v1/jobs/default/own", alice).ok()); !strings.Contains(o, "pending") {
		t.Errorf("%s lacks the state of the task", o)
	}
	a.post("/v1/jobs/default/own/archive", object{"reason": "x"}, alice, with("If-Match", "*")).ok()
	for who, want := range map[string]int{"lead": 4, "admin": 10} { // two entries each
		if n := len(a.get("/v1/audit", with("Caller", who)).ok().items()); n != want {
			t.Errorf("%s sees %d entries of the audit, want %d", who, n, want)
		}
	}
	// A caller with every key and the queue has every task of it.
	other := a.post("/v1/acquire", object{"key": "x", "ttl_ms": 60_000}, admin).ok().text("token")
	a.post("/v1/park", object{"token": other, "job": "default/later"}, admin).ok()
}

// The sealed header of a caller's own task gives no right over a task that it was copied to, and ending that task
// does nothing to the lock.
func TestHeaderThatWasCopied(t *testing.T) {
	mini := redistest.MiniServer(t)
	a := newShop(t, mini.Addr(), func(cfg *Config) {
		cfg.Redis = redistest.MiniClient(t, mini)
		cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
			if r.Header.Get("Caller") == "admin" {
				return Principal{ID: "admin", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, nil
			}
			return Principal{ID: "a", Scopes: scopeAny &^ ScopeAdmin, Prefixes: []string{"a:"}, AllQueues: true}, nil
		})
	})
	alice, admin := with("Caller", "a"), with("Caller", "admin")
	a.post("/v1/enqueue", object{"key": "a:job", "type": "x", "task_id": "own"}, alice).ok()
	inspector, client := asynq.NewInspectorFromRedisClient(a.rdb), asynq.NewClientFromRedisClient(a.rdb)
	own, err := inspector.GetTaskInfo("default", "own")
	testkit.WantNil(t, "GetTaskInfo", err)
	if len(own.Headers) == 0 {
		t.Fatal("the task carries no header")
	}
	before := a.status("a:job")
	held := a.post("/v1/acquire", object{"key": "a:other", "ttl_ms": 60_000}, alice).ok().text("token")
	for _, copied := range []struct{ queue, id, kind string }{{"default", "other", "x"}, {"low", "own", "x"}, {"low", "other", "secret"}} {
		job := copied.queue + "/" + copied.id
		_, err := client.Enqueue(asynq.NewTaskWithHeaders(copied.kind, nil, own.Headers), asynq.TaskID(copied.id), asynq.Queue(copied.queue))
		testkit.WantNil(t, "Enqueue", err)
		a.post("/v1/park", object{"token": held, "job": job}, alice).refused(http.StatusForbidden, "FORBIDDEN")
		for _, verb := range []string{"run", "cancel", "archive", "drop"} {
			a.post("/v1/jobs/"+job+"/"+verb, object{"reason": "x"}, alice, with("If-Match", "*")).refused(http.StatusForbidden, "FORBIDDEN")
		}
		a.post("/v1/jobs/"+job+"/archive", object{"reason": "x"}, admin, with("If-Match", "*")).ok()
		a.post("/v1/jobs/"+job+"/drop", object{"reason": "x"}, admin, with("If-Match", "*")).ok()
		if now := a.status("a:job"); now.State != before.State || now.Fence != before.Fence {
			t.Errorf("%s: the lock is %v with the fence %d, was %v with %d", job, now.State, now.Fence, before.State, before.Fence)
		}
	}
	a.post("/v1/jobs/default/own/archive", object{"reason": "x"}, alice, with("If-Match", "*")).ok()
}

// The lines of jobs: those that have halted come first, also if the list is cut off. A caller sees those of its own keys and
// queues.
func TestSequences(t *testing.T) {
	server := redistest.Start(t)
	a := newShop(t, server.Addr(), func(cfg *Config) { cfg.Authorize = withQueues })
	bulk, admin := with("Caller", "bulk"), with("Caller", "admin")
	for i, job := range []struct{ key, queue string }{
		{"bulk:long", "bulk"}, {"bulk:long", "bulk"}, {"bulk:long", "bulk"}, {"export:halts", "bulk"}, {"export:halts", "bulk"},
		{"export:foreign", "payments"}, {"pay:ours", "payments"},
	} {
		a.post("/v1/enqueue", object{
			"key": job.key, "queue": job.queue, "task_id": fmt.Sprint(i), "type": "x", "sequence": true, "on_failure": "halt",
		}, admin).ok()
	}
	testkit.WantNil(t, "ArchiveTask", a.inspector.ArchiveTask("bulk", "3"))
	for path, c := range map[string]struct {
		who  func(*http.Request)
		want string
		more bool
	}{
		"?":                        {admin, "export:halts halted 1, bulk:long waiting 2, export:foreign waiting 0, pay:ours waiting 0", false},
		"?limit=1":                 {admin, "export:halts halted 1", true},
		"?halted=1":                {admin, "export:halts halted 1", false},
		"?prefix=bulk:":            {bulk, "bulk:long waiting 2", false},
		"?prefix=export:":          {bulk, "export:halts halted 1", false},
		"?prefix=export:&halted=0": {admin, "export:halts halted 1, export:foreign waiting 0", false},
	} {
		page := a.get("/v1/sequences"+path, c.who).ok()
		var all []string
		for _, o := range page.items() {
			all = append(all, fmt.Sprint(o["key"], " ", o["state"], " ", o["waiting"]))
		}
		if got := strings.Join(all, ", "); got != c.want || page.flag("more") != c.more {
			t.Errorf("%s: %s, more %t; want %s", path, got, page.flag("more"), c.want)
		}
	}
	for _, path := range []string{"", "?prefix=pay:", "?prefix=exp"} {
		a.get("/v1/sequences"+path, bulk).refused(http.StatusForbidden, "FORBIDDEN")
	}
	a.get("/v1/sequences?limit=0", admin).refused(http.StatusBadRequest, "LOCK_INVALID")
}

// A stream, and a request that waits, ends when its account is gone, or changed so that it may not have the lock.
func TestAccountThatIsChangedMeanwhile(t *testing.T) {
	const within = recheckEvery + 2*checkFile
	for name, c := range map[string]struct {
		then string // the rest of the changed account; "": no account
		ends bool
	}{
		"gone":           {"", true},
		"another scope":  {`"scopes": ["read"]`, true},
		"another prefix": {`"scopes": ["lock"], "prefixes": ["billing:"]`, true},
		"expired":        {`"scopes": ["lock"], "expires": "1999-01-01T00:00:00Z"`, true},
		"another queue":  {`"scopes": ["lock"], "queues": ["x"]`, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				path, token := accountsFile(t, `"scopes": ["lock"]`)
				a := newReplica(t, store(), withAccounts(t, path))
				a.bearer = token
				holder, line := a.hold(object{"key": key, "ttl_ms": 60_000}), a.hold(object{"key": key, "ttl_ms": 60_000})
				waited := make(chan *reply, 1)
				go func() {
					r, err := a.try(t.Context(), http.MethodPost, "/v1/acquire", object{"key": key, "wait_ms": 50_000})
					testkit.WantNil(t, "acquire", err)
					waited <- r
				}()
				holder.until("lock-acquired")
				time.Sleep(25 * time.Second)
				if st := a.status(key); st.Waiters != 2 {
					t.Fatalf("%+v", st)
				}
				changeAccount(t, path, token, c.then)
				began := time.Now()
				if !c.ends {
					time.Sleep(2 * within)
					a.wantState(key, joblock.StateHeld)
					<-waited // with a 409, in its time
					return
				}
				if o := holder.until("lock-lost"); o.text("code") != "AUTH_REQUIRED" {
					t.Errorf("%v", o)
				}
				if o := line.until("error"); o.text("code") != "AUTH_REQUIRED" {
					t.Errorf("%v", o)
				}
				(<-waited).refused(http.StatusUnauthorized, "AUTH_REQUIRED")
				holder.ended()
				line.ended()
				if took := time.Since(began); took > within {
					t.Errorf("after %s", took)
				}
				synctest.Wait()
				// The client may have relied on the lock until it read the line.
				if st := a.wantState(key, joblock.StateHeld); st.Waiters != 0 {
					t.Errorf("%+v", st)
				}
				time.Sleep(time.Minute)
				a.wantState(key, joblock.StateFree)
			})
		})
	}
}

// An Authorizer that fails, hangs or panics for a while ends no stream, and makes no ping late. If it goes on for a
// minute, the stream ends.
func TestAuthorizerThatFailsMeanwhile(t *testing.T) {
	for name, fails := range map[string]func(*http.Request) error{
		"error": func(*http.Request) error { return errors.New("no answer") },
		"panic": func(*http.Request) error { panic("no answer") },
		"hang": func(r *http.Request) error {
			select {
			case <-r.Context().Done():
			case <-time.After(9 * time.Second):
			}
			return errors.New("no answer")
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				var bad atomic.Bool
				a := newReplica(t, store(), func(cfg *Config) {
					cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
						if bad.Load() {
							if err := fails(r); err != nil {
								return Principal{}, err
							}
						}
						return Principal{ID: "x", Scopes: ScopeLock, AllKeys: true, AllQueues: true}, nil
					})
				})
				h := a.hold(object{"key": key, "ttl_ms": 4000})
				h.until("lock-acquired")
				last := time.Now()
				for i, broken := range []bool{false, true, false, true} {
					bad.Store(broken)
					for began := time.Now(); time.Since(began) < 45*time.Second; {
						o := h.line()
						if o.text("type") != "ping" {
							t.Fatalf("%d: %v", i, o)
						}
						if late := time.Since(last); late > 1500*time.Millisecond {
							t.Errorf("%d: a ping after %s", i, late)
						}
						last = time.Now()
					}
				}
				began := time.Now()
				if o := h.until("lock-lost"); o.text("code") != "AUTH_UNAVAILABLE" || time.Since(began) > rightsGrace {
					t.Errorf("%v after %s", o, time.Since(began))
				}
				h.ended()
				time.Sleep(4 * time.Second) // the lease runs out
				a.wantState(key, joblock.StateFree)
				if !strings.Contains(a.log.String(), "could not look up a caller's rights again") {
					t.Error("the log does not tell")
				}
			})
		})
	}
}

// The rights are looked up once more before a lock is granted to a caller who has waited. The time which that takes is no
// time of the lock.
func TestAuthorizerThatIsSlowAfterAWait(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var slow atomic.Bool
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
				if slow.Load() && r.URL.Path == "/v1/acquire" {
					time.Sleep(1500 * time.Millisecond)
				}
				return Principal{ID: "x", Scopes: ScopeLock, AllKeys: true, AllQueues: true}, nil
			})
		})
		token := a.post("/v1/acquire", object{"key": key, "ttl_ms": 60_000}).ok().text("token")
		got, began := make(chan object), time.Now()
		go func() { got <- a.post("/v1/acquire", object{"key": key, "ttl_ms": 5000, "wait_ms": 9000}).ok() }()
		time.Sleep(5 * time.Second)
		released := time.Now()
		slow.Store(true)
		a.post("/v1/release", object{"token": token}).ok()
		o := <-got
		trust := began.Add(time.Duration(o.number("elapsed_ms")+o.number("valid_ms")) * time.Millisecond)
		if o.number("elapsed_ms") < 6000 || trust.After(released.Add(5*time.Second)) {
			t.Errorf("the client relies on its lock until %s after the grant of 5 s: %v", trust.Sub(released), o)
		}
	})
}

// Unknown callers at one address are refused with 429 when they come too often. Callers who are known are let in all
// the same, and other addresses are not concerned.
func TestAttempts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path, token := accountsFile(t, `"scopes": ["lock"]`)
		a := newReplica(t, store(), withAccounts(t, path))
		ask := func(remote, bearer string) *reply {
			r, sent := a.request(t.Context(), http.MethodGet, "/v1/me", nil)
			r.RemoteAddr = remote
			r.Header.Set("Authorization", "Bearer "+bearer)
			return a.serve(r, sent)
		}
		const one, other = "192.0.2.1:5", "192.0.2.2:5"
		for range attemptBurst {
			ask(one, "jl_billing_x").refused(http.StatusUnauthorized, "AUTH_REQUIRED")
		}
		p := ask(one, "jl_nobody_x")
		p.refused(http.StatusTooManyRequests, "RATE_LIMITED")
		if p.header.Get("Retry-After") != "1" {
			t.Errorf("%v", p.header)
		}
		ask("[::ffff:192.0.2.1]:9", "jl_nobody_x").refused(http.StatusTooManyRequests, "RATE_LIMITED")
		ask(one, token).ok()
		ask(other, "jl_nobody_x").refused(http.StatusUnauthorized, "AUTH_REQUIRED")
		time.Sleep(time.Second)
		for range attemptRate {
			ask(one, "jl_nobody_x").refused(http.StatusUnauthorized, "AUTH_REQUIRED")
		}
		ask(one, "jl_nobody_x").refused(http.StatusTooManyRequests, "RATE_LIMITED")
		// However many addresses there are, the table has its bound.
		for i := range 2 * maxAddresses {
			a.s.attempts.failed(fmt.Sprintf("[2001:db8:%x:%x::1]:5", i>>16, i&0xffff))
		}
		if n := len(a.s.attempts.of); n > maxAddresses {
			t.Errorf("%d addresses are remembered", n)
		}
		ask("[2001:db8:ffff::1]:5", "jl_nobody_x").refused(http.StatusTooManyRequests, "RATE_LIMITED")
		ask("[2001:db8:ffff::1]:5", token).ok()
		time.Sleep(time.Minute)
		ask("[2001:db8:ffff::1]:5", "jl_nobody_x").refused(http.StatusUnauthorized, "AUTH_REQUIRED")
		if n := len(a.s.attempts.of); n > 10 {
			t.Errorf("%d addresses are remembered", n)
		}
	})
}

func TestAddressOf(t *testing.T) {
	for remote, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1", "[2001:db8:1:2:3::4]:80": "2001:db8:1:2::", "[fe80::1%eth0]:80": "fe80::",
		"[::ffff:192.0.2.1]:80": "192.0.2.1", "@": "invalid IP", "": "invalid IP", "pipe": "invalid IP",
	} {
		if got := addressOf(remote).String(); got != want {
			t.Errorf("%q: %s, want %s", remote, got, want)
		}
	}
}

// A page of a web site takes no lock through its visitor's browser.
func TestSites(t *testing.T) {
	evil := "http://evil.example"
	for name, c := range map[string]struct {
		hosts  []string
		anyone bool
		host   string
		header map[string]string
		method string
		status int
	}{
		"localhost":                     {anyone: true, host: "localhost:8080", status: 200},
		"LOCALHOST":                     {anyone: true, host: "LocalHost", status: 200},
		"127.0.0.1":                     {anyone: true, host: "127.0.0.1:8080", status: 200},
		"IPv6":                          {anyone: true, host: "[::1]:8080", status: 200},
		"IPv6 without a port":           {anyone: true, host: "[::1]", status: 200},
		"no host":                       {anyone: true, host: "", status: 200},
		"rebinding":                     {anyone: true, host: "evil.example:8080", header: map[string]string{"Origin": evil + ":8080", "Sec-Fetch-Site": "same-origin"}, status: 421},
		"another address":               {anyone: true, host: "192.0.2.1", status: 421},
		"a name that begins so":         {anyone: true, host: "localhost.evil.example", status: 421},
		"a name that ends so":           {anyone: true, host: "evil.localhost", status: 421},
		"configured":                    {hosts: []string{"locks.internal"}, anyone: true, host: "locks.internal:443", status: 200},
		"not configured":                {hosts: []string{"locks.internal"}, anyone: true, host: "localhost", status: 421},
		"all":                           {hosts: []string{"*"}, anyone: true, host: "evil.example", status: 200},
		"accounts":                      {host: "evil.example", status: 200},
		"accounts, configured":          {hosts: []string{"locks.internal"}, host: "evil.example", status: 421},
		"another site":                  {anyone: true, host: "localhost", header: map[string]string{"Sec-Fetch-Site": "cross-site"}, status: 403},
		"another origin":                {anyone: true, host: "localhost", header: map[string]string{"Origin": evil}, status: 403},
		"another origin reads":          {anyone: true, host: "localhost", header: map[string]string{"Origin": evil}, method: "GET", status: 200},
		"another origin, with a token":  {host: "localhost", header: map[string]string{"Origin": evil, "Authorization": "Bearer x"}, status: 200},
		"another origin, a certificate": {host: "localhost", header: map[string]string{"Origin": evil}, status: 403},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				a := newReplica(t, store(), func(cfg *Config) {
					if cfg.Hosts = c.hosts; !c.anyone {
						cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) {
							return Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, nil
						})
					}
				})
				method, path, body := http.MethodPost, "/v1/acquire", any(object{"key": key})
				if c.method != "" {
					method, path, body = c.method, "/v1/me", nil
				}
				r, sent := a.request(t.Context(), method, path, body)
				r.Host = c.host
				for name, value := range c.header {
					r.Header.Set(name, value)
				}
				got := a.serve(r, sent)
				if got.status != c.status {
					t.Errorf("%d %s, want %d", got.status, got.text, c.status)
				}
				if c.status == http.StatusMisdirectedRequest {
					got.refused(c.status, "HOST_UNKNOWN")
				}
				if c.status != http.StatusOK {
					a.wantState(key, joblock.StateFree)
				}
				// Answers that reveal nothing are open to all: probes ask for these addresses.
				r, sent = a.request(t.Context(), http.MethodGet, "/healthz", nil)
				r.Host = c.host
				a.serve(r, sent).ok()
			})
		})
	}
}

// A name that may be a token, or that a terminal would obey, is not repeated.
func TestNamesOfParameters(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		token := a.post("/v1/acquire", object{"key": "k", "ttl_ms": 9000}).ok().text("token")
		for _, path := range []string{"/v1/locks?", "/v1/jobs?", "/v1/lock?key=x&"} {
			r := a.get(path + url.QueryEscape(token) + "=1")
			r.refused(http.StatusBadRequest, "REQUEST_INVALID")
			if strings.Contains(string(r.text), token[:21]) {
				t.Errorf("%s", r.text)
			}
			if p := a.get(path+"%1b%5b2J%0aa=1").refused(http.StatusBadRequest, "REQUEST_INVALID"); strings.ContainsAny(p.text("detail"), "\x1b\n") {
				t.Errorf("%v", p)
			}
			if p := a.get(path+strings.Repeat("x", 5000)+"=1").refused(http.StatusBadRequest, "REQUEST_INVALID"); !strings.Contains(p.text("detail"), "of 5000 bytes") {
				t.Errorf("%v", p)
			}
		}
		a.wantNoSecrets(token)
	})
}

// However often anybody asks whether the server is ready, the store is asked ten times a second at most.
func TestReadyzAsksTheStoreSeldom(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		before := a.store.Calls(faultstore.Inspect)
		for range 100 {
			a.get("/readyz").ok()
		}
		if n := a.store.Calls(faultstore.Inspect) - before; n != 1 {
			t.Errorf("the store was asked %d times", n)
		}
		a.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Inspect)
		time.Sleep(readyFor)
		a.get("/readyz").refused(http.StatusServiceUnavailable, "LOCK_UNAVAILABLE")
		a.store.Clear()
		time.Sleep(readyFor)
		a.get("/readyz").ok()
	})
}
