package pages

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// A keyed is a Desk with some keys, each with what is known of it.
type keyed struct {
	*chronicle
	keys map[string]ops.Explanation
}

func (k *keyed) Explain(_ context.Context, key string) (ops.Explanation, error) {
	e := k.keys[key]
	e.Key, e.Lock.Key = key, key
	if e.Lock.State == 0 {
		e.Lock.State = joblock.StateFree
	}
	return e, nil
}

func newKeyed(t *testing.T, keys map[string]ops.Explanation) *Handler {
	h, err := New(Config{Desk: &keyed{&chronicle{fake: &fake{}}, keys}, Recorded: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

// Who copies a key with blanks or with the prefix of Redis comes to the key. A key of which nothing is known is not called free.
func TestKeysThatWereMistyped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newKeyed(t, map[string]ops.Explanation{
			"deploy:shop": {Lock: ops.Lock{State: joblock.StateHeld, Fence: 4}}, "was": {Lock: ops.Lock{State: joblock.StateFree, Fence: 4}},
			"joblock:odd": {Lock: ops.Lock{State: joblock.StateHeld, Fence: 4}},
		})
		for _, asked := range []string{"+deploy:shop", "deploy:shop+", "joblock:deploy:shop", "+joblock:deploy:shop+"} {
			w := h.get("lock?key="+asked, someone)
			if to := w.Header().Get("Location"); w.Code != http.StatusSeeOther || to != "lock?key=deploy%3Ashop" {
				t.Errorf("%q: %d %q", asked, w.Code, to)
			}
		}
		for _, asked := range []string{"deploy-shop", "joblock:unused", "+x"} {
			w := h.get("lock?key="+asked, someone)
			wantPage(t, w.Body.String(), true, "unknown", "Check how it is spelt")
			wantPage(t, w.Body.String(), false, "There is nothing to do", "▲ now", ">free<")
		}
		wantPage(t, h.get("lock?key=was", someone).Body.String(), true, "▲ now", "There is nothing to do")
		wantPage(t, h.get("lock?key=joblock:odd", someone).Body.String(), true, "▲ now")
		if w := h.get("lock?key=+deploy:shop", &Caller{ID: "y", Prefixes: []string{" "}, AllQueues: true}); w.Code != http.StatusOK {
			t.Errorf("a caller that may not see the key is sent there: %d", w.Code)
		}
	})
}

// A holder that has gone silent is marked everywhere, and a live one is not said to be free some seconds later.
func TestHoldersThatAreSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		ago := func(s int) ops.Time { return ops.Time{Time: now.Add(-time.Duration(s) * time.Second)} }
		in := func(s int) ops.Time { return ago(-s) }
		held := func(changed, renewed int) ops.Explanation {
			l := ops.Lock{State: joblock.StateHeld, Fence: 4, Changed: ago(changed), Since: ago(changed), Renewed: ago(renewed), TTL: ops.Millis(30 * time.Second), ExpiresAt: in(30 - renewed), Now: ago(0)}
			return ops.Explanation{Lock: l, Frees: ops.Frees{By: ops.ByHolder, Text: "When its work ends.", Latest: in(30 - renewed), If: "the holder is dead"}}
		}
		keys := map[string]ops.Explanation{"live": held(60, 8), "silent": held(60, 25), "late": held(60, 15), "never": held(25, 25), "fresh": held(3, 3)}
		h := newKeyed(t, keys)
		for key, want := range map[string]struct{ has, lacks []string }{
			"live":   {[]string{"lease renewed", ">8 s ago</time>", "there is no latest time"}, []string{"At the latest", "lease ends <time", "silent"}},
			"silent": {[]string{"held, silent", "no renewal for", ">25 s</time>", "Free by", "in 5 s", "if the holder does not renew its lease"}, []string{"there is no latest time", "lease renewed"}},
			"late":   {[]string{"held, late", "a renewal is overdue", ">15 s ago</time>", "Free by", "in 15 s", "if the holder does not renew its lease"}, []string{"there is no latest time", "lease renewed", `class="state held"`}},
			"never":  {[]string{"held, not renewed", "Free by"}, []string{"there is no latest time"}},
			"fresh":  {[]string{"lease ends", "in 27 s", "At the latest"}, []string{"silent", "there is no latest time"}},
		} {
			page := h.get("lock?key="+key, someone).Body.String()
			_, page, _ = strings.Cut(page, `id="k-now"`)
			page, _, _ = strings.Cut(page, `</section>`)
			wantPage(t, page, true, want.has...)
			wantPage(t, page, false, want.lacks...)
		}
		var rows []ops.Lock
		for key, e := range keys {
			e.Lock.Key = key
			rows = append(rows, e.Lock)
		}
		list := newHandler(t, &fake{locks: rows}).get("locks", someone).Body.String()
		wantPage(t, list, true, "held, silent", "held, late", "held, not renewed")
		if n := strings.Count(list, "row alarm"); n != 2 {
			t.Errorf("%d rows are marked", n)
		}
	})
}

// A renewing is a Desk with one lock, whose lease a test renews. What Explain says comes some time after it was read.
type renewing struct {
	*chronicle
	mu    sync.Mutex
	at    time.Time // of the last renewal
	takes time.Duration
}

func (r *renewing) lock() ops.Lock {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := ops.Lock{Key: "k", State: joblock.StateHeld, Fence: 4, TTL: ops.Millis(30 * time.Second), Renewed: ops.Time{Time: r.at}, ExpiresAt: ops.Time{Time: r.at.Add(30 * time.Second)}, Now: ops.Time{Time: time.Now()}}
	l.Changed.Time = r.at.Add(-time.Minute)
	return l
}

func (r *renewing) renew() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = time.Now()
}

func (r *renewing) Statuses(context.Context, ...string) ([]ops.Lock, error) {
	return []ops.Lock{r.lock()}, nil
}

func (r *renewing) Explain(context.Context, string) (ops.Explanation, error) {
	l := r.lock()
	time.Sleep(r.takes)
	return ops.Explanation{Key: "k", Lock: l, Frees: ops.Frees{By: ops.ByJob, Text: "If the worker dies, the lease ends at " + clockOf(l.ExpiresAt.Time) + "."}}, nil
}

func clockOf(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }

// All that the page of a lock tells of the lease is of one time, also right after a renewal, and also if it takes long to read.
func TestLockPageIsOfOneTime(t *testing.T) {
	for _, takes := range []time.Duration{time.Millisecond, 300 * time.Millisecond} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &renewing{chronicle: &chronicle{fake: &fake{}}, at: time.Now().Add(-3 * time.Second), takes: takes}
				h, err := New(Config{Desk: d, Recorded: true})
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				ends := clockOf(d.at.Add(30 * time.Second))
				wantPage(t, h.get("lock?key=k", someone).Body.String(), true, ends)
				for range 3 {
					time.Sleep(2 * time.Second)
					was := d.lock()
					d.renew()
					now := d.lock()
					page := h.get("lock?key=k", someone).Body.String()
					_, page, _ = strings.Cut(page, `id="k-now"`)
					has := func(l ops.Lock) bool {
						return strings.Contains(page, "the lease ends at "+clockOf(l.ExpiresAt.Time)) && strings.Contains(page, `datetime="`+l.Renewed.Time.UTC().Format(stampLayout)) && strings.Contains(page, `datetime="`+l.ExpiresAt.Time.UTC().Format(stampLayout))
					}
					if has(was) == has(now) {
						t.Errorf("renewed at %s, before at %s: %s", now.Renewed, was.Renewed, page)
					}
					time.Sleep(time.Second)
					page = h.get("lock?key=k", someone).Body.String()
					if _, page, _ = strings.Cut(page, `id="k-now"`); !has(now) || has(was) {
						t.Errorf("a second after the renewal at %s: %s", now.Renewed, page)
					}
				}
			})
		})
	}
}

// Who waits sees about when the turn comes, if holders took about as long lately.
func TestTurns(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		age, most time.Duration
		held      bool
		want      time.Duration // after the present holder began
	}{
		"as usual":         {10 * time.Second, time.Minute, true, 60 * time.Second},
		"longer than half": {40 * time.Second, time.Minute, true, 90 * time.Second},
		"longer than all":  {2 * time.Minute, time.Minute, true, 0},
		"free":             {0, time.Minute, false, 0},
	} {
		b := &LockBody{}
		b.E.Lock = ops.Lock{State: joblock.StateFree, Since: ops.Time{Time: at}, Now: ops.Time{Time: at.Add(c.age)}, Age: ops.Millis(c.age),
			Holds: &ops.HoldStats{N: 5, Median: ops.Millis(30 * time.Second), Most: ops.Millis(c.most)}}
		if c.held {
			b.E.Lock.State = joblock.StateHeld
		}
		got := b.Turn(ops.Waiter{Position: 2})
		if want := at.Add(c.want); c.want == 0 && !got.IsZero() || c.want > 0 && !got.Equal(want) || b.Turns() != (c.want > 0) {
			t.Errorf("%s: %s, %v", name, got, b.Turns())
		}
	}
	held := ops.Lock{State: joblock.StateHeld, Since: ops.Time{Time: at}, Now: ops.Time{Time: at}, Holds: &ops.HoldStats{N: 5, Median: 1000, Most: 1000}}
	for name, change := range map[string]func(*LockBody){
		"no journal tells": func(b *LockBody) { b.E.Lock.Holds = nil },
		"of a limit":       func(b *LockBody) { b.Limit = &ops.Permits{} }, // the one who leaves first is not known
		"since an unknown time": func(b *LockBody) {
			b.E.Lock.Since = ops.Time{}
		},
	} {
		b := &LockBody{}
		if b.E.Lock = held; !b.Turns() {
			t.Fatal("no turn is shown")
		}
		if change(b); b.Turns() {
			t.Errorf("%s: a turn is shown all the same", name)
		}
	}
}

// The times in sentences count on together with those of the record next to them. Other text stays as it is, and is escaped.
func TestTimesInSentences(t *testing.T) {
	now := time.Date(2026, 3, 1, 15, 8, 0, 0, time.UTC)
	v := &View{Now: now.Add(5 * time.Second)}
	for text, want := range map[string]string{
		"web has had it since 15:07:45 UTC (2 ms ago).":                              "web has had it since 15:07:45 UTC (20 s ago).",
		"It was acquired at 2026-02-28 15:08:00 UTC (1 d ago).":                      "It was acquired at 2026-02-28 15:08:00 UTC (1 d ago).",
		"next attempt, at 15:08:19 UTC (in 19 s).":                                   "next attempt, at 15:08:19 UTC (in 14 s).",
		"taken at 15:08:00 UTC (now).":                                               "taken at 15:08:00 UTC (now).",
		"the lease ends at 15:08:22 UTC, 22 s from now.":                             "the lease ends at 15:08:22 UTC, 17 s from now.",
		"The last renewal of the lease was 6 s ago; so the holder was alive 6 s ago": "The last renewal of the lease was 11 s ago; so the holder was alive 11 s ago",
		"The lease of 30 s began 3 s ago; a renewal is due every 10 s.":              "The lease of 30 s began 8 s ago; a renewal is due every 10 s.",
		"Reason: it hung 5 min ago & <b>was</b> 3 s ago (by eva)":                    "Reason: it hung 5 min ago &amp; &lt;b&gt;was&lt;/b&gt; 3 s ago (by eva)",
		"at 99:99:99 UTC (2 s ago)":                                                  "at 99:99:99 UTC (2 s ago)",
		"the lease ends at 15:08:02 UTC, 2 s from now.":                              "the lease ends at 15:08:02 UTC, 3 s ago.",
		"next attempt, at 15:08:02 UTC (in 2 s).":                                    "next attempt, at 15:08:02 UTC (3 s ago).",
	} {
		html := string(v.Sentence(text, ops.Time{Time: now}))
		if got := timeTags.Replace(tagsOf(html)); got != want {
			t.Errorf("%s:\n%s, want\n%s", text, got, want)
		}
	}
	newer := Row{Renewed: now.Add(4 * time.Second), Ends: now.Add(34 * time.Second)} // the sentences are older than the record
	for text, want := range map[string]string{
		"The last renewal of the lease was 6 s ago; one is due every 10 s. So the holder was alive 6 s ago. Without another renewal the lease ends at 15:08:22 UTC, 22 s from now.": "The last renewal of the lease was 1 s ago; one is due every 10 s. So the holder was alive 1 s ago. Without another renewal the lease ends at 15:08:34 UTC, 29 s from now.",
		"web has had it since 15:07:45 UTC (2 ms ago).":                  "web has had it since 15:07:45 UTC (20 s ago).",
		"The lease of 30 s began 24 s ago; a renewal is due every 10 s.": "The lease of 30 s began 1 s ago; a renewal is due every 10 s.",
	} {
		if got := timeTags.Replace(tagsOf(string(v.Sentence(text, ops.Time{Time: now}, newer)))); got != want {
			t.Errorf("%s:\n%s, want\n%s", text, got, want)
		}
	}
	if got := string(v.Sentence("a <b> at 15:07:45 UTC (2 s ago)", ops.Time{})); got != "a &lt;b&gt; at 15:07:45 UTC (2 s ago)" {
		t.Error(got)
	}
}

var timeTags = strings.NewReplacer("</time>", "")

// tagsOf returns html without the begin tags of times.
func tagsOf(html string) string {
	for {
		i := strings.Index(html, "<time")
		if i < 0 {
			return html
		}
		html = html[:i] + html[i+strings.Index(html[i:], ">")+1:]
	}
}

// A key that is kept once more for a task that asynq does not have is not explained with an accident.
func TestTheSameAgain(t *testing.T) {
	t.Parallel()
	const says = "Probably batch-1:30 hands the lock over to a task that is never enqueued."
	for name, c := range map[string]struct {
		freed  int // how often before, every 3 minutes
		reason string
		task   ops.TaskState
		says   string
	}{
		"the third time":  {2, "keeper: the task does not exist", ops.TaskAbsent, "3 times in 6 min, with this one, the key was kept"},
		"the fifth time":  {4, "keeper: the task does not exist", ops.TaskAbsent, "5 times in 12 min, with this one,"},
		"the second time": {1, "keeper: the task does not exist", ops.TaskAbsent, ""},
		"another reason":  {4, "keeper: the task is archived", ops.TaskAbsent, ""},
		"a task":          {4, "keeper: the task does not exist", "pending", ""},
		"only this hour":  {40, "keeper: the task does not exist", ops.TaskAbsent, "20 times in 57 min, with this one,"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &chronicle{fake: &fake{}}
				for i := range c.freed {
					d.add(0, ops.Event{Kind: "freed", Key: "import:prices", Fence: int64(i + 1), Reason: c.reason})
					d.add(0, ops.Event{Kind: "freed", Key: "other", Fence: int64(i + 1), Reason: c.reason})
					time.Sleep(3 * time.Minute)
				}
				now := ops.Time{Time: time.Now()}
				d.lock = ops.Lock{Key: "import:prices", State: joblock.StateParked, Fence: 100, Holder: "batch-1:30", Job: "q/1", Now: now, Since: now, Changed: now, Task: &ops.Task{State: c.task}}
				page := d.handler(t).get("lock?key=import:prices", someone).Body.String()
				if has := strings.Contains(page, says); has != (c.says != "") || !strings.Contains(page, c.says) {
					t.Errorf("found: %t, want %q in %s", has, c.says, tags.ReplaceAllString(page, " "))
				}
			})
		})
	}
}
