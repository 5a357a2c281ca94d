package server

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/scheduler"
)

var machineTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d`)

// The pages do not say what is not so, and say it in words for people.
func TestWordsOfThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		limit := s.open("lock?key="+s.limit).has(http.StatusOK, "1 of at least")
		if strings.Contains(limit.text, `class="state free"`) {
			t.Error("a limit of which a permit is taken is shown as free")
		}
		s.open("locks").has(http.StatusOK, "The rows on the screen were read when this page was made", "Stop refresh").lacks("read every second", ">Pause</button>")
		s.open("locks").has(http.StatusOK, `<span class="w">export:</span><wbr>`)
		form := []string{"scope", "shop", "name", cronName, "reason", "maintenance"}
		s.submit("act", append(form, "do", "cron-trigger")...).has(http.StatusSeeOther)
		time.Sleep(time.Minute)
		s.submit("act", append(form, "do", "cron-pause")...).has(http.StatusSeeOther)
		j, err := journal.New(s.s.cfg.Redis, nil)
		testkit.WantNil(t, "journal.New", err)
		j.ObserveCron("shop")(scheduler.Event{Kind: scheduler.Failed, Tick: scheduler.Tick{Name: cronName, At: time.Now()}, Err: errors.New("no disk")})
		testkit.WantNil(t, "Close", j.Close(s.Context()))
		for path, page := range s.crawl() {
			if found := machineTime.FindString(page.words()); found != "" && strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
				t.Errorf("%s has a time for machines, %s: %s", path, found, page.words())
			}
		}
	})
}

// Every page shows what it is for, under any mount, with links that stay under the mount. No GET changes anything.
func TestPagesUnderAnyPath(t *testing.T) {
	for name, tc := range map[string]struct {
		mount string
		wrap  func(http.Handler) http.Handler
	}{
		"root": {"/", func(h http.Handler) http.Handler { return h }},
		"mux": {"/admin/locks/", func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/admin/locks/", h)
			return mux
		}},
		"stripped": {"/admin/locks/", func(h http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/admin/locks/", http.StripPrefix("/admin/locks", h))
			return mux
		}},
	} {
		t.Run(name, func(t *testing.T) {
			staged(t, PagesConfig{}, nil, func(s *stage) {
				if tc.mount != "/" {
					p, err := s.s.Pages(PagesConfig{})
					testkit.WantNil(t, "Pages", err)
					s.handler = p
				}
				s.handler, s.mount = tc.wrap(s.handler), tc.mount
				before := [...]joblock.Status{s.status(heldKey), s.status(jobKey)}
				pages := s.crawl()
				for path, words := range map[string][]string{
					"./": {"There are no waiters", "held 2", "parked 1", "Cron"}, "locks": {heldKey, jobKey, "web1:71", "permit "}, s.lockPage(heldKey): {"web1:71 has had the lock", "web2:72", "Force release"},
					"jobs": {s.job, "retry", jobKey}, "sequences": {"none halted"}, "limits": {"geo", "1 of"}, "cron": {cronName, "at 02:30"}, "events": {"Nothing has happened"}, "nodes": {"No keeper works", "node-1"},
					"doctor": {"keeper"}, "audit": {"No action is on record"}, "help": {"orphaned", "Fence"},
				} {
					page := pages[path]
					if page == nil {
						t.Errorf("no link leads to %s", path)
						continue
					}
					if path == "./" {
						words = []string{"held", "parked", "Cron", "next"}
					}
					page.has(http.StatusOK, words...)
				}
				for path, page := range pages {
					for _, token := range s.tokens {
						if strings.Contains(page.text, token) {
							t.Errorf("%s has an owner token", path)
						}
					}
				}
				after := [...]joblock.Status{s.status(heldKey), s.status(jobKey)}
				for i := range before {
					if before[i].Fence != after[i].Fence || before[i].State != after[i].State {
						t.Errorf("a GET has changed %+v to %+v", before[i], after[i])
					}
				}
			})
		})
	}
}

// crawl follows every link from the overview on.
func (s *stage) crawl() map[string]*seen {
	pages := make(map[string]*seen)
	base, err := url.Parse("http://localhost" + s.mount)
	testkit.WantNil(s, "Parse", err)
	for todo := []string{"./"}; len(todo) > 0 && len(pages) < 400; todo = todo[1:] {
		path := todo[0]
		if pages[path] != nil {
			continue
		}
		at, err := base.Parse(path)
		testkit.WantNil(s, "Parse "+path, err)
		if !strings.HasPrefix(at.Path, s.mount) || at.Host != "localhost" {
			s.Errorf("%q leads away from the pages", path)
			continue
		}
		if path == "login" || path == "logout" || path == "act" || path == "bulk" || path == "lock" || path == "job" { // where forms go
			continue
		}
		page := s.open(strings.TrimPrefix(at.RequestURI(), s.mount))
		pages[path] = page
		if page.status != http.StatusOK {
			s.Errorf("%s: %d %s", path, page.status, page.words())
			continue
		}
		if !strings.Contains(page.header.Get("Content-Security-Policy"), "default-src 'none'") || page.header.Get("X-Content-Type-Options") != "nosniff" {
			s.Errorf("%s: %v", path, page.header)
		}
		if strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
			if bad := markupOf(page.text).harmless(); bad != "" || strings.Contains(page.text, "ZgotmplZ") {
				s.Errorf("%s has %s", path, cmp.Or(bad, "a text in a place for which it could not be escaped"))
			}
			for _, l := range page.links() {
				if !strings.Contains(l, "refresh=") {
					todo = append(todo, l)
				}
			}
		}
	}
	return pages
}

// Texts of others are shown as texts.
func TestHostileTextsOnThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		const evil = `<script>alert(1)</script>"'><img src=x onerror=alert(2)>{{.}}`
		l, err := s.locks.TryAcquire(s.Context(), evil, joblock.Holder(evil))
		testkit.WantNil(t, "TryAcquire", err)
		job := "default/" + evil
		s.tasks.put(job, asynq.TaskInfo{ID: evil, Queue: "default", Type: evil + "\u202e", LastErr: evil + "\u202e\x1b[2J", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1})
		_, err = l.Park(s.Context(), joblock.ForJob(job), joblock.Reserve(time.Hour))
		testkit.WantNil(t, "Park", err)
		s.submit("act", "do", "free-if-idle", "key", evil, "fence", s.fence(evil), "reason", evil).has(http.StatusSeeOther)
		l, err = s.locks.TryAcquire(s.Context(), evil, joblock.Holder(evil))
		testkit.WantNil(t, "TryAcquire", err)
		_, err = l.Park(s.Context(), joblock.ForJob(job), joblock.Reserve(time.Hour))
		testkit.WantNil(t, "Park", err)
		time.Sleep(time.Minute)
		q := url.QueryEscape(evil)
		shown := 0
		for _, path := range []string{"", "locks", "locks?prefix=" + q + "&holder=" + q + "&job=" + q, "lock?key=" + q, "jobs", "jobs?queue=" + q, "job?job=" + url.QueryEscape(job), "audit", "audit?by=" + q, "act?do=free-if-idle&key=" + q,
			"bulk?prefix=" + q, "cron?name=" + q, "limits?prefix=" + q, "events?key=" + q, "login?next=" + q, "cronjob?scope=" + q + "&name=" + q, "act?do=" + q, "locks?state=" + q, "locks?older=" + q, "locks?after=" + q, q} {
			page := s.open(path)
			page.lacks("<script>alert", "<img src=x", "\u202e", "ZgotmplZ")
			if strings.Contains(page.whole(), "&lt;script&gt;") {
				shown++
			}
			if page.status >= 500 {
				t.Errorf("%s: %d", path, page.status)
			}
		}
		if shown < 12 {
			t.Errorf("only %d pages show the text", shown)
		}
	})
}

// What was read last stays on the page while the store does not answer, and the page says how old it is.
func TestPagesWhileTheStoreIsAway(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		paths := []string{"", "locks", s.lockPage(heldKey), "jobs", "limits", "cron"}
		for _, path := range paths {
			s.open(path).has(http.StatusOK).lacks("does not answer")
		}
		s.store.SetAll(faultstore.Fault{Mode: faultstore.Refuse})
		time.Sleep(8 * time.Second)
		for _, path := range paths {
			s.open(path).has(http.StatusOK)
			time.Sleep(5 * time.Second)
			page := s.open(path).has(http.StatusOK)
			if !strings.Contains(page.text, "The store does not answer. This page shows what was read before: ") {
				t.Errorf("%s does not say that the store is away", path)
			}
		}
		s.open("locks").has(http.StatusOK, heldKey)
		s.open(s.lockPage("unknown")).has(http.StatusServiceUnavailable, "The store does not answer")
		s.submit("act", "do", "free-if-idle", "key", jobKey, "fence", "1", "reason", "x").has(http.StatusServiceUnavailable)
		s.store.Clear()
		time.Sleep(15 * time.Second)
		for _, path := range paths {
			s.open(path)
			time.Sleep(5 * time.Second)
			s.open(path).has(http.StatusOK).lacks("does not answer")
		}
	})
}

func TestBadPagesConfig(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a := newReplica(t, store())
		for _, share := range []float64{-1, 0.0001, 1.1} {
			_, err := a.s.Pages(PagesConfig{Share: share})
			testkit.WantErr(t, err, joblock.ErrInvalid)
		}
	})
}

// What the journal has is on the page of events, and in the history of its key.
func TestEventsOnThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		j, err := journal.New(s.s.cfg.Redis, nil)
		testkit.WantNil(t, "journal.New", err)
		j.Observe(event.Event{Kind: event.Lost, Key: heldKey, Holder: "web1:71", Fence: 7, Err: joblock.ErrLost})
		j.Observe(event.Event{Kind: event.GaveUp, Key: jobKey, Holder: "web3:73", Err: joblock.ErrTimeout})
		testkit.WantNil(t, "Close", j.Close(s.Context()))
		s.open("events").has(http.StatusOK, "2 events", "lost", heldKey, "gave up", jobKey)
		s.open("events?kind=lost").has(http.StatusOK, "1 event", heldKey).lacks(`class="key" href="lock?key=` + url.QueryEscape(jobKey))
		s.open(s.lockPage(heldKey)).has(http.StatusOK, "History", "web1:71", "lost")
	})
}
