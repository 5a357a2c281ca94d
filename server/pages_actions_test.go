package server

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// A forced release names the holding that the page has shown.
func TestForceFromThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		fence := s.fence(heldKey)
		act := "act?" + url.Values{"do": {"force-release"}, "key": {heldKey}}.Encode()
		page := s.open(act).has(http.StatusOK, "web1:71 has had the lock", "two holders may work at the same time", "The next in line has the key", "Type "+heldKey, `name="fence" value="`+fence+`"`)
		page.lacks("Free if idle</a>")
		form := []string{"do", "force-release", "key", heldKey, "fence", fence}
		s.submit("act", form...).has(http.StatusUnprocessableEntity, "Say why")
		s.submit("act", append(form, "reason", "it hangs")...).has(http.StatusUnprocessableEntity, "What was typed", `value="it hangs"`)
		s.submit("act", append(form, "reason", "it hangs", "typed", jobKey)...).has(http.StatusUnprocessableEntity)
		s.submit("act", append(form, "reason", strings.Repeat("x", 300), "typed", heldKey)...).has(http.StatusUnprocessableEntity, "at most 256")
		s.submit("act", "do", "force-release", "key", heldKey, "reason", "it hangs", "typed", heldKey).has(http.StatusBadRequest, "no fence")
		if s.fence(heldKey) != fence {
			t.Fatal("a form that is not whole has freed the key")
		}
		done := s.submit("act", append(form, "reason", "it hangs", "typed", heldKey)...).has(http.StatusSeeOther)
		if st := s.status(heldKey); st.Holder != "web2:72" {
			t.Errorf("%+v, want the next in line", st)
		}
		s.open(done.location()).has(http.StatusOK, "force release of export:acct/7 : done", "by anyone: “it hangs”", "web2:72 has had the lock")
		s.open("audit").has(http.StatusOK, "it hangs", "force release", "anyone")
		s.open("lock?key=x&done=1-1").lacks("banner good")

		again := s.submit("act", append(form, "reason", "it hangs", "typed", heldKey)...)
		again.has(http.StatusConflict, "the key has moved on", "You saw the fence "+fence, "web2:72", s.fence(heldKey))
		if st := s.status(heldKey); st.Holder != "web2:72" {
			t.Errorf("an old fence has freed the key: %+v", st)
		}
	})
}

// The milder action is offered for a lock without a running holder, and does nothing if a holder runs under it.
func TestFreeIfIdleFromThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		s.open(s.lockPage(jobKey)).has(http.StatusOK, "Free if idle").lacks("do=force-release")
		s.open("act?do=free-if-idle&key="+url.QueryEscape(heldKey)).has(http.StatusOK, "A holder runs under the lock")
		s.open("act?do=force-release&key="+url.QueryEscape(jobKey)).has(http.StatusOK, "Free if idle")
		s.open("act?do=free-if-idle&key="+freeKey).has(http.StatusOK, "nothing to free")
		fence := s.fence(heldKey)
		s.submit("act", "do", "free-if-idle", "key", heldKey, "fence", fence, "reason", "x").has(http.StatusConflict)
		s.submit("act", "do", "free-if-idle", "key", jobKey, "fence", s.fence(jobKey), "reason", "x").has(http.StatusSeeOther)
		s.wantState(jobKey, joblock.StateFree)
		if s.fence(heldKey) != fence {
			t.Error("free if idle has freed a key whose holder runs")
		}
	})
}

func TestTasksFromThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		s.open("job?job="+url.QueryEscape(s.job)).has(http.StatusOK, "no disk", "1 of 4", jobKey, "Run the task", "Delete the task").lacks("Cancel the task")
		s.open("act?do=run-task&job="+url.QueryEscape(s.job)).has(http.StatusOK, "asynq takes the task now")
		s.open("act?do=cancel-task&job="+url.QueryEscape(s.job)).has(http.StatusOK, "The task is retry by now")
		s.open("act?do=run-task&job="+url.QueryEscape(s.job)).has(http.StatusOK, `name="step" value="retry-1"`)
		s.submit("act", "do", "run-task", "job", s.job, "step", "archived-4", "reason", "now").has(http.StatusConflict, "the task has moved on: it is at step retry-1 by now, not at archived-4")
		to := s.submit("act", "do", "run-task", "job", s.job, "step", "retry-1", "reason", "now").has(http.StatusSeeOther).location()
		s.open(to).has(http.StatusOK, "run task of default/export-41 : done", "pending")
		s.submit("act", "do", "delete-task", "job", s.job, "reason", "away").has(http.StatusSeeOther)
		if s.tasks.count() != 0 {
			t.Error("the task is still there")
		}
		s.submit("act", "do", "run-task", "job", s.job, "reason", "now").has(http.StatusConflict, "absent by now")
		s.open("job?job=nonsense").has(http.StatusBadRequest)
	})
}

func TestCronFromThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		at := "cronjob?" + url.Values{"scope": {"shop"}, "name": {cronName}}.Encode()
		s.open(at).has(http.StatusOK, "at 02:30", "node-1", "The job has not run yet", "Next ticks", "+01:00")
		form := []string{"scope", "shop", "name", cronName, "reason", "maintenance"}
		to := s.submit("act", append(form, "do", "cron-pause")...).has(http.StatusSeeOther).location()
		s.open(to).has(http.StatusOK, "cron pause of nightly/report : done", "paused", "maintenance", "Resume")
		s.open("act?do=cron-pause&"+at[len("cronjob?"):]).has(http.StatusOK, "The job is paused since", "maintenance", "A new reason replaces that reason")
		s.submit("act", append(form, "do", "cron-pause")...).has(http.StatusConflict, "There was nothing to do", "Nothing was changed or recorded")
		s.submit("act", append(form, "do", "cron-resume")...).has(http.StatusSeeOther)
		s.submit("act", append(form, "do", "cron-resume")...).has(http.StatusConflict, "There was nothing to do")
		to = s.submit("act", append(form, "do", "cron-trigger")...).has(http.StatusSeeOther).location()
		s.open(to).has(http.StatusOK, "cron trigger of nightly/report : asked")
		time.Sleep(time.Minute)
		s.open(at).has(http.StatusOK, "failed", "no disk", "trigger")
		s.open("cron?trouble=1").has(http.StatusOK, cronName, "1 in trouble")
		s.submit("act", append(form, "do", "cron-forget")...).has(http.StatusConflict, "A node that is up has the job")
		s.submit("act", "do", "cron-pause-all", "scope", "shop", "reason", "all").has(http.StatusUnprocessableEntity)
		s.submit("act", "do", "cron-pause-all", "scope", "shop", "reason", "all", "typed", "shop").has(http.StatusSeeOther)
		s.open("cron")
		s.open("help").has(http.StatusOK).lacks("No scope")
		if page := s.open("help"); !strings.Contains(page.text, "All cron jobs of <b>shop</b> are paused") {
			t.Error("not every page says that all cron jobs are paused")
		}
		s.submit("act", "do", "cron-resume-all", "scope", "shop", "reason", "all").has(http.StatusSeeOther)
		s.open("act?do=cron-pause&scope=other&name=x").has(http.StatusBadRequest)
		s.open("cronjob?scope=shop&name=unused").has(http.StatusNotFound)
	})
}

func TestPausesAndLimitsOnThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		s.open("limits").has(http.StatusOK).lacks("Paused keys", "Set by operators")
		at, form := "&"+url.Values{"key": {heldKey}}.Encode(), []string{"key", heldKey, "reason", "acme <is> down"}
		s.open("act?do=resume-key"+at).has(http.StatusOK, "The key is not paused by now")
		s.open("act?do=pause-key"+at).has(http.StatusOK, "Hold back all jobs of a key")
		to := s.submit("act", append(form, "do", "pause-key")...).has(http.StatusSeeOther).location()
		s.open(to).has(http.StatusOK, "paused by", "acme <is> down")
		time.Sleep(time.Minute) // the list is cached for seconds
		s.open("limits").has(http.StatusOK, "Paused keys", "an operator resumes it", "acme <is> down").lacks("<is>")
		s.open(s.lockPage(heldKey+":below")).has(http.StatusOK, "paused by")
		s.open("act?do=resume-key" + at).has(http.StatusOK).lacks("not paused by now")
		s.submit("act", append(form, "do", "resume-key")...).has(http.StatusSeeOther)
		s.submit("act", append(form, "do", "resume-key")...).has(http.StatusConflict)
		time.Sleep(time.Minute)
		s.open("limits").has(http.StatusOK, "its jobs are being started") // there is no worker
		for _, do := range []string{"set-limit", "clear-limit"} {         // only the command and the API have them
			s.submit("act", "do", do, "limit", "acme", "value", "3", "reason", "x").has(http.StatusBadRequest)
		}
		_, err := s.s.desk.As("eva", "").Act(s.Context(), ops.SetLimit{Limit: "acme <b>", Value: 600, Reason: "fast"})
		testkit.WantNil(s, "SetLimit", err)
		time.Sleep(time.Minute)
		s.open("limits").has(http.StatusOK, "Set by operators", "acme <b>", "600", "eva", "fast").lacks("<b>acme", "acme <b>")
	})
}

func TestFreeManyFromThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		var parked []string
		for i := range 30 {
			key := fmt.Sprintf("batch:%02d", i)
			l, err := s.locks.TryAcquire(s.Context(), key)
			testkit.WantNil(t, "TryAcquire", err)
			if i > 0 {
				_, err = l.Park(s.Context(), joblock.Reserve(time.Hour))
				testkit.WantNil(t, "Park", err)
				parked = append(parked, key)
			}
		}
		time.Sleep(15 * time.Second)
		s.open("locks?prefix=batch:").has(http.StatusOK, "30 locks match", "Free these")
		s.open("locks?contains=atch").has(http.StatusOK, "30 locks match", "Free these", "a filter costs the store nothing more")
		s.open("locks?contains=atch&prefix=x").has(http.StatusOK, "No lock matches the filter")
		s.open("bulk?contains=atch").has(http.StatusOK, "30 locks match: under 29 no holder runs, 1 has a live holder")
		s.open("bulk").has(http.StatusBadRequest, "The filter is empty")
		page := s.open("bulk?prefix=batch:").has(http.StatusOK, "30 locks match: under 29 no holder runs, 1 has a live holder", "1 live")
		form := []string{"query", "prefix=batch:"}
		for _, m := range regexp.MustCompile(`name="(k|f|s)" value="([^"]*)"`).FindAllStringSubmatch(page.text, -1) {
			form = append(form, m[1], m[2])
		}
		if len(form) != 2+30*6 {
			t.Fatalf("the form has %d values", len(form))
		}
		s.submit("bulk", form...).has(http.StatusUnprocessableEntity, "Say why")
		s.submit("bulk", append(form, "reason", "clean", "live", "1")...).has(http.StatusUnprocessableEntity, "What was typed")
		s.wantState(parked[0], joblock.StateParked)
		// One of them moves on between the page and the form.
		st := s.status(parked[1])
		testkit.WantNil(t, "Force", ops.Force(s.Context(), s.locks, st, true, "other"))
		_, err := s.locks.TryAcquire(s.Context(), parked[1])
		testkit.WantNil(t, "TryAcquire", err)
		s.submit("bulk", append(form, "reason", "clean", "live", "0")...).has(http.StatusOK, "28 freed , 2 left alone", "a holder runs under the lock", "another holder has the key by now")
		s.wantState(parked[0], joblock.StateFree)
		s.wantState(parked[1], joblock.StateHeld)
		s.wantState("batch:00", joblock.StateHeld)
		s.submit("bulk", append(form, "reason", "clean", "live", "1", "typed", "1 live")...).has(http.StatusOK, "1 freed , 29 left alone")
		s.wantState("batch:00", joblock.StateFree)
		s.submit("bulk", "query", "", "k", "a", "k", "b", "f", "1", "s", "held", "reason", "x").has(http.StatusBadRequest)
	})
}
