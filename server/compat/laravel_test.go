package compat

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/joblock/singleflight"
	"github.com/joblock/toolkit/worker"
)

// The document describes classes in PHP. Each example is served by the package that has the same task, and does what the
// document says.
func TestLaravelExamples(t *testing.T) {
	bubble(t, func(t *testing.T) {
		mini := redistest.Mini(t)
		redistest.Ran(t, redistest.MiniBackend())
		rdb := redistest.MiniClient(t, mini)
		quiet := slog.New(slog.DiscardHandler)
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Logger: quiet})
		testkit.WantNil(t, "New", err)
		inspector := asynq.NewInspectorFromRedisClient(rdb)
		jobs, err := handoff.NewClient(locks, asynq.NewClientFromRedisClient(rdb), inspector, &handoff.Config{Logger: quiet})
		testkit.WantNil(t, "NewClient", err)
		defer func() {
			testkit.WantNil(t, "Close", jobs.Close(context.Background()))
			testkit.WantNil(t, "Close", locks.Close(context.Background()))
		}()
		v := newVisitor(t, nil, "laravel.txt")
		state := func(key string) joblock.State {
			st, err := locks.Status(t.Context(), key)
			testkit.WantNil(t, "Status", err)
			return st[0].State
		}
		// note adds a row, and fails the test if something else has happened than the document says.
		note := func(section, served, says string, happened bool, answered string) {
			t.Helper()
			v.example(section)
			if !happened {
				t.Errorf("%s: %s, the document says: %s", section, answered, says)
			}
			v.note(section, served, says, 0, answered)
		}

		// The two controllers of the document.
		message := regexp.MustCompile(`"message": "([^"]+)"`).FindStringSubmatch(v.example("7. Error Response"))[1]
		middleware := func(claim func(*http.Request) (handoff.Claim, error)) func(http.Handler) http.Handler {
			return (&handoff.Guard{Locks: locks, Logger: quiet, OnRefusal: func(w http.ResponseWriter, r *http.Request, f handoff.Refusal) {
				f.Message = message
				f.ServeHTTP(w, r)
			}}).Middleware(claim)
		}
		persons := func(r *http.Request) (handoff.Claim, error) {
			if r.Method != http.MethodPost {
				return handoff.Claim{NoLock: true}, nil
			}
			return handoff.Claim{Key: joblock.Key("PersonCreation", r.PathValue("household")), TTL: time.Minute}, nil
		}
		categories := func(r *http.Request) (handoff.Claim, error) {
			switch r.Method {
			case http.MethodPost, http.MethodPut, http.MethodDelete:
				return handoff.Claim{Key: joblock.Key("CategoryModification", r.PathValue("organization")), TTL: time.Minute}, nil
			}
			return handoff.Claim{NoLock: true}, nil
		}
		inside := make(chan *http.Request)
		leave := make(chan struct{})
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Panic") != "" {
				panic("on purpose")
			}
			if r.Header.Get("Wait") != "" {
				inside <- r
				<-leave
			}
			w.WriteHeader(http.StatusCreated)
		})
		mux := http.NewServeMux()
		mux.Handle("/households/{household}/persons", middleware(persons)(handler))
		mux.Handle("/organizations/{organization}/categories", middleware(categories)(handler))
		v.h = mux
		for _, c := range []struct{ section, path, key, locking string }{
			{"4. Example: PersonController", "/households/7/persons", "PersonCreation:7", "POST"},
			{"4. Example: CategoryController", "/organizations/7/categories", "CategoryModification:7", "POST PUT DELETE"},
		} {
			for _, method := range []string{"GET", "POST", "PUT", "DELETE"} {
				if strings.Contains(v.example(c.section), "METHOD_"+method) != strings.Contains(c.locking, method) {
					t.Errorf("%s: %s", c.section, method)
				}
				over := make(chan *httptest.ResponseRecorder)
				go func() { over <- v.send(method, c.path, http.Header{"Wait": {"1"}}, "") }()
				r := <-inside
				lock, has := joblock.FromContext(r.Context())
				if !strings.Contains(c.locking, method) {
					leave <- struct{}{}
					w := <-over
					note(c.section, method+" "+c.path, "no lock for this method", !has && w.Code == 201, sprint(w.Code, " without a lock"))
					continue
				}
				second := v.send(method, c.path, nil, "")
				note(c.section, method+" "+c.path, "lock:"+c.key+" for a minute; a second request fails", has && lock.Key() == c.key && second.Code == 429, sprint("runs under ", lock.Key(), "; the second: ", second.Code))
				if method == "POST" && c.key == "PersonCreation:7" {
					wantFields(t, "7. Error Response", second.Body.String(), `{"message":"`+message+`"}`)
					note("7. Error Response", "a second "+method+" "+c.path, "429 Too Many Requests, `Retry-After: {lock_seconds}`, `{ \"message\": \""+message+"\"}`",
						second.Header().Get("Retry-After") == "60", sprint(second.Code, ", Retry-After: ", second.Header().Get("Retry-After"), " ", strings.TrimSpace(second.Body.String())))
					note("9. Context Integration", "lock, ok := joblock.FromContext(r.Context())", "Context::getHttpRequestLock() returns the lock", has, lock.Key())
					kept := handoff.Keep(r.Context(), lock)
					leave <- struct{}{}
					<-over
					note("9. Context Integration", "handoff.Keep(r.Context(), lock)", "cancelReleaseOnHttpResponse(): no release after the response", kept && state(c.key) == joblock.StateHeld, state(c.key).String())
					err := lock.Release(t.Context())
					note("11. Release Strategies", "lock.Release(ctx)", "$lock->release()", err == nil && state(c.key) == joblock.StateFree, state(c.key).String())
					continue
				}
				leave <- struct{}{}
				w := <-over
				note("11. Release Strategies", method+" "+c.path, "released with the response, the default", w.Code == 201 && state(c.key) == joblock.StateFree, sprint(w.Code, ", then ", state(c.key)))
			}
		}
		v.example("1. LockRequestInterface, Interface Definition")
		v.note("1. LockRequestInterface, Interface Definition", "func(r *http.Request) (handoff.Claim, error)", "getLockOnRequest(Request) names the lock of a request", 0, "as for the two controllers: the route passes its function to handoff.Middleware")
		note("1. LockRequestInterface, Key Behavior", "handoff.Claim{NoLock: true}", "null: no lock is needed", v.send("GET", "/households/7/persons", nil, "").Code == 201, "201 without a lock")
		func() {
			defer func() { _ = recover() }()
			v.send("POST", "/households/7/persons", http.Header{"Panic": {"1"}}, "")
		}()
		note("5. LockRequestMiddleware, Key Behavior", "POST /households/7/persons; the handler panics", "finally: release ALL locks", state("PersonCreation:7") == joblock.StateFree, state("PersonCreation:7").String())

		// A wait.
		busy, err := locks.Acquire(t.Context(), "k")
		testkit.WantNil(t, "Acquire", err)
		_, err = locks.Acquire(t.Context(), "k", joblock.TTL(time.Minute), joblock.MaxWait(2*time.Second))
		note("2. DistributedLock, Key Methods", "locks.Acquire(ctx, key, joblock.TTL(minute), joblock.MaxWait(2 s))", "make(key, seconds)->maxWait(2)->acquireOrFail(): an exception after 2 s", errors.Is(err, joblock.ErrTimeout), joblock.CodeOf(err))
		testkit.WantNil(t, "Release", busy.Release(t.Context()))

		// One computation for all.
		computed, results := 0, make(chan string, 5)
		for range 5 {
			go func() {
				got, err := singleflight.Do(t.Context(), locks, "flight", time.Minute, func(context.Context) (string, error) {
					computed++ // under the lock
					time.Sleep(time.Second)
					return "rates", nil
				})
				results <- got + sprint(err)
			}()
		}
		same := true
		for range 5 {
			same = <-results == "rates<nil>" && same
		}
		note("2. SingleFlight Pattern", "singleflight.Do(ctx, locks, key, ttl, fn), five times at once", "one execution even with concurrent requests", same && computed == 1, sprint(computed, " execution, 5 equal results"))

		// Keys.
		for _, p := range regexp.MustCompile(`lock:(\w+):\{(\w+)\}(?::\{(\w+)\})?`).FindAllStringSubmatch(v.example("3. Lock Key Patterns"), -1) {
			parts, goCode := []string{p[1], "7"}, `joblock.Key("`+p[1]+`", `+p[2]
			want := p[1] + ":7"
			if p[3] != "" {
				parts, goCode, want = append(parts, "8"), goCode+", "+p[3], want+":8"
			}
			note("3. Lock Key Patterns", goCode+")", "`"+p[0]+"`", joblock.Key(parts...) == want, want)
		}
		prefixed, err := joblock.New(testkit.Must(redisstore.New(redistest.MiniClient(t, mini), &redisstore.Config{Prefix: "lock:"})), &joblock.Config{Logger: quiet})
		testkit.WantNil(t, "New", err)
		_, err = prefixed.Acquire(t.Context(), "PersonCreation:7")
		testkit.WantNil(t, "Acquire", err)
		found := slices.DeleteFunc(mini.Keys(), func(key string) bool { return !strings.HasPrefix(key, "lock:") })
		note("3. Lock Key Patterns", `redisstore.Config{Prefix: "lock:"}`, "LOCK_KEY_PREFIX = 'lock:'", len(found) == 1, strings.Join(found, " "))
		testkit.WantNil(t, "Close", prefixed.Close(t.Context()))

		// A lock that a job gets.
		attempts := make(chan error)
		w, err := worker.New(locks, inspector, &worker.Config{Logger: quiet})
		testkit.WantNil(t, "worker.New", err)
		tasks := asynq.NewServeMux()
		tasks.Use(w.Middleware)
		tasks.HandleFunc("import", func(ctx context.Context, _ *asynq.Task) error { return <-attempts })
		as := asynq.NewServerFromRedisClient(rdb, w.Configure(asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel}))
		testkit.WantNil(t, "Start", as.Start(tasks))
		defer func() {
			as.Shutdown()
			testkit.WantNil(t, "Close", w.Close(context.Background()))
		}()
		for _, c := range []struct {
			how string
			err error
		}{{"is processed", nil}, {"has failed for good", asynq.SkipRetry}} {
			lock, err := locks.Acquire(t.Context(), "job")
			testkit.WantNil(t, "Acquire", err)
			_, err = jobs.Enqueue(t.Context(), handoff.Carry(lock), asynq.NewTask("import", nil))
			testkit.WantNil(t, "Enqueue", err)
			_, refused := locks.TryAcquire(t.Context(), "job")
			attempts <- c.err
			for range 100 {
				if synctest.Wait(); state("job") == joblock.StateFree {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			note("11. Release Strategies", "jobs.Enqueue(ctx, handoff.Carry(lock), task); the job "+c.how, "releaseOnJobProcessedOrFailed(): held until then",
				errors.Is(refused, joblock.ErrHeld) && state("job") == joblock.StateFree, "held, then "+state("job").String())
		}
		lock, err := locks.Acquire(t.Context(), "carried")
		testkit.WantNil(t, "Acquire", err)
		parked, err := lock.Park(t.Context())
		testkit.WantNil(t, "Park", err)
		text, err := parked.MarshalText()
		testkit.WantNil(t, "MarshalText", err)
		var token joblock.Token
		testkit.WantNil(t, "UnmarshalText", token.UnmarshalText(text))
		again, err := locks.Resume(t.Context(), token)
		testkit.WantNil(t, "Resume", err)
		note("10. Serialization Support", "lock.Park(ctx), then locks.Resume(ctx, token) from the token's text", "a lock can be passed to a job and released later", again.Release(t.Context()) == nil, "resumed and released")
		v.done("laravel")
	})
}
