package pages

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A fake is a Desk with as many locks, jobs and cron jobs as a test wants.
type fake struct {
	controls ops.Controls
	boxes    ops.Outboxes
	Desk
	locks     []ops.Lock
	jobs      []ops.Job
	statuses  []ops.Lock // whatever was asked for
	sequences []ops.Sequence
	cron      []ops.CronJob
	scopes    []string      // that the store knows
	slow      time.Duration // of each page of 250 locks
	slowReads time.Duration // of cron jobs, of keepers and of the doctor
	walks     atomic.Int32  // so that the test may look while a walk begins
	err       error
}

func (f *fake) Locks(ctx context.Context, q ops.LocksQuery) iter.Seq2[ops.Lock, error] {
	return func(yield func(ops.Lock, error) bool) {
		f.walks.Add(1)
		for i, l := range f.locks {
			if i%250 == 0 {
				if f.slow > 0 { // the walk rests by itself, as q.Share says
					time.Sleep(time.Duration(float64(f.slow) / q.Share))
				}
				q.Progress(float64(i) / float64(len(f.locks)))
			}
			if ctx.Err() != nil || f.err != nil {
				yield(ops.Lock{}, errors.Join(ctx.Err(), f.err))
				return
			}
			if !yield(l, nil) {
				return
			}
		}
		q.Progress(1)
	}
}

// change changes what is read next.
func (f *fake) change(h *Handler, how func()) {
	synctest.Wait()
	for _, mu := range []*sync.Mutex{&h.locks.mu, &h.keys.mu} { // before each walk the walker has it
		mu.Lock()
		defer mu.Unlock()
	}
	how()
}

func (f *fake) Statuses(_ context.Context, keys ...string) ([]ops.Lock, error) {
	return f.statuses, f.err
}

func (f *fake) Jobs(context.Context, ops.JobsQuery) iter.Seq2[ops.Job, error] {
	return func(yield func(ops.Job, error) bool) {
		for _, j := range f.jobs {
			if !yield(j, nil) {
				return
			}
		}
	}
}

func (f *fake) Sequences(context.Context, ops.SequencesQuery) iter.Seq2[ops.Sequence, error] {
	return func(yield func(ops.Sequence, error) bool) {
		if f.err != nil {
			yield(ops.Sequence{}, f.err)
			return
		}
		for _, s := range f.sequences {
			if !yield(s, nil) {
				return
			}
		}
	}
}

func (f *fake) Outboxes(context.Context) (ops.Outboxes, error) { return f.boxes, nil }

func (f *fake) Keeper(context.Context) (ops.Keeper, error) {
	time.Sleep(f.slowReads)
	return ops.Keeper{}, f.err
}

func (f *fake) Doctor(context.Context) (ops.Report, error) {
	time.Sleep(f.slowReads)
	return ops.Report{}, f.err
}

func (f *fake) HasJournal() bool { return false }

func (f *fake) Explain(_ context.Context, key string) (ops.Explanation, error) {
	e := ops.Explanation{Lock: ops.Lock{Key: key, State: joblock.StateFree}}
	if i := slices.IndexFunc(f.locks, func(l ops.Lock) bool { return l.Key == key }); i >= 0 {
		e.Lock = f.locks[i]
	}
	return e, f.err
}

func (f *fake) Audit(context.Context, ops.AuditQuery) iter.Seq2[ops.AuditEntry, error] {
	return func(func(ops.AuditEntry, error) bool) {}
}

func (f *fake) CronJobs(context.Context, string) ([]ops.CronJob, error) {
	time.Sleep(f.slowReads)
	return f.cron, f.err
}

var someone = &Caller{ID: "x", Operate: true, Cron: true, Admin: true, AllKeys: true, AllQueues: true}

func newHandler(t testing.TB, f *fake) *Handler {
	t.Helper()
	h, err := New(Config{Desk: f, Scopes: []string{"shop"}, Recorded: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func (h *Handler) get(path string, who *Caller) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://localhost/"+path, nil)
	w := httptest.NewRecorder()
	req, _ := h.Parse(r)
	h.Serve(w, r, req.Name, who)
	return w
}

// many returns locks of which some have the same age, so that the order needs the keys too.
func many(n int) []ops.Lock {
	now := time.Now()
	all := make([]ops.Lock, n)
	for i := range all {
		all[i] = ops.Lock{
			Key: fmt.Sprintf("k:%05d", (i*7919)%n), State: []joblock.State{joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned}[i%3], Fence: int64(i + 1),
			Holder: fmt.Sprint("web", i%5), Since: ops.Time{Time: now.Add(-time.Duration(i%50) * time.Minute)}, ReservedUntil: ops.Time{Time: now.Add(time.Hour)}, Waiters: i % 4, Now: ops.Time{Time: now},
		}
	}
	return all
}

// The pages of a list have every row once, in order, however it is sorted, also if rows come and go between two pages.
func TestPagesOfAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{locks: many(950)}
		h := newHandler(t, f)
		for _, sort := range sorts {
			for _, dir := range []string{"", "down"} {
				seen := make(map[string]int)
				var last *mark
				after := ""
				for pages := 0; pages == 0 || after != ""; pages++ {
					q := url.Values{"sort": {sort}, "dir": {dir}, "after": {after}, "state": {"held", "parked"}}
					filter, err := parseFilter(q)
					if err != nil {
						t.Fatal(err)
					}
					w, err := h.locks.look(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					rows, all, next := filter.page(w, someone, time.Now())
					if all < 633 {
						t.Fatalf("%d rows in all", all)
					}
					for _, r := range rows {
						seen[r.Key]++
						m := mark{filter.value(&r), r.Key}
						if last != nil && filter.compare(*last, m) >= 0 {
							t.Fatalf("%s %s: %v comes after %v", sort, dir, m, *last)
						}
						last = &m
					}
					after = next
					// The row at the end of the page goes, and another one comes at the very beginning.
					if pages == 1 && sort == "key" && dir == "" {
						f.locks = slices.DeleteFunc(many(950), func(l ops.Lock) bool { return l.Key == last.Key })
						f.locks = append(f.locks, ops.Lock{Key: "a", State: joblock.StateHeld, Since: ops.Time{Time: time.Now()}})
						h.locks.refresh()
						time.Sleep(3 * time.Second)
					}
				}
				if len(seen) < 633 {
					t.Errorf("%s %s: %d rows", sort, dir, len(seen))
				}
				for key, n := range seen {
					if n != 1 {
						t.Errorf("%s %s: %s comes %d times", sort, dir, key, n)
					}
				}
			}
		}
	})
}

func TestBadFilters(t *testing.T) {
	for _, q := range []string{"state=free", "older=x", "older=-1s", "older=400d", "waiters=-1", "waiters=x", "after=!", "after=bnVsbA"} {
		values, err := url.ParseQuery(q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseFilter(values); err == nil {
			t.Errorf("%s is no error", q)
		}
	}
}

// Walks go on while a page is watched, take their share of the time, and end when no page is watched.
func TestWalksWhileAPageIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{locks: many(10_000), slow: time.Millisecond}
		h := newHandler(t, f)
		page := h.get("locks", someone).Body.String()
		if !strings.Contains(page, "The first walk over the keys is under way") {
			t.Error("the page does not say that the walk is not over")
		}
		time.Sleep(time.Second) // at a quarter of the time: 40 pages take 160 ms
		if page = h.get("locks", someone).Body.String(); !strings.Contains(page, "All keys were walked over") || !strings.Contains(page, "10\u202f000 locks") {
			t.Error("the walk is not over")
		}
		for range 60 { // 40 ms of work at Config.Share of the time: 8 s, and a second of pause
			if _, err := h.locks.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
		}
		if f.walks.Load() < 30 || f.walks.Load() > 40 {
			t.Errorf("%d walks in five minutes, want one in nine seconds", f.walks.Load())
		}
		time.Sleep(time.Minute)
		walks := f.walks.Load()
		time.Sleep(time.Hour)
		if f.walks.Load() != walks {
			t.Errorf("%d walks while no page was watched", f.walks.Load()-walks)
		}
	})
}

// A huge first walk does not take a quarter of the store's time for long.
func TestFirstWalkOverManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{locks: many(100_000), slow: 10 * time.Millisecond}
		h := newHandler(t, f)
		look := func() (done float64, rows int) {
			w, err := h.locks.look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return w.done, len(w.rows)
		}
		for range 10 {
			look()
			time.Sleep(time.Second)
		}
		done, rows := look()
		if done > 0.5 || rows < 10_000 {
			t.Errorf("after 10 s: %v, %d rows", done, rows)
		}
		for range 900 { // 400 pages of 2 s
			look()
			time.Sleep(time.Second)
		}
		if done, rows := look(); done != 1 || rows != 100_000 {
			t.Errorf("in the end: %v, %d rows", done, rows)
		}
	})
}

// The first page waits for nothing that takes long, even on the first visit: what is missing is shown as missing, and
// comes with the next update.
func TestOverviewWaitsForNothingThatTakesLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, &fake{locks: many(10_000), cron: crowd().cron, slow: time.Millisecond, slowReads: 4 * time.Second})
		look := func() (page string, took time.Duration) {
			began := time.Now()
			page = h.get("", someone).Body.String()
			return page, time.Since(began)
		}
		page, took := look()
		if took > patience+20*time.Millisecond {
			t.Errorf("the first page takes %s", took)
		}
		for _, part := range []string{"<b>shop</b>: <span class=\"muted\">being read…", "Keeper: being read…", "The doctor is looking…", "The first walk over the keys is under way"} {
			if !strings.Contains(page, part) {
				t.Errorf("the page lacks %q", part)
			}
		}
		time.Sleep(5 * time.Second)
		page, took = look()
		if took > 0 || strings.Contains(page, "being read") || strings.Contains(page, "is looking") || !strings.Contains(page, "500 jobs") {
			t.Errorf("after %s: %s", took, page)
		}
	})
}

// A page that is opened again after an hour does not show the keys of an hour ago as current: it waits for a short walk, and
// during a long one says how old its data is. A walk also starts again if the last one failed.
func TestWalksOfAnEarlierLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{locks: many(1000)}
		h := newHandler(t, f)
		wants := func(has bool, texts ...string) {
			t.Helper()
			page := h.get("", someone).Body.String()
			for _, text := range texts {
				if strings.Contains(page, text) != has {
					t.Errorf("%q: %v, want %v: %s", text, !has, has, page)
				}
			}
		}
		wants(true, "334") // held
		time.Sleep(time.Hour)
		f.change(h, func() { f.locks = many(100) })
		wants(true, ">34<")
		time.Sleep(time.Hour)
		f.change(h, func() { f.locks, f.slow = many(10_000), 5*time.Millisecond })
		wants(true, ">34<", "A newer read is under way. This page shows what was read before: the locks", ">59 min ") // and some seconds
		time.Sleep(2 * time.Second)
		wants(true, "334")
		wants(false, "A newer read")
		time.Sleep(10 * time.Second) // within the walk after it
		wants(false, "A newer read")
		f.change(h, func() { f.err = errors.New("away") })
		time.Sleep(time.Minute)
		wants(true, "away")
		time.Sleep(time.Hour)
		f.change(h, func() { f.err, f.slow, f.locks = nil, 0, many(100) })
		wants(true, ">34<")
		wants(false, "away", "A newer read")
	})
}

// The page of a key of which nothing is known names keys that are like it, of those that the caller may see, and the job
// that has perhaps the name.
func TestKeyOfWhichNothingIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{locks: many(10)}
		for _, key := range []string{"export:acct-7", "secret:export:acct-7"} {
			f.locks = append(f.locks, ops.Lock{Key: key, State: joblock.StateHeld, Fence: 99})
		}
		h := newHandler(t, f)
		wants := func(path string, who *Caller, has bool, texts ...string) {
			t.Helper()
			page := h.get(path, who).Body.String()
			_, page, _ = strings.Cut(page, `id="k-like"`)
			page, _, _ = strings.Cut(page, "</div>")
			for _, text := range texts {
				if strings.Contains(page, text) != has {
					t.Errorf("%s: %q: %v, want %v: %s", path, text, !has, has, page)
				}
			}
		}
		wants("lock?key=exprot:acct-7", someone, true, "Nothing is known", "lock?key=export%3aacct-7")
		wants("lock?key=exprot:acct-7", someone, false, "a job")
		wants("lock?key=acct-7", &Caller{ID: "x", Prefixes: []string{"acct", "export"}, AllQueues: true}, true, "lock?key=export%3aacct-7")
		wants("lock?key=acct-7", &Caller{ID: "x", Prefixes: []string{"acct", "export"}, AllQueues: true}, false, "secret")
		wants("lock?key=default/7", someone, true, "No key is like it, among 12 keys", "job?job=default%2f7")
		wants("lock?key=export:acct-7", someone, false, "Nothing is known")
		f.change(h, func() { f.locks = nil })
		time.Sleep(time.Hour)
		wants("lock?key=exprot:acct-7", someone, true, "No key at all is held or remembered here")
	})
}

// A remembers is a Desk that shows a free key only to who asks for those too.
type remembers struct{ *fake }

func (r remembers) Locks(ctx context.Context, q ops.LocksQuery) iter.Seq2[ops.Lock, error] {
	return func(yield func(ops.Lock, error) bool) {
		for l, err := range r.fake.Locks(ctx, q) {
			if (err != nil || q.Ended || l.Locked()) && !yield(l, err) {
				return
			}
		}
	}
}

// Keys that are like a mistyped one are also those that are free and remembered, as on the command line.
func TestKeysThatAreRememberedAreLikeOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{locks: append(many(3), ops.Lock{Key: "export:acct-7", State: joblock.StateFree, Fence: 9})}
		h, err := New(Config{Desk: remembers{f}, Recorded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		wantPage(t, h.get("lock?key=exprot:acct-7", someone).Body.String(), true, "Keys like it", "lock?key=export%3aacct-7")
		wantPage(t, h.get("locks", someone).Body.String(), false, "export")
	})
}

// Sequences that have halted come first, with what to do about them for those who may. A caller sees only sequences of
// its own keys and queues.
func TestSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		at := func(d time.Duration) ops.Time { return ops.Time{Time: time.Now().Add(-d)} }
		for i := range 120 {
			f.sequences = append(f.sequences, ops.Sequence{Key: fmt.Sprintf("mail:%03d", i), State: ops.SequenceRunning, Since: at(0), Job: fmt.Sprint("mail/", i), Running: 1, Limit: 1, Waiting: i})
		}
		halted := ops.Sequence{
			Key: "webhooks:globex", State: ops.SequenceHalted, Since: at(time.Hour), Job: "webhooks/<b>9</b>", Waiting: 12, Limit: 1, Running: 1, Why: "Its task has failed for good.", Task: &ops.Task{Type: "webhook"},
			Actions: []ops.Offer{{Name: ops.ActRunTask}, {Name: ops.ActSkipJob}, {Name: ops.ActForce}},
		}
		f.sequences = append(f.sequences, halted, ops.Sequence{Key: "webhooks:initech", State: ops.SequenceStuck, Since: at(time.Minute), Waiting: 2, Why: "No keeper works."})
		f.jobs = []ops.Job{
			{Job: halted.Job, Key: halted.Key, Task: ops.Task{Queue: "webhooks", State: "archived", Halts: true}},
			{Job: "a/snoozed", Key: "a", Task: ops.Task{Queue: "a", State: "archived", Halts: true, Snoozed: true}},
			{Job: "a/waits", Key: "b", Task: ops.Task{Queue: "a", State: "archived", Halts: true}, Place: &ops.Waiter{}},
		}
		h := newHandler(t, f)
		page := func(path string, who *Caller) string {
			w := h.get(path, who)
			if w.Code != http.StatusOK {
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
			_, main, _ := strings.Cut(w.Body.String(), "<main")
			return strings.NewReplacer("<wbr>", "", `<span class="w">`, "", "</span>", "").Replace(main)
		}
		wants := func(text string, has ...string) {
			t.Helper()
			for _, want := range has {
				lack, not := strings.CutPrefix(want, "no ")
				if strings.Contains(text, lack) == not {
					t.Errorf("%q: %s", want, text)
				}
			}
		}
		all := page("sequences", someone)
		wants(all, "122 sequences", "1 halted", "1 stuck", "webhooks/&lt;b&gt;9&lt;/b&gt;", "Its task has failed for good.", "do=run-task", "do=skip-job", "no do=force-release", "Next 100", "1 of 1")
		if a, b, c := strings.Index(all, "webhooks:globex"), strings.Index(all, "webhooks:initech"), strings.Index(all, "mail:119"); a < 0 || a > b || b > c {
			t.Errorf("the order is %d, %d, %d", a, b, c)
		}
		wants(page("sequences?after=mail:022", someone), "mail:021", "mail:000", "no mail:022", "no webhooks:globex")
		wants(page("sequences?state=halted", someone), "1 sequence", "webhooks:globex", "no initech")
		wants(page("sequences?prefix=webhooks:i", someone), "webhooks:initech", "no globex")
		wants(page("sequences", &Caller{ID: "x", AllKeys: true, AllQueues: true}), "webhooks:globex", "no do=run-task", "no do=skip-job")
		wants(page("sequences", &Caller{ID: "x", Operate: true, Prefixes: []string{"mail:"}, AllQueues: true}), "120 sequences", "none halted", "no globex")
		wants(page("sequences", &Caller{ID: "x", Operate: true, Queues: []string{"mail"}, AllKeys: true}), "mail:119", "none halted", "no globex")
		wants(page("", someone), "1 sequence has", "webhooks:globex")
		wants(page("", &Caller{ID: "x", Queues: []string{"mail"}, AllKeys: true}), "no halted")
		wants(page("sequences?state=waiting", someone), "No sequence matches the filter")
	})
}

// A job that waits for its turn is not shown with the far time under which asynq keeps it, nor with a button that would
// put it back to wait.
func TestJobThatWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		far := ops.Time{Time: time.Now().Add(24 * time.Hour)}
		waits := ops.Task{Queue: "mail", ID: "2", State: "scheduled", Waits: true, NextAt: far, Attempts: 4}
		h := newHandler(t, &fake{jobs: []ops.Job{
			{Job: "mail/2", Key: "k", Task: waits, Place: &ops.Waiter{Position: 1}},
			{Job: "mail/3", Key: "l", Task: ops.Task{Queue: "mail", ID: "3", State: "scheduled", NextAt: far, Attempts: 4}},
		}})
		text := h.get("jobs", someone).Body.String()
		if strings.Count(text, "at its turn") != 1 || strings.Count(text, `data-t="in"`) != 1 {
			t.Error(text)
		}
		if steers(ops.ActRunTask, waits) || !steers(ops.ActDeleteTask, waits) || !steers(ops.ActRunTask, ops.Task{State: "archived", Waits: true}) {
			t.Error("what may be done to a job that waits for its turn")
		}
	})
}

// An attempt that runs for too long comes before the others, with why, and can be asked for.
func TestJobsThatRunForTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		active := ops.Task{Queue: "mail", State: "active", Attempts: 4}
		h := newHandler(t, &fake{jobs: []ops.Job{
			{Job: "mail/1", Key: "k", Task: active, Lock: ops.Lock{State: joblock.StateHeld}, Ran: ops.Millis(time.Hour)},
			{Job: "mail/4", Key: "n", Task: active, Lock: ops.Lock{State: joblock.StateHeld}, Ran: ops.Millis(time.Hour), Durations: &ops.Durations{Count: 20}},
			{Job: "mail/2", Key: "l", Task: active, Lock: ops.Lock{State: joblock.StateHeld}, Slow: "The attempt has run for 14 min."},
			{Job: "mail/3", Key: "m", Task: active, Lock: ops.Lock{State: joblock.StateHeld}, Long: "Its time was up."},
		}})
		all := h.get("jobs", someone).Body.String()
		for _, text := range []string{"Slow.</span> The attempt has run for 14 min.", "Over its time.</span> Its time was up.", "2 that run for too long"} {
			if !strings.Contains(all, text) {
				t.Errorf("without %q: %s", text, all)
			}
		}
		if strings.Index(all, "mail%2f3") > strings.Index(all, "mail%2f1") {
			t.Error("what runs for too long does not come first")
		}
		if strings.Contains(all, "nothing can be said") {
			t.Error("all jobs say what is not known of some")
		}
		if some := h.get("jobs?slow=1", someone).Body.String(); !strings.Contains(some, "Of 1 attempt nothing can be said: too few") || strings.Contains(some, "mail%2f1") || !strings.Contains(some, "mail%2f2") || !strings.Contains(some, "mail%2f3") {
			t.Error(some)
		}
	})
}

// The list of jobs says what frees the key of each: for as long as a job lives its key is kept, however close the end of its
// reservation is.
func TestWhatFreesTheKeysOfJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		until := ops.Lock{State: joblock.StateParked, ReservedUntil: ops.Time{Time: now.Add(time.Hour)}, Now: ops.Time{Time: now}}
		gone := ops.Job{Job: "mail/2", Key: "gone", Task: ops.Task{Queue: "mail", State: ops.TaskAbsent}, Lock: until, FreedBy: ops.ByKeeper, FreedAt: ops.Time{Time: now.Add(40 * time.Second)}}
		h := newHandler(t, &fake{jobs: []ops.Job{
			{Job: "mail/1", Key: "lives", Task: ops.Task{Queue: "mail", State: "retry"}, Lock: until, FreedBy: ops.ByJob}, gone,
		}})
		text := h.get("jobs", someone).Body.String()
		for _, want := range []string{`data-l="key freed by">its job</td>`, `data-l="key freed by">the keeper <span class="muted"><time`, "in 40 s</time> at the latest"} {
			if !strings.Contains(text, want) {
				t.Errorf("without %q: %s", want, text)
			}
		}
		if strings.Contains(text, "in 1 h") {
			t.Error("the list shows when a reservation ends that the keeper prolongs")
		}
		if text := h.get("overview", someone).Body.String(); !strings.Contains(text, "One key is kept for a job that is over") || !strings.Contains(text, "in 40 s</time> at the latest") {
			t.Error(text)
		}
	})
}

// The list of limits says who has changed the number of permits, and when.
func TestWhoHasChangedALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := keyspace.Said{N: 5, Before: 3, First: "web2:9", By: "web1:8", Since: time.Now().Add(-10 * time.Minute)}
		size := ops.Lock{Key: keyspace.Size("geo"), Role: ops.RoleSize, Holder: said.String()}
		h := newHandler(t, &fake{statuses: []ops.Lock{size}, locks: []ops.Lock{
			{Key: keyspace.Permit("geo", 1), Role: ops.RolePermit, Group: "geo", Number: 1, State: joblock.StateHeld},
		}})
		if text := h.get("limits", someone).Body.String(); !strings.Contains(text, "1 of 5") || !strings.Contains(text, "web2:9 was the first to say 5 and not 3, 10 min ago") {
			t.Error(text)
		}
		said.Before, said.First = 0, ""
		size.Holder = said.String()
		h = newHandler(t, &fake{statuses: []ops.Lock{size}, locks: []ops.Lock{
			{Key: keyspace.Permit("geo", 1), Role: ops.RolePermit, Group: "geo", Number: 1, State: joblock.StateHeld},
		}})
		if text := h.get("limits", someone).Body.String(); !strings.Contains(text, "it has been 5 for 10 min at least") {
			t.Error(text)
		}
	})
}

// A cron job's page says what its options are.
func TestPoliciesOfACronJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, &fake{cron: []ops.CronJob{{Scope: "shop", Name: "rollup", Policies: "missed ticks are skipped; <b>"}}})
		if text := h.get("cronjob?scope=shop&name=rollup", &Caller{ID: "x", AllKeys: true, AllQueues: true}).Body.String(); !strings.Contains(text, "<dt>Policies</dt><dd>missed ticks are skipped; &lt;b&gt;</dd>") {
			t.Error(text)
		}
	})
}

func (f *fake) CronJob(_ context.Context, _, name string) (ops.CronJob, error) {
	for _, j := range f.cron {
		if j.Name == name {
			return j, f.err
		}
	}
	return ops.CronJob{}, joblock.ErrNotFound
}

func (f *fake) CronNext(context.Context, ops.CronNextQuery) ([]ops.CronTick, error) {
	return nil, f.err
}
func (f *fake) CronScopes(context.Context) ([]string, error) { return f.scopes, f.err }

func (f *fake) CronNodes(context.Context, string) ([]ops.CronNode, error) { return nil, f.err }

// Viewers share reads, and a read that fails leaves the last value.
func TestReadsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, &fake{})
		loads := 0
		var fail error
		look := func() (read[int], error) {
			return get(t.Context(), h.cache, "x", time.Second, func(context.Context) (int, error) {
				time.Sleep(5 * time.Millisecond)
				loads++
				return loads, fail
			})
		}
		done := make(chan int)
		for range 50 {
			go func() {
				r, err := look()
				if err != nil {
					t.Error(err)
				}
				done <- r.val
			}()
		}
		for range 50 {
			if n := <-done; n != 1 {
				t.Errorf("the value %d", n)
			}
		}
		if look(); loads != 1 {
			t.Errorf("%d reads of a value that is fresh", loads)
		}
		time.Sleep(2 * time.Second)
		fail = errors.New("away")
		r, err := look()
		if err != nil || r.val != 1 || r.err == nil || loads != 2 {
			t.Errorf("%+v, %v, %d loads", r, err, loads)
		}
		look()
		if loads != 2 {
			t.Error("a read begins at once after one that has failed")
		}
		fail = nil
		time.Sleep(2 * time.Second)
		if r, err := look(); err != nil || r.val != 3 || r.err != nil {
			t.Errorf("%+v, %v", r, err)
		}
		h.cache.forget("x")
		if r, _ := look(); r.val != 4 {
			t.Errorf("%+v after forget", r)
		}
	})
}

// Old values are not shown as current: the page waits for a store that takes a second, and says so if the store takes
// longer.
func TestOldValuesAreNotShownAsThePresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, &fake{})
		n, takes := 0, 5*time.Millisecond
		look := func() read[int] {
			r, err := get(t.Context(), h.cache, "x", time.Second, func(context.Context) (int, error) {
				time.Sleep(takes)
				n++
				return n, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		look()
		time.Sleep(time.Minute)
		takes = time.Second
		if r := look(); r.val != 2 || r.err != nil {
			t.Errorf("%+v after a minute, want the second value", r)
		}
		time.Sleep(10 * time.Minute)
		takes = 5 * time.Second
		if r := look(); r.val != 2 || !errors.Is(r.err, errSlow) {
			t.Errorf("%+v, want the second value, and that it is old", r)
		}
		time.Sleep(takes)
	})
}

func TestWords(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 0: "0 s", 59 * time.Second: "59 s", 60 * time.Second: "1 min", 61 * time.Second: "1 min 1 s", time.Hour: "1 h", 90 * time.Minute: "1 h 30 min", 49*time.Hour + time.Minute: "2 d 1 h",
	} {
		if got := length(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
	for text, want := range map[string]time.Duration{"90": 90 * time.Second, "90s": 90 * time.Second, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "1 h": time.Hour} {
		if got, err := parseLength(text); err != nil || got != want {
			t.Errorf("%q is %s, %v", text, got, err)
		}
	}
	if got := count(-1234567); got != "-1\u202f234\u202f567" {
		t.Errorf("%q", got)
	}
}

// The script has no dependency and is small, and nothing in the files needs an exception of the policy.
func TestFiles(t *testing.T) {
	script, err := os.ReadFile("assets/pages.js")
	if err != nil {
		t.Fatal(err)
	}
	if len(script) > 10<<10 {
		t.Errorf("the script has %d bytes, want 10 KB at most", len(script))
	}
	if strings.Contains(string(script), "import ") || strings.Contains(string(script), "eval(") {
		t.Error("the script imports or evaluates something")
	}
	h := newHandler(t, &fake{})
	for name, wire := range h.assets.names {
		w := httptest.NewRecorder()
		h.ServeAsset(w, httptest.NewRequest(http.MethodGet, "/"+wire, nil), wire)
		if w.Code != http.StatusOK || w.Body.Len() == 0 || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") || w.Header().Get("Content-Type") == "" {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
	}
}

// crowd is what the pages are measured with: 10,000 locks, 1,000 jobs, 500 cron jobs.
func crowd() *fake {
	f := &fake{locks: many(10_000)}
	for i := range 1000 {
		f.jobs = append(f.jobs, ops.Job{Job: fmt.Sprint("default/", i), Key: fmt.Sprint("k:", i), Lock: f.locks[i], Task: ops.Task{Queue: "default", State: "retry", Type: "export", Attempts: 4, LastError: "no disk"}})
	}
	for i := range 500 {
		j := ops.CronJob{Scope: "shop", Name: fmt.Sprintf("job-%03d", i), State: ops.CronIdle, Spec: "0 3 * * *", Words: "at 03:00 every day, UTC", Nodes: []string{"a"}, Next: ops.Time{Time: time.Now().Add(time.Hour)}}
		for n := range 10 {
			run := ops.CronRun{ID: fmt.Sprint(n), State: scheduler.Done, Started: ops.Time{Time: time.Now().Add(-time.Duration(n) * time.Hour)}, Took: ops.Millis(time.Second)}
			j.History = append(j.History, run)
			j.Latest = &j.History[0]
		}
		f.cron = append(f.cron, j)
	}
	return f
}

// BenchmarkPage tells how long a page takes that is warm, and that is 100 rows long.
func BenchmarkPage(b *testing.B) {
	h := newHandler(b, crowd())
	for _, path := range []string{"", "locks", "locks?sort=waiters&holder=web1", "jobs", "sequences", "limits", "cron", "help"} {
		b.Run("/"+path, func(b *testing.B) {
			for range 3 {
				h.get(path, someone)
			}
			for b.Loop() {
				if w := h.get(path, someone); w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}

// A Redis that answers that its user may not is not one that does not answer.
func TestUserWithoutARight(t *testing.T) {
	h := &Handler{cfg: Config{Logger: slog.New(slog.DiscardHandler)}}
	for want, err := range map[string]error{
		"This server may not read that": fmt.Errorf("the journal could not be read: %w: NOPERM this user has no permissions to run the 'xrevrange' command", joblock.ErrUnavailable),
		"The store does not answer":     fmt.Errorf("the journal could not be read: %w: connection refused", joblock.ErrUnavailable),
	} {
		if got := h.explain(err); got.title != want || got.status != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", err, got.status, got.title)
		}
	}
}

func (f *fake) Controls(context.Context) (ops.Controls, error) { return f.controls, nil }
