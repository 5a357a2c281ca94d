package pages

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// The first page names what a person has to know: holders that are silent, locks that are kept for nothing, pauses.
func TestWhatTheFirstPageNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		lock := func(key string, state joblock.State, changed, renewed int) ops.Lock {
			at := func(s int) ops.Time { return ops.Time{Time: now.Add(-time.Duration(s) * time.Second)} }
			return ops.Lock{Key: key, State: state, Fence: 4, Holder: "web", Since: at(changed), Changed: at(changed), Renewed: at(renewed), TTL: ops.Millis(30 * time.Second), Now: at(0)}
		}
		pause := ops.CronJob{Name: "newsletter", State: ops.CronPaused, Paused: true, Pauses: []ops.CronPause{{By: "eva"}}, Now: ops.Time{Time: now}}
		f := &fake{
			locks: []ops.Lock{
				lock("live", joblock.StateHeld, 60, 5), lock("report:monthly", joblock.StateHeld, 60, 25), lock("script", joblock.StateHeld, 25, 25),
				lock("gone", joblock.StateOrphaned, 60, 50),
			},
			jobs: []ops.Job{
				{Job: "q/1", Key: "import:prices", Lock: lock("import:prices", joblock.StateParked, 35, 35), Task: ops.Task{State: ops.TaskAbsent}},
				{Job: "q/2", Key: "busy", Lock: lock("busy", joblock.StateHeld, 5, 5), Task: ops.Task{State: "active"}},
				{Job: "q/3", Key: "halted", Lock: lock("halted", joblock.StateParked, 5, 5), Task: ops.Task{State: "archived", Halts: true}},
			},
			cron: []ops.CronJob{pause, {Name: "rates", State: ops.CronIdle, Now: ops.Time{Time: now}, Troubles: []ops.CronTrouble{{Code: "flaky", Text: "3 of the last 10 runs failed"}}}},
		}
		h := newHandler(t, f)
		h.get("", someone)
		time.Sleep(2 * time.Second)
		page := h.get("", someone).Body.String()
		part := func(id string) string {
			_, text, _ := strings.Cut(page, `id="`+id+`"`)
			text, _, _ = strings.Cut(text, "</section>")
			return text
		}
		lost := part("o-lost")
		wantPage(t, lost, true, "held, silent", "report:", "held, not renewed", "script", "gone", "no renewal for")
		wantPage(t, lost, false, "live")
		if strings.Index(lost, "gone") > strings.Index(lost, "monthly") || strings.Index(lost, "monthly") > strings.Index(lost, "script") {
			t.Error("the surest does not come first")
		}
		wantPage(t, part("o-suspects"), true, "One key is kept for a job that is over or does not exist", "import:", "3 rows of jobs")
		wantPage(t, part("o-suspects"), false, "needs it", "busy")
		wantPage(t, part("o-cron"), true, "1 paused", "state=paused", "rates", "3 of the last 10 runs failed")
	})
}

// What was to be freed when the jobs were last read is not shown as current when the page is opened again minutes later.
func TestWhatWasToBeFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		l := ops.Lock{Key: "import:prices", State: joblock.StateParked, Fence: 4}
		f := &fake{jobs: []ops.Job{{Job: "q/1", Key: l.Key, Lock: l, Task: ops.Task{State: ops.TaskAbsent}, FreedBy: ops.ByKeeper, FreedAt: ops.Time{Time: now.Add(40 * time.Second)}}}}
		h, err := New(Config{Desk: slowly{f}, Recorded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		h.get("", someone)
		time.Sleep(3 * time.Second)
		wantPage(t, h.get("", someone).Body.String(), true, "a keeper will free it", "</time> at the latest")
		time.Sleep(5 * time.Minute)
		page := h.get("", someone).Body.String()
		wantPage(t, page, true, "When the jobs were read last, one key was kept", "was due by", "4 min 23 s ago")
		wantPage(t, page, false, "will free it", "at the latest")
	})
}

// A job whose lock is gone since the walk is not listed with its old task.
func TestJobsWhoseLocksAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ops.Lock{Key: "k", State: joblock.StateHeld, Job: "q/1", Fence: 4}
		other := l
		other.Key, other.Job = "l", "q/2"
		d := &now{fake: &fake{jobs: []ops.Job{{Job: "q/1", Key: "k", Lock: l, Task: ops.Task{State: "active"}}, {Job: "q/2", Key: "l", Lock: other, Task: ops.Task{State: "retry"}}}}}
		d.is = []ops.Lock{{Key: "k", State: joblock.StateFree, Fence: 4}, other}
		h, err := New(Config{Desk: d, Recorded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		page := h.get("jobs", someone).Body.String()
		wantPage(t, page, true, "job?job=q%2f2", "Has it, or waits, for")
		wantPage(t, page, false, "job?job=q%2f1", "given back")
	})
}

// A now is a Desk whose records are others by now than when they were walked over.
type now struct {
	*fake
	is []ops.Lock
}

func (n *now) Statuses(context.Context, ...string) ([]ops.Lock, error) { return n.is, nil }
