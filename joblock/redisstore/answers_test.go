package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// What a server answers that cannot serve the call now: while it loads its data, after
// it became a replica, in a cluster that is broken or moves slots, and so on.
var notNow = []string{
	"LOADING Redis is loading the dataset in memory",
	"READONLY You can't write against a read only replica.",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"CLUSTERDOWN The cluster is down",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"NOREPLICAS Not enough good replicas to write.",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"ERR max number of clients reached",
}

// Such an answer says nothing about the lock: no call takes it for a refusal, and a
// lock that is held, one that is waited for and one that is to be released go on when
// the server serves again.
func TestAnswersOfAServerThatCannotServe(t *testing.T) {
	t.Parallel()
	db := redistest.Shared(t)
	redistest.Ran(t, db.Backend())
	proxy := redistest.NewProxy(t, db.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr(), DB: db.Number(), MaxRetryBackoff: time.Millisecond})
	t.Cleanup(func() { rdb.Close() })
	// With so long a lease it is no lease's end that helps. For calls without a script see TestNativeCallsAreRefused.
	locks := newLockerOn(t, must(newStore(rdb, &Config{ScriptsOnly: true})), &joblock.Config{TTL: time.Hour})
	others := newLocker(t, db.Client(t), nil)
	scripts := redistest.Named("evalsha", "eval")
	for _, text := range notNow {
		name, _, _ := strings.Cut(strings.TrimPrefix(text, "ERR "), " ")
		t.Run(name, func(t *testing.T) {
			held, err := locks.TryAcquire(t.Context(), name+" held")
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := held.Context(t.Context())
			defer stop()

			fault := proxy.Always(scripts, redistest.Fail(text))
			_, err = locks.TryAcquire(t.Context(), name+" free")
			wantUnavailable(t, "TryAcquire", err, name)
			wantUnavailable(t, "TryAcquire", err, "call refused")
			for range 10 { // as with renew, it may be the time that was up
				if err = held.Renew(t.Context()); err != nil && strings.Contains(err.Error(), name) {
					break
				}
			}
			wantUnavailable(t, "Renew", err, name)
			_, err = held.Park(t.Context())
			wantUnavailable(t, "Park", err, name)
			wantUnavailable(t, "Park", err, "call refused")
			_, err = testkit.One(locks.Status(t.Context(), name+" held"))
			wantUnavailable(t, "Status", err, name)
			if err := held.Err(); err != nil || ctx.Err() != nil {
				t.Errorf("held: %v, %v", err, ctx.Err())
			}
			if fault.Hits() < 4 {
				t.Errorf("the answer was given %d times", fault.Hits())
			}
			proxy.Heal()
			if err := renew(held); err != nil {
				t.Errorf("renew: %v", err)
			}

			// The wait begins before the server serves again.
			waits := proxy.Times(5, redistest.All(scripts, redistest.Mentioning("waited")), redistest.Fail(text))
			waited, err := locks.Acquire(t.Context(), name+" waited", joblock.MaxWait(time.Minute))
			if err != nil || waits.Hits() != 5 {
				t.Fatalf("acquire after %d answers: %v", waits.Hits(), err)
			}
			// The release is repeated until it is answered.
			ends := proxy.Times(5, redistest.All(scripts, redistest.Mentioning("waited")), redistest.Fail(text))
			if err := waited.Release(t.Context()); err != nil {
				wantUnavailable(t, "Release", err, name)
			}
			next, err := others.Acquire(t.Context(), name+" waited", joblock.MaxWait(time.Minute))
			if err != nil {
				t.Fatalf("the next, %d answers later: %v", ends.Hits(), err)
			}
			if ends.Hits() != 5 || next.Fence() <= waited.Fence() {
				t.Errorf("%d answers until the release; fence %d after %d", ends.Hits(), next.Fence(), waited.Fence())
			}
			if err := errors.Join(held.Release(t.Context()), next.Release(t.Context())); err != nil {
				t.Errorf("release: %v", err)
			}
		})
	}
}

// An error says that the server has refused the call, if its answer proves that nothing was done. The texts of scripts are
// those of a server.
func TestAnswersThatProveThatNothingWasDone(t *testing.T) {
	const inScript = " script: 24ca87aacd64aad36055ebbb1ff765e431b37aaf, on @user_script:1."
	answers := map[string]bool{
		"OOM command not allowed when used memory > 'maxmemory'." + inScript:                                        true,
		"NOREPLICAS Not enough good replicas to write." + inScript:                                                  true,
		"READONLY You can't write against a read only replica." + inScript:                                          true,
		"NOAUTH Authentication required.":                                                                           true,
		"WRONGPASS invalid username-password pair or user is disabled.":                                             true,
		"NOPERM this user has no permissions to run the 'evalsha' command":                                          true,
		"NOPERM this user has no permissions to access one of the keys used as arguments":                           true,
		"ERR unknown command 'evalsha'":                                                                             true,
		"MOVED 3999 127.0.0.1:6381":                                                                                 true,
		"CROSSSLOT Keys in request don't hash to the same slot":                                                     true,
		"ERR The user executing the script can't run this command or subcommand" + inScript:                         false, // may follow a write
		"NOPERM this user has no permissions to run the 'pexpire' command" + inScript:                               false,
		"ERR user_script:1: attempt to compare nil with number" + inScript:                                          false,
		"WRONGTYPE Operation against a key holding the wrong kind of value" + inScript:                              false,
		"ERR Error running script (call to f_24ca): @user_script:1: user_script: 1: OOM is a word in another error": false,
	}
	for _, text := range notNow {
		answers[text] = true
	}
	for text, want := range answers {
		err := refused(serverError(text))
		if errors.Is(err, driver.ErrRefused) != want {
			t.Errorf("%q proves that nothing was done: %t, want %t", text, !want, want)
		}
		if err.Error() != text || !redis.HasErrorPrefix(err, text[:3]) && !strings.HasPrefix(text, "ERR") {
			t.Errorf("%q became %v", text, err)
		}
	}
	for _, err := range []error{nil, io.EOF, context.DeadlineExceeded, &net.OpError{Op: "dial", Err: errors.New("OOM ")}} {
		if got := refused(err); got != err {
			t.Errorf("%v became %v", err, got)
		}
	}
}

// The error of a batch leaves the outcome unknown if that of one of its items is unknown.
func TestErrorOfABatchThatIsRefusedInPart(t *testing.T) {
	oom, readonly := refused(serverError("OOM ")), refused(serverError("READONLY "))
	for _, c := range []struct{ errs, want []error }{
		{[]error{nil, nil}, []error{nil}},
		{[]error{nil, oom, readonly}, []error{oom}},
		{[]error{oom, io.EOF, readonly, io.ErrUnexpectedEOF}, []error{io.EOF}},
		{[]error{io.EOF, oom}, []error{io.EOF}},
	} {
		if got := firstError(c.errs...); got != c.want[0] {
			t.Errorf("of %v: %v, want %v", c.errs, got, c.want[0])
		}
	}
	sc, reqs := releaseScript, []driver.ReleaseRequest{{}, {}, {}}
	rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:0"})
	t.Cleanup(func() { rdb.Close() })
	rdb.AddHook(answering{serverError("OOM "), io.EOF, serverError("OOM ")})
	s := must(newStore(rdb, nil))
	t.Cleanup(func() { s.Close() })
	replies, _, err := batch(t.Context(), s, s.calls, sc, reqs, func(*driver.ReleaseRequest) *scriptCall { return newCall(sc, "key") })
	if err != io.EOF || len(replies) != 3 {
		t.Errorf("%d replies, error %v, want that of the call without an answer", len(replies), err)
	}
}

// answering is a hook that answers the commands of a pipeline with these errors.
type answering []error

func (a answering) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (a answering) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (a answering) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for i, cmd := range cmds {
			cmd.SetErr(a[i])
		}
		return a[0]
	}
}
