package compat

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/server"
)

// A replica is a Server on a Locker of its own.
type replica struct {
	*testing.T
	s     *server.Server
	locks *joblock.Locker
	store *faultstore.Store
	log   *testkit.Log
}

func newReplica(t *testing.T, store driver.Store, change ...func(*server.Config)) *replica {
	t.Helper()
	a := &replica{T: t, store: faultstore.New(store), log: &testkit.Log{}}
	var err error
	a.locks, err = joblock.New(a.store, &joblock.Config{Holder: "server", Logger: a.log.JSON()})
	testkit.WantNil(t, "New", err)
	cfg := server.Config{Locks: a.locks, Authorize: server.Anyone(), Hosts: []string{"*"}, Logger: a.log.JSON(), MaxWait: time.Minute}
	for _, f := range change {
		f(&cfg)
	}
	a.s, err = server.New(cfg)
	testkit.WantNil(t, "New", err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		testkit.WantNil(t, "Close", a.s.Close(ctx))
		testkit.WantNil(t, "Close of the Locker", a.locks.Close(ctx))
	})
	return a
}

// wantState fails the test unless the key is in a state, and returns its status.
func (a *replica) wantState(key string, want joblock.State) joblock.Status {
	a.Helper()
	st := a.status(key)
	if st.State != want {
		a.Errorf("%s is %s, want %s: %+v", key, st.State, want, st)
	}
	return st
}

func (a *replica) status(key string) joblock.Status {
	a.Helper()
	st, err := a.locks.Status(context.Background(), key)
	testkit.WantNil(a, "Status", err)
	return st[0]
}

// eachStore runs f in virtual time, on memstore and on miniredis. The function peer returns another store with the same
// locks.
func eachStore(t *testing.T, f func(t *testing.T, peer func() driver.Store)) {
	t.Run("memstore", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			one := memoryStore()
			f(t, func() driver.Store { return shared{one} })
		})
	})
	t.Run("miniredis", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			mini := redistest.Mini(t)
			f(t, func() driver.Store { return testkit.Must(redisstore.New(redistest.MiniClient(t, mini), nil)) })
			redistest.Ran(t, redistest.MiniBackend())
		})
	})
}

// bubble runs f in virtual time, on memstore.
func bubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// shared is a store that no Locker closes.
type shared struct{ driver.Store }

func (shared) Close() error { return nil }

func memoryStore() driver.Store { return memstore.New(&memstore.Config{Silent: true}) }

// audited returns what makes a replica record the actions of operators.
func audited(t *testing.T) (*miniredis.Miniredis, func(*server.Config)) {
	t.Helper()
	mini := redistest.Mini(t)
	rdb := redistest.MiniClient(t, mini)
	return mini, func(cfg *server.Config) { cfg.Redis = rdb }
}

// mounted returns the handler of another lock API.
func mounted(t testing.TB) func(http.Handler, error) http.Handler {
	t.Helper()
	return func(h http.Handler, err error) http.Handler {
		t.Helper()
		testkit.WantNil(t, "the handler of another lock API", err)
		return h
	}
}

// A reply is an answer, read to its end.
type reply struct {
	*testing.T
	status int
	header http.Header
	text   []byte
}

// ok ends the test unless the status is 200 or 201, and returns the object of the answer.
func (r *reply) ok() object {
	r.Helper()
	if r.status != http.StatusOK && r.status != http.StatusCreated {
		r.Fatalf("%d: %s", r.status, r.text)
	}
	return r.object()
}

func (r *reply) object() object {
	r.Helper()
	var o object
	if err := json.Unmarshal(r.text, &o); err != nil {
		r.Fatalf("%v in %s", err, r.text)
	}
	return o
}

type object map[string]any

func (o object) text(name string) string { s, _ := o[name].(string); return s }
func (o object) flag(name string) bool   { b, _ := o[name].(bool); return b }

// wantNoSecrets fails the test if the log or an answer has one of the tokens.
func (a *replica) wantNoSecrets(secrets ...string) {
	a.Helper()
	for _, s := range secrets {
		if s != "" && strings.Contains(a.log.String(), s) {
			a.Errorf("the log has the secret %s:\n%s", s, a.log.String())
		}
	}
}

const (
	// hang bounds what must happen but has no time of its own.
	hang = 30 * time.Second

	// recheckEvery is how often a server looks rights up again.
	recheckEvery = 10 * time.Second
)

func sprint(v ...any) string { return fmt.Sprint(v...) }
