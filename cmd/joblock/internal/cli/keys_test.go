package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// lookers are the commands that look at locks, each with the arguments of a call that asks Redis.
var lookers = map[string][]string{
	"ls": nil, "get": {key1}, "waiters": {key1}, "permits": {key1}, "explain": {key1}, "watch": {"--for", "1h", key1}, "top": nil,
	"audit": nil, "events": nil, "history": {key1},
}

const key1 = "export:acct-7"

func TestHelpOfTheLookers(t *testing.T) {
	for name := range lookers {
		r := call(name, "--help")
		for _, want := range []string{"Usage:\n  joblock " + name, "Exit codes:", "Examples:\n  joblock " + name, "--output FORMAT", "--timeout"} {
			if r.code != exitOK || !strings.Contains(r.stdout, want) {
				t.Errorf("joblock %s --help ended with %d, want %q in:\n%s", name, r.code, want, r.stdout)
			}
		}
		for line := range strings.Lines(r.stdout) {
			if len([]rune(line)) > 230 {
				t.Errorf("joblock %s --help has a line of %d characters: %s", name, len([]rune(line)), line)
			}
		}
	}
	root := call("--help").stdout
	for name := range lookers {
		if !strings.Contains(root, "\n  "+name+" ") {
			t.Errorf("joblock --help does not list %s", name)
		}
	}
}

func TestWrongUsageOfTheLookers(t *testing.T) {
	for _, tc := range []struct {
		args, says string
	}{
		{"ls a b", "one argument too many"},
		{"ls --state red", "must be one of held, parked"},
		{"ls --older -1s", "--older is -1s"},
		{"ls --waiters -1", "--waiters is -1"},
		{"ls --share 0", "--share is 0"},
		{"ls --share NaN", "--share is NaN"},
		{"ls --sort colour", "must be one of age"},
		{"ls --limit -1", "--limit is -1"},
		{"ls -o yaml", "must be one of table"},
		{"ls --time noon", "must be one of relative"},
		{"ls --color red", "must be one of auto"},
		{"ls --colour", "unknown flag"},
		{"get", "KEY is missing"},
		{"get a b", "one argument too many"},
		{"waiters", "KEY is missing"},
		{"waiters a --limit -1", "--limit is -1"},
		{"permits", "KEY is missing"},
		{"permits a --limit 257", "257"},
		{"permits a --limit -1", "-1"},
		{"explain", "KEY is missing"},
		{"watch --interval 1ms", "at least 100ms"},
		{"watch --for -1s", "must not be negative"},
		{"watch --until busy a", "must be one of free"},
		{"watch --until free", "exactly one KEY"},
		{"watch --until free a b", "exactly one KEY"},
		{"watch --under a b", "exclude each other"},
		{"watch --share 1 a", "--share makes no sense with KEY"},
		{"watch" + strings.Repeat(" k", 101), "at most 100"},
		{"top --interval 0s", "at least 100ms"},
		{"top --limit 0", "at least 1"},
		{"top a b", "one argument too many"},
		{"ls --timeout 0s", "--timeout is 0s"},
		{"ls --redis http://a", "begins with"},
	} {
		if r := call(strings.Fields(tc.args)...); r.code != exitUsage || !strings.Contains(r.stderr, tc.says) || r.stdout != "" {
			t.Errorf("joblock %s ended with %d, said %q and printed %q, want 64 and %q", tc.args, r.code, r.stderr, r.stdout, tc.says)
		}
	}
}

// While Redis is silent, cut off or absent, every command ends in time with 69 and prints no data.
func TestLookersWhileRedisIsAway(t *testing.T) {
	redis := redistest.Start(t)
	silent, absent := redistest.NewProxy(t, redis.Addr()), redistest.NewProxy(t, redis.Addr())
	silent.BlackHole()
	absent.Refuse()
	for state, addr := range map[string]string{"silent": silent.Addr(), "absent": absent.Addr()} {
		for name, args := range lookers {
			t.Run(state+"/"+name, func(t *testing.T) {
				t.Parallel()
				for _, format := range []string{"table", "json"} {
					began := time.Now()
					r := call(append([]string{name, "--timeout", "300ms", "--redis", "redis://" + addr, "-o", format}, args...)...)
					if r.code != exitUnavailable || strings.Count(r.stderr, "\n") != 1 || json.Valid([]byte(r.stdout)) {
						t.Errorf("ended with %d, said %q, printed %q", r.code, r.stderr, r.stdout)
					}
					want := "joblock: no answer from Redis at " + addr + ": " // and why, at once
					if state == "silent" {
						want = "joblock: no answer from Redis at " + addr + " within 300ms (--timeout)\n"
					}
					if !strings.HasPrefix(r.stderr, want) {
						t.Errorf("said %q, want %q", r.stderr, want)
					}
					if took := time.Since(began); took > time.Minute {
						t.Errorf("took %s", took)
					}
				}
			})
		}
	}
}

// Commands that take or change a lock end within --timeout, although package joblock ends a call up to an eighth late and
// cleans up afterwards.
func TestTimeoutIsDivided(t *testing.T) {
	t.Parallel()
	for _, timeout := range []time.Duration{time.Second, 3 * time.Second, time.Hour} {
		s := server{timeout: timeout}
		if most := s.callTimeout()*9/8 + s.cleanUp(); most > timeout || most < timeout*9/10 {
			t.Errorf("--timeout %s: a call ends within %s, and the clean-up within %s", timeout, s.callTimeout()*9/8, s.cleanUp())
		}
	}
	if s := (server{timeout: time.Millisecond}); s.callTimeout() != time.Millisecond {
		t.Errorf("--timeout 1ms: %s", s.callTimeout())
	}
}

// Whatever a command does, the line about a Redis that is silent says how long joblock has waited, and what may have
// happened. It has no more lines than one.
func TestWordsAboutASilentRedis(t *testing.T) {
	s := &server{url: "redis://db-1:7000/2", timeout: 3 * time.Second}
	silent := func(op string, cause error) error {
		return &joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: op, Key: "k", Err: errors.Join(cause, context.DeadlineExceeded)}
	}
	const at = "no answer from Redis at db-1:7000/2"
	late := &exitError{exitUnavailable, errors.New("not done within 6s")}
	for _, c := range []struct {
		cmd  string
		err  error
		want string
	}{
		{"get", silent("status", errSilent), at + " within 3s (--timeout)"},
		{"get", silent("status", nil), at + " within 3s (--timeout)"},
		{"release", silent("release", nil), at + " within 3s (--timeout); whether the call took effect is unknown"},
		{"force-release", silent("force release", errSilent), at + " within 3s (--timeout); whether the call took effect is unknown"},
		{"force-release", silent("status", errSilent), at + " within 3s (--timeout)"},
		{"ls", &joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "list", Err: errors.New("connection refused\nagain")}, at + ": connection refused; again"},
		{"release", &joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "release", Key: "k", Err: fmt.Errorf("READONLY%w", driver.ErrRefused)}, "refused by Redis at db-1:7000/2: READONLY" + driver.ErrRefused.Error()},
		{"release", silent("release", late), "not done within 6s"},
		{"release", joblock.ErrNotFound, "no such lock"},
		{"force-release", fmt.Errorf("%w: %w", ops.ErrNotRecorded, context.DeadlineExceeded), at + " within 3s (--timeout); nothing was changed, because it could not be recorded"},
		{"cron pause", &exitError{exitUnavailable, errors.New("a\nb")}, "a; b"},
	} {
		cmd, _, err := newRoot(&server{}).Find(strings.Fields(c.cmd))
		testkit.WantNil(t, "Find", err)
		if got := s.textOf(cmd, c.err); got != c.want {
			t.Errorf("%s: %s\nwant %s", c.cmd, got, c.want)
		}
	}
	// "joblock run" says why it has not run its command.
	full := &joblock.Error{Code: joblock.CodeOf(joblock.ErrUnavailable), Op: "acquire", Key: "k", Err: fmt.Errorf("OOM %w", driver.ErrRefused)}
	if text, _, ok := s.unanswered(full); !ok || !strings.HasPrefix(text, "refused by Redis at db-1:7000/2: OOM") {
		t.Errorf("%q, %t; want that Redis has refused the call", text, ok)
	}
}

// An ACL user who may do nothing gets 77.
func TestLookersWithoutRights(t *testing.T) {
	redis := redistest.Start(t)
	testkit.WantNil(t, "ACL SETUSER", redis.Client(t).Do(t.Context(), "ACL", "SETUSER", "limited", "on", ">geheim", "+ping").Err())
	file := filepath.Join(t.TempDir(), "password")
	testkit.WantNil(t, "WriteFile", os.WriteFile(file, []byte("geheim\n"), 0o600))
	for name, args := range lookers {
		r := call(append([]string{name, "--redis", "redis://limited@" + redis.Addr(), "--redis-password-file", file}, args...)...)
		if r.code != exitDenied || r.stderr == "" {
			t.Errorf("joblock %s ended with %d and said %q", name, r.code, r.stderr)
		}
	}
}

// orphan makes an orphaned lock: its holder does not renew, but the lock is kept for its job.
func (o *office) orphan(key, job string) {
	o.Helper()
	token := o.park(key, job)
	_, err := o.locks.Resume(o.Context(), token, joblock.ForJob(job), joblock.NoRenew(), joblock.TTL(50*time.Millisecond))
	testkit.WantNil(o.T, "Resume", err)
	o.until(key+" has no holder", func() bool {
		st, err := o.locks.Status(o.Context(), key)
		testkit.WantNil(o.T, "Status", err)
		return st[0].State == joblock.StateOrphaned
	})
}

// wait makes n processes wait for key, until the test ends.
func (o *office) wait(key string, n int, acquire func(context.Context, string, ...joblock.AcquireOption) (*joblock.Lock, error)) {
	o.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	o.Cleanup(func() {
		cancel()
		all.Wait()
	})
	for range n {
		all.Go(func() {
			if lock, err := acquire(ctx, key); err == nil {
				_ = lock.Release(context.Background())
			}
		})
	}
}

type docOf[T any] struct {
	V     int
	Items []T
}

// lockSeen is a lock as a program reads it.
type lockSeen struct {
	Key, State, Holder, Job, Ended, Reason string
	Waiters                                int
	Fence                                  int64
	Age                                    int64 `json:"age_ms"`
}

func keysOf(locks []lockSeen) (keys []string) {
	for _, l := range locks {
		keys = append(keys, l.Key)
	}
	return keys
}

func TestLs(t *testing.T) {
	o := newOffice(t)
	o.acquire("export:held")
	o.park("export:parked", "exports/1")
	o.orphan("import:orphaned", "imports/2")
	testkit.WantNil(t, "Release", o.acquire("export:free").Release(t.Context(), joblock.Reason("by hand")))
	o.wait("export:held", 2, o.locks.Acquire)
	o.until("two wait", func() bool { return strings.Contains(o.ok("ls", "--waiters", "2", "-o", "name"), "export:held") })
	for _, tc := range []struct {
		args string
		want []string
	}{
		{"", []string{"export:held", "export:parked", "import:orphaned"}},
		{"export:", []string{"export:held", "export:parked"}},
		{"nothing:", nil},
		{"--state parked,orphaned", []string{"export:parked", "import:orphaned"}},
		{"--state held --state orphaned", []string{"export:held", "import:orphaned"}},
		{"--state free", []string{"export:free"}},
		{"--ended", []string{"export:free", "export:held", "export:parked", "import:orphaned"}},
		{"--ended --state held", []string{"export:free", "export:held"}},
		{"--job", []string{"export:parked", "import:orphaned"}},
		{"--queue exports", []string{"export:parked"}},
		{"--contains port", []string{"export:held", "export:parked", "import:orphaned"}},
		{"export: --contains rk", []string{"export:parked"}},
		{"--contains EXPORT", nil},
		{"--contains rk --job", []string{"export:parked"}},
		{"--older 1h", nil},
		{"--waiters 1", []string{"export:held"}},
		{"--waiters 3", nil},
		{"--own", []string{"export:held", "export:parked", "import:orphaned"}},
		{"--share 1", []string{"export:held", "export:parked", "import:orphaned"}},
	} {
		args := append([]string{"ls"}, strings.Fields(tc.args)...)
		var doc docOf[lockSeen]
		wantJSON(t, "ls.json", o.ok(append(args, "-o", "json")...), &doc)
		got := keysOf(doc.Items)
		slices.Sort(got)
		if !slices.Equal(got, tc.want) {
			t.Errorf("ls %s: %q, want %q", tc.args, got, tc.want)
		}
		if n := wantLines(t, "lock.json", o.ok(append(args, "-o", "jsonl")...)); n != len(tc.want) {
			t.Errorf("ls %s -o jsonl: %d lines, want %d", tc.args, n, len(tc.want))
		}
	}
	at := o.redis.Addr() + `, under the prefix "joblock:"` + "\n"
	for prefix, want := range map[string]string{
		"nothing:":    "no lock found whose key begins with nothing:, at " + at + "no key is similar; \"joblock ls --ended\" lists the 4 keys\n",
		"exprot:":     "no lock found whose key begins with exprot:, at " + at + "like it: export:free, export:held, export:parked\n",
		"export:free": "no lock found whose key begins with export:free, at " + at + "free keys that begin with it are remembered: \"joblock ls --ended -- export:free\" lists them\n",
	} {
		if r := o.call("ls", prefix); r.code != exitOK || r.stdout != "" || r.stderr != want {
			t.Errorf("ls %s: %+v\nwant %s", prefix, r, want)
		}
	}
	if r := o.call("ls", "im", "--contains", "xport"); r.code != exitOK || r.stderr != "no lock found whose key begins with \"im\" and contains xport, at "+at {
		t.Errorf("nothing that contains a text: %+v", r)
	}
	if r := o.call("ls", "--contains", "a\x00"); r.code != exitUsage {
		t.Errorf("a bad text: %+v", r)
	}
	if r := o.call("ls", "--prefix", "mistyped:"); r.stderr != "no lock found at "+o.redis.Addr()+", under the prefix \"mistyped:\"\n" {
		t.Errorf("another prefix: %+v", r)
	}
	if got := o.ok("ls", "--sort", "key", "-o", "name"); got != "export:held\nexport:parked\nimport:orphaned\n" {
		t.Errorf("names by key: %q", got)
	}
	if got := o.ok("ls", "--sort", "state", "--limit", "1", "-o", "name"); got != "import:orphaned\n" {
		t.Errorf("the first by state: %q", got)
	}
	table := o.ok("ls", "--sort", "age")
	lines := strings.Split(table, "\n")
	if len(lines) != 5 || !strings.HasPrefix(lines[0], "KEY  ") || !strings.HasPrefix(lines[1], "export:held") || !strings.Contains(lines[1], "web-1:77") ||
		!strings.Contains(lines[1], "ago") || !strings.Contains(lines[2], "exports/1") {
		t.Errorf("the table by age is\n%s", table)
	}
	if wide := o.ok("ls", "--ended", "-o", "wide", "--time", "unix"); !strings.Contains(wide, "FENCE") || !strings.Contains(wide, "by hand") || !strings.Contains(wide, "free (released)") || !strings.Contains(wide, "SINCE") || !strings.Contains(wide, "ENDED") {
		t.Errorf("the wide table is\n%s", wide)
	}
}

func TestGet(t *testing.T) {
	o := newOffice(t)
	var l lockSeen
	wantJSON(t, "get.json", o.ok("get", key1, "-o", "json"), &l)
	if l.State != "free" {
		t.Errorf("a key without a record: %+v", l)
	}
	o.fails(exitNo, "", "get", "--locked", key1)
	o.park(key1, "exports/1")
	o.wait(key1, 1, o.locks.Acquire)
	o.until("one waits", func() bool { return strings.Contains(o.ok("get", key1), "NEXT") })
	wantJSON(t, "get.json", o.ok("get", "--locked", key1, "-o", "json"), &l)
	if l.State != "parked" || l.Job != "exports/1" || l.Waiters != 1 {
		t.Errorf("a lock of a job: %+v", l)
	}
	text := o.ok("get", key1, "-o", "wide")
	for _, want := range []string{"STATE           parked\n", "JOB             exports/1\n", "TASK            no queue\n", "WAITERS         1\n", "NEXT            web-1:77\n", "LEASE ENDS      -\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	release := jobs.Release{Key: key1, Job: "exports/1", Reason: workerstats.KeeperReason + "the task does not exist"}
	testkit.WantNil(t, "Free", jobs.Free(t.Context(), o.locks, release)[0])
	for { // until the waiter has had it
		var w lockSeen
		if wantJSON(t, "get.json", o.ok("get", key1, "-o", "json"), &w); w.State == "free" {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	o.park("left", "exports/2")
	release.Key, release.Job = "left", "exports/2"
	testkit.WantNil(t, "Free", jobs.Free(t.Context(), o.locks, release)[0])
	for _, args := range [][]string{{"get", "left"}, {"ls", "--state", "free"}} {
		if text := o.ok(args...); !strings.Contains(text, "free (freed by a keeper)") || strings.Contains(text, "forced") {
			t.Errorf("%q of a key that a keeper has freed:\n%s", args, text)
		}
	}
	var freed struct {
		FreedBy string `json:"freed_by"`
	}
	wantJSON(t, "get.json", o.ok("get", "left", "-o", "json"), &freed)
	if freed.FreedBy != "keeper" {
		t.Errorf("freed by %q", freed.FreedBy)
	}
	if out := o.ok("get", key1, "-o", "name"); out != key1+"\n" {
		t.Errorf("the name is %q", out)
	}
}

func TestWaiters(t *testing.T) {
	o := newOffice(t)
	if r := o.call("waiters", key1); r.code != exitOK || r.stdout != "" || !strings.HasPrefix(r.stderr, "no waiters for "+key1+"\nnothing is known of the key "+key1+" at ") {
		t.Errorf("no waiters: %+v", r)
	}
	o.acquire(key1)
	o.wait(key1, 3, o.locks.Acquire)
	type waiter struct {
		Position int
		Holder   string
	}
	var doc docOf[waiter]
	o.until("three wait", func() bool {
		wantJSON(t, "waiters.json", o.ok("waiters", key1, "-o", "json"), &doc)
		return len(doc.Items) >= 3
	})
	for i, w := range doc.Items {
		if w.Position != i+1 || w.Holder != "web-1:77" {
			t.Errorf("place %d: %+v", i, w)
		}
	}
	if n := wantLines(t, "waiter.json", o.ok("waiters", key1, "-o", "jsonl", "--limit", "2")); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
	// Until when a place is kept is not when its turn comes. How long holders took is.
	pace := func() string {
		r := o.call("waiters", key1)
		if lines := strings.Split(r.stdout, "\n"); len(lines) != 5 || !strings.HasPrefix(lines[0], "NEXT  HOLDER") || !strings.HasPrefix(lines[1], "1 ") || strings.Contains(r.stdout, " in ") {
			t.Errorf("the table is\n%s", r.stdout)
		}
		return r.stderr
	}
	if got := pace(); got != "How long the wait will take is not known: no journal says how long recent holders had the key.\n" {
		t.Errorf("without a journal: %s", got)
	}
	j, err := journal.New(o.redis.Client(t), &journal.Config{All: true})
	testkit.WantNil(t, "New", err)
	j.Observe(event.Event{Kind: event.Acquired, Key: key1})
	time.Sleep(200 * time.Millisecond) // so that the two are apart
	j.Observe(event.Event{Kind: event.Released, Key: key1})
	testkit.WantNil(t, "Close", j.Close(t.Context()))
	if got := pace(); !strings.HasPrefix(got, "The last holder had the key for ") || !strings.Contains(got, " The present one has had it for ") {
		t.Errorf("with a journal: %s", got)
	}
	if wide := o.ok("waiters", key1, "-o", "wide"); !strings.Contains(wide, "LAPSES") || !strings.Contains(wide, " in ") {
		t.Errorf("the wide table is\n%s", wide)
	}
}

func TestPermits(t *testing.T) {
	o := newOffice(t)
	o.fails(exitNo, "is not a limit or a sequence", "permits", key1)
	two := limit.New(o.locks, 2)
	for range 2 {
		_, err := two.TryAcquire(t.Context(), key1)
		testkit.WantNil(t, "TryAcquire", err)
	}
	o.wait(key1, 1, two.Acquire)
	var doc struct {
		V, Taken, Waiting int
		Kind              string
		Items             []lockSeen
	}
	o.until("one waits", func() bool {
		wantJSON(t, "permits.json", o.ok("permits", key1, "-o", "json", "--limit", "2"), &doc)
		return doc.Waiting >= 1
	})
	if doc.V != 1 || doc.Taken != 2 || doc.Kind != "limit" || len(doc.Items) != 2 {
		t.Errorf("%+v", doc)
	}
	if out := o.ok("permits", key1, "-l", "2"); !strings.HasPrefix(out, "2 of 2 taken, 1 waiting; 2 was recorded last, by web-1:77, ") || !strings.Contains(out, " ago; it has been 2 for ") || !strings.Contains(out, " at least\nNUMBER  KEY") {
		t.Errorf("the table is\n%s", out)
	}
	if n := wantLines(t, "lock.json", o.ok("permits", key1, "-o", "jsonl")); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
	var l lockSeen
	wantJSON(t, "get.json", o.ok("get", key1, "-o", "json"), &l)
}

func TestExplain(t *testing.T) {
	o := newOffice(t)
	info, err := o.tasks.Enqueue(asynq.NewTask("export", nil), asynq.Queue("exports"), asynq.ProcessIn(time.Hour))
	testkit.WantNil(t, "Enqueue", err)
	o.acquire("held")
	o.park("parked", "exports/"+info.ID)
	o.orphan("orphaned", "exports/none")
	for key, want := range map[string][]string{
		"free":     {"the key is free"},
		"held":     {"web-1:77 has had the lock", "What frees it: The holder", "force-release --fence"},
		"parked":   {"No process works under the lock", info.ID, "scheduled", "--if-idle"},
		"orphaned": {"did not give it back", "does not have its task"},
	} {
		text := o.ok("explain", key)
		for _, want := range want {
			if !strings.Contains(text, want) {
				t.Errorf("explain %s: no %q in\n%s", key, want, text)
			}
		}
		var e struct {
			V     int
			Key   string
			Text  []string
			Frees struct{ By string }
			Lock  lockSeen
		}
		wantJSON(t, "explain.json", o.ok("explain", key, "-o", "json"), &e)
		if e.V != 1 || e.Key != key || len(e.Text) == 0 || e.Frees.By == "" || e.Lock.State != key {
			t.Errorf("explain %s: %+v", key, e)
		}
		wantLines(t, "explain.json", o.ok("explain", key, "-o", "jsonl"))
		if got := o.ok("explain", key, "-o", "name"); got != key+"\n" {
			t.Errorf("the name is %q", got)
		}
	}
}

// If asynq is silent or absent, explain and get still say in time what the locks' Redis knows.
func TestExplainWhileAsynqIsAway(t *testing.T) {
	o := newOffice(t)
	o.park(key1, "exports/1")
	silent, absent := redistest.NewProxy(t, o.redis.Addr()), redistest.NewProxy(t, o.redis.Addr())
	silent.BlackHole()
	absent.Refuse()
	for name, addr := range map[string]string{"silent": silent.Addr(), "absent": absent.Addr()} {
		began := time.Now()
		text := o.ok("explain", key1, "--asynq", "redis://"+addr, "--timeout", "1s")
		for _, want := range []string{"exports/1", "looking the task up in asynq failed", "What frees it"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
		if strings.Contains(text, "could not be read") {
			t.Errorf("%s: no time was left for the keepers:\n%s", name, text)
		}
		var l struct{ Task struct{ State string } }
		wantJSON(t, "get.json", o.ok("get", key1, "--asynq", "redis://"+addr, "--timeout", "1s", "-o", "json"), &l)
		if l.Task.State != "unknown" {
			t.Errorf("%s: the task is %q", name, l.Task.State)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("%s: took %s", name, took)
		}
	}
}

// Top without a terminal looks once.
func TestTopWithoutATerminal(t *testing.T) {
	o := newOffice(t)
	o.acquire("held")
	o.park("parked", "exports/1")
	var doc struct {
		V, Locks, Held, Parked, Orphaned int
		OfJobs                           int `json:"of_jobs"`
		Items                            []lockSeen
	}
	wantJSON(t, "top.json", o.ok("top", "-o", "json", "--limit", "1"), &doc)
	if doc.V != 1 || doc.Locks != 2 || doc.Held != 1 || doc.Parked != 1 || doc.OfJobs != 1 || len(doc.Items) != 1 {
		t.Errorf("%+v", doc)
	}
	if out := o.ok("top", "--sort", "key"); !strings.HasPrefix(out, "2 locks: 1 held, 1 parked, 0 orphaned; oldest ") ||
		!strings.Contains(out, "\nKEY ") || strings.Count(out, "\n") != 4 || strings.Contains(out, "\x1b") {
		t.Errorf("top printed\n%s", out)
	}
	wantJSON(t, "top.json", o.ok("top", "-o", "json", "nothing:"), &doc)
	if n := wantLines(t, "lock.json", o.ok("top", "-o", "jsonl")); n != 2 {
		t.Errorf("%d lines, want 2", n)
	}
}

// Another program that can write to the Redis can write anything into a key, a holder, a job, a task. Nothing of that steers the
// terminal.
func TestHostileTextsInRedis(t *testing.T) {
	o := newOffice(t)
	rdb := o.redis.Client(t)
	const label = "HOLDERHOLDER"
	evil := "\x1b[31m\x9b\u202e\xff\r\n"
	if len(evil) != len(label) {
		t.Fatalf("%d bytes, want %d", len(evil), len(label))
	}
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Holder: label})
	testkit.WantNil(t, "New", err)
	defer func() { _ = locks.Close(context.Background()) }()
	for _, key := range []string{"label", "evil"} {
		_, err := locks.TryAcquire(t.Context(), key, joblock.NoRenew())
		testkit.WantNil(t, "TryAcquire", err)
	}
	raw, err := rdb.Get(t.Context(), "joblock:evil").Bytes()
	testkit.WantNil(t, "GET", err)
	if !bytes.Contains(raw, []byte(label)) {
		t.Fatalf("the record has no label: %q", raw)
	}
	testkit.WantNil(t, "SET", rdb.Set(t.Context(), "joblock:evil", bytes.ReplaceAll(raw, []byte(label), []byte(evil)), time.Hour).Err())
	testkit.WantNil(t, "SET", rdb.Set(t.Context(), "joblock:key"+evil, raw, time.Hour).Err())
	info, err := o.tasks.Enqueue(asynq.NewTask("type\x1b[31m\u202e", nil), asynq.Queue("exports"))
	testkit.WantNil(t, "Enqueue", err)
	o.park("parked", "exports/"+info.ID)
	for _, args := range [][]string{
		{"ls"}, {"ls", "--ended", "--own"}, {"ls", "--job"}, {"get", "evil"}, {"get", "parked"}, {"get", "key" + evil}, {"explain", "evil"},
		{"explain", "parked"}, {"explain", "key" + evil}, {"waiters", "evil"}, {"waiters", "key" + evil}, {"permits", "evil"}, {"permits", "key" + evil},
		{"watch", "--for", "200ms", "evil"}, {"watch", "--for", "200ms", "key" + evil}, {"watch", "--for", "300ms", "--interval", "100ms"}, {"top"}, {"top", evil},
		{"ls", evil}, {"get", "--", "--force"}, {"get", strings.Repeat("long", 1000)}, {"get", ""},
	} {
		for _, format := range formats {
			r := o.call(append([]string{args[0], "-o", format, "--color", "never"}, args[1:]...)...)
			for name, text := range map[string]string{"stdout": r.stdout, "stderr": r.stderr} {
				if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
					t.Errorf("%q -o %s, %s: %q", args, format, name, text[max(0, i-30):min(len(text), i+30)])
				}
			}
			if r.code == exitFault {
				t.Errorf("%q -o %s: %s", args, format, r.stderr)
			}
		}
	}
}

// Every field of the objects is in the schemas, and every field of the schemas is in the objects.
func TestSchemasHaveTheFieldsOfTheObjects(t *testing.T) {
	for name, tc := range map[string]struct {
		v     any
		extra []string
		less  string
	}{
		"lock.json": {v: ops.Lock{}}, "get.json": {v: ops.Lock{}, extra: []string{"v"}}, "waiter.json": {v: ops.Waiter{}}, "task.json": {v: ops.Task{}},
		"permits.json": {v: ops.Permits{}, extra: []string{"v"}}, "explain.json": {v: ops.Explanation{}, extra: []string{"v"}},
		"change.json": {v: keyChange{}}, "top.json": {v: topLook{}, extra: []string{"v"}},
		"audit-entry.json": {v: ops.AuditEntry{}, less: "of"}, "event.json": {v: ops.Event{}}, "happening.json": {v: ops.Happening{}},
	} {
		text, err := os.ReadFile(filepath.Join(schemaDir, name))
		if err != nil {
			t.Fatal(err)
		}
		var schema struct{ Properties map[string]any }
		testkit.WantNil(t, name, json.Unmarshal(text, &schema))
		var got []string
		for field := range schema.Properties {
			got = append(got, field)
		}
		want := tc.extra
		for i := range reflect.TypeOf(tc.v).NumField() {
			if field, _, _ := strings.Cut(reflect.TypeOf(tc.v).Field(i).Tag.Get("json"), ","); field != "" && field != "-" && field != tc.less {
				want = append(want, field)
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %q, the object has %q", name, got, want)
		}
	}
	for _, kind := range changeKinds {
		text := fmt.Sprintf(`{"at":"2030-01-01T00:00:00.000Z","change":%q,"key":"k","lock":{"key":"k","state":"free"}}`, kind)
		var v any
		wantJSON(t, "change.json", text, &v)
	}
}

// More holders than the limit that was recorded last are a sign of two limits in use. The text guesses no single cause.
func TestPermitsOfTwoLimits(t *testing.T) {
	now := time.Now()
	at := func(ago time.Duration) ops.Time { return ops.Time{Time: now.Add(-ago)} }
	said := ops.Permits{Kind: ops.KindLimit, N: 3, Taken: 3, By: "web-1:77", Said: at(2 * time.Hour), Since: at(26 * time.Hour), Before: 2, First: "web-7:1", Now: at(0)}
	changed, used, fewer := said, said, said
	changed.Since = at(3 * time.Minute)
	used.Taken, used.AtLeast = 1, 5
	fewer.N, fewer.Before = 2, 5
	for want, p := range map[string]ops.Permits{
		"3 of 3 taken; 3 was recorded last, by web-1:77, 2h00m ago; web-7:1 was the first to say 3 and not 2, 1 d 2 h ago":                                                                                            said,
		"3 of 3 taken; 3 was recorded last, by web-1:77, 2h00m ago; web-7:1 was the first to say 3 and not 2, 3 min ago; callers may disagree: until 3 min ago the number was 2":                                      changed,
		"1 of 3 taken; 3 was recorded last, by web-1:77, 2h00m ago; web-7:1 was the first to say 3 and not 2, 1 d 2 h ago; callers disagree, or the limit was larger before: number 5 was in use in the last minutes": used,
		"3 of 2 taken; 2 was recorded last, by web-1:77, 2h00m ago; web-7:1 was the first to say 2 and not 5, 1 d 2 h ago; callers disagree, or the limit was larger before: 3 are taken":                             fewer,
		"3 of 4 taken, 2 waiting": {Kind: ops.KindLimit, N: 4, Taken: 3, Waiting: 2},
		"3 taken; the number of permits is not known: no program has recorded it in the last day, and number 5 is the largest that was used": {Kind: ops.KindLimit, AtLeast: 5, Taken: 3},
		"3 of 2 taken": {Kind: ops.KindSequence, N: 2, Taken: 3},
	} {
		if got := permitsText(p); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// A mistyped key, or the name of a job in place of a key, gets a hint where to look.
func TestHints(t *testing.T) {
	o := newOffice(t)
	nothing := "nothing is known of the key %s at " + o.redis.Addr() + `, under the prefix "joblock:"` + "\n"
	const none = "there are no locks at all: perhaps the address, the database or the prefix is wrong\n"
	for _, command := range []string{"get", "explain"} {
		if r := o.call(command, "nosuch"); r.code != exitOK || r.stderr != fmt.Sprintf(nothing, "nosuch")+none {
			t.Errorf("%s of an unknown key: %+v", command, r)
		}
		if r := o.call(command, "exports/41"); !strings.Contains(r.stderr, `"joblock jobs get -- exports/41" shows`) {
			t.Errorf("%s of a job: %+v", command, r)
		}
		if r := o.call(command, "nosuch", "-o", "json"); r.stderr != "" {
			t.Errorf("%s for programs: %+v", command, r)
		}
	}
	testkit.WantNil(t, "Release", o.acquire("ended").Release(t.Context(), joblock.Reason("x")))
	_, err := limit.New(o.locks, 1).TryAcquire(t.Context(), "geo")
	testkit.WantNil(t, "TryAcquire", err)
	for _, key := range []string{"ended", "geo"} {
		if r := o.call("get", key); r.stderr != "" {
			t.Errorf("get %s: %+v", key, r)
		}
	}
	for key, want := range map[string]string{
		"endde": "like it: ended\n", "goe": "like it: geo\n", "nosuch": "no key is similar; \"joblock ls --ended\" lists the 2 keys\n",
	} {
		for _, command := range []string{"get", "explain", "waiters"} {
			if r := o.call(command, key); !strings.HasSuffix(r.stderr, fmt.Sprintf(nothing, key)+want) {
				t.Errorf("%s %s: %+v; want %s", command, key, r, want)
			}
		}
	}
}

// The help begins with the commands for people on call. Every command of a group exists.
func TestGroupsOfCommands(t *testing.T) {
	out := call("help").stdout
	at := -1
	for _, g := range groups {
		i := strings.Index(out, "\n"+g.title+":\n")
		if i <= at {
			t.Errorf("%q is at %d, after %d, in:\n%s", g.title, i, at, out)
		}
		for _, name := range strings.Fields(g.commands) {
			if j := strings.Index(out, "\n  "+name+" "); j < i {
				t.Errorf("%s is not below %q", name, g.title)
			}
		}
		at = i
	}
}
