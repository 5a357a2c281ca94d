package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/scheduler"
)

// A browser asks for pages as a browser does.
type browser struct {
	*replica
	handler http.Handler
	mount   string // with a slash at the end
	cookies map[string]string
	headers map[string]string
}

func (a *replica) browser(cfg PagesConfig) *browser {
	a.Helper()
	p, err := a.s.Pages(cfg)
	testkit.WantNil(a, "Pages", err)
	return &browser{replica: a, handler: p.Root(), mount: "/", cookies: make(map[string]string), headers: map[string]string{"Sec-Fetch-Site": "same-origin"}}
}

// A seen page is an answer.
type seen struct {
	*testing.T
	status int
	header http.Header
	text   string
}

func (b *browser) send(method, path string, form url.Values) *seen {
	b.Helper()
	var body *strings.Reader = strings.NewReader(form.Encode())
	r := httptest.NewRequest(method, "http://localhost"+b.mount+path, body)
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range b.headers {
		r.Header.Set(name, value)
	}
	if host := b.headers["Host"]; host != "" {
		r.Host = host
	}
	for name, value := range b.cookies {
		r.AddCookie(&http.Cookie{Name: name, Value: value})
	}
	w := httptest.NewRecorder()
	b.handler.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() {
		if c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		} else {
			b.cookies[c.Name] = c.Value
		}
	}
	return &seen{b.T, w.Code, w.Header(), w.Body.String()}
}

func (b *browser) open(path string) *seen { b.Helper(); return b.send(http.MethodGet, path, nil) }

func (b *browser) submit(path string, pairs ...string) *seen {
	b.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	return b.send(http.MethodPost, path, form)
}

// has fails the test unless the answer has the status and all texts.
func (s *seen) has(status int, texts ...string) *seen {
	s.Helper()
	if s.status != status {
		s.Fatalf("the status is %d, want %d: %s", s.status, status, s.words())
	}
	for _, text := range texts {
		if !strings.Contains(s.text, text) && !strings.Contains(s.words(), text) {
			s.Errorf("the page lacks %q: %s", text, s.words())
		}
	}
	return s
}

func (s *seen) lacks(texts ...string) *seen {
	s.Helper()
	for _, text := range texts {
		if strings.Contains(s.text, text) || strings.Contains(s.whole(), text) {
			s.Errorf("the page has %q", text)
		}
	}
	return s
}

var (
	tags  = regexp.MustCompile(`(?s)<svg.*?</svg>|<[^>]*>`)
	blank = regexp.MustCompile(`\s+`)
	refs  = regexp.MustCompile(`(?:href|src|action)="([^"]*)"`)
)

// parted finds what is only there to end lines between the parts of a name.
var parted = regexp.MustCompile(`<wbr>|<span class="w">([^<]*)</span>`)

// whole returns the page with the names in one piece.
func (s *seen) whole() string { return parted.ReplaceAllString(s.text, "$1") }

// words returns what a person reads.
func (s *seen) words() string {
	_, main, _ := strings.Cut(s.whole(), "<main")
	return blank.ReplaceAllString(html.UnescapeString(tags.ReplaceAllString("<main"+main, " ")), " ")
}

func (s *seen) location() string { return s.header.Get("Location") }

// links returns the addresses in the page.
func (s *seen) links() (all []string) {
	for _, m := range refs.FindAllStringSubmatch(s.text, -1) {
		if l := html.UnescapeString(m[1]); !strings.HasPrefix(l, "#") && !slices.Contains(all, l) {
			all = append(all, l)
		}
	}
	return all
}

// A stage is a store in which there is something of everything, and a browser before it.
type stage struct {
	*browser
	held, job, limit string
	tokens           []string
	tasks            *tasks
}

// tasks is a database of asynq. Pages read it while an action changes it.
type tasks struct {
	mu  sync.Mutex // guards what follows
	all map[string]*asynq.TaskInfo
}

func (f *tasks) put(job string, info asynq.TaskInfo) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[job] = &info
}

func (f *tasks) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

func (f *tasks) Queues() ([]string, error) { return []string{"default"}, nil }
func (f *tasks) GetQueueInfo(string) (*asynq.QueueInfo, error) {
	return &asynq.QueueInfo{Queue: "default"}, nil
}
func (f *tasks) GetTaskInfo(queue, id string) (*asynq.TaskInfo, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if info := f.all[queue+"/"+id]; info != nil {
		is := *info
		return &is, nil
	}
	return nil, asynq.ErrTaskNotFound
}
func (f *tasks) RunTask(queue, id string) error { return f.change(queue, id, asynq.TaskStatePending) }
func (f *tasks) DeleteTask(queue, id string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, queue+"/"+id)
	return nil
}
func (f *tasks) ArchiveTask(queue, id string) error {
	return f.change(queue, id, asynq.TaskStateArchived)
}
func (f *tasks) CancelProcessing(id string) error { return nil }
func (f *tasks) change(queue, id string, to asynq.TaskState) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all[queue+"/"+id].State = to
	return nil
}

const (
	heldKey  = "export:acct/7"
	jobKey   = "export:acct-8"
	freeKey  = "unused"
	cronName = "nightly/report"
)

// staged runs f on a stage, in virtual time.
func staged(t *testing.T, cfg PagesConfig, change func(*Config), f func(s *stage)) {
	bubble(t, func(t *testing.T) {
		_, record := audited(t)
		s := &stage{held: heldKey, job: "default/export-41", limit: "geo", tasks: &tasks{all: map[string]*asynq.TaskInfo{}}}
		changes := []func(*Config){record, func(cfg *Config) { cfg.CronScopes = []string{"shop"} }}
		if change != nil {
			changes = append(changes, change)
		}
		a := newReplica(t, store(), changes...)
		desk := a.s.cfg.desk()
		desk.Databases = []ops.Database{{Name: "jobs", Asynq: s.tasks}}
		var err error
		a.s.desk, err = ops.New(desk)
		testkit.WantNil(t, "ops.New", err)
		s.browser = a.browser(cfg)
		s.fill()
		s.lockedIn(f)
	})
}

func (s *stage) fill() {
	ctx := s.Context()
	lock := func(key string, opts ...joblock.AcquireOption) *joblock.Lock {
		l, err := s.locks.TryAcquire(ctx, key, opts...)
		testkit.WantNil(s, "TryAcquire "+key, err)
		token, err := l.Token().MarshalText()
		testkit.WantNil(s, "MarshalText", err)
		s.tokens = append(s.tokens, string(token))
		return l
	}
	lock(heldKey, joblock.Holder("web1:71"))
	go func() { _, _ = s.locks.Acquire(ctx, heldKey, joblock.Holder("web2:72")) }()
	parked := lock(jobKey, joblock.Holder("web3:73"))
	_, err := parked.Park(ctx, joblock.ForJob(s.job), joblock.Reserve(time.Hour))
	testkit.WantNil(s, "Park", err)
	s.tasks.put(s.job, asynq.TaskInfo{ID: "export-41", Queue: "default", Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1, LastErr: "no disk", NextProcessAt: time.Now().Add(time.Minute), Headers: s.carry(s.job, jobKey)})
	_, err = ops.AcquireLease(ctx, s.locks, ops.LeaseRequest{Key: s.limit, TTL: time.Hour, Limit: 3, Holder: "geocoder"})
	testkit.WantNil(s, "AcquireLease", err)
}

// carry returns the headers of a task of type export that carries locks on keys.
func (s *stage) carry(job string, keys ...string) map[string]string {
	s.Helper()
	var tokens []joblock.Token
	for _, key := range keys {
		token, err := joblock.NewToken(key, "owner", time.Minute)
		testkit.WantNil(s, "NewToken", err)
		tokens = append(tokens, token)
	}
	text, err := envelope.Envelope{Tokens: tokens, Retries: -1}.Seal(s.Context(), (*core.Locker)(s.locks).Ring(), job, "export")
	testkit.WantNil(s, "Seal", err)
	return map[string]string{envelope.Header: text}
}

// lockedIn runs f while a node has a cron job.
func (s *stage) lockedIn(f func(*stage)) {
	node, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: "node-1", Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(s, "scheduler.New", err)
	testkit.WantNil(s, "Func", node.Func(cronName, "CRON_TZ=Europe/Berlin 30 2 * * *", func(context.Context) error { return errors.New("no disk") }))
	ctx, cancel := context.WithCancel(s.Context())
	over := make(chan error)
	go func() { over <- node.Run(ctx) }()
	time.Sleep(time.Minute)
	f(s)
	cancel()
	<-over
}

func (s *stage) lockPage(key string) string { return "lock?" + url.Values{"key": {key}}.Encode() }

func (s *stage) fence(key string) string { return fmt.Sprint(s.status(key).Fence) }

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

// A forced release names the holding that the page has shown.
func TestForceFromThePages(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		fence := s.fence(heldKey)
		act := "act?" + url.Values{"do": {"force-release"}, "key": {heldKey}}.Encode()
		page := s.open(act).has(http.StatusOK, "web1:71 has had the lock", "two may work at the same time", "The next in line has the key", "Type "+heldKey, `name="fence" value="`+fence+`"`)
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

// What a caller may not do is neither offered nor done.
func TestRightsOnThePages(t *testing.T) {
	actions := map[string]func(s *stage) []string{
		"force-release":  func(s *stage) []string { return []string{"key", heldKey, "fence", s.fence(heldKey), "typed", heldKey} },
		"free-if-idle":   func(s *stage) []string { return []string{"key", jobKey, "fence", s.fence(jobKey)} },
		"run-task":       func(s *stage) []string { return []string{"job", s.job} },
		"delete-task":    func(s *stage) []string { return []string{"job", s.job} },
		"cron-pause":     func(s *stage) []string { return []string{"scope", "shop", "name", cronName} },
		"cron-trigger":   func(s *stage) []string { return []string{"scope", "shop", "name", cronName} },
		"cron-pause-all": func(s *stage) []string { return []string{"scope", "shop", "typed", "shop"} },
	}
	order := []string{"run-task", "delete-task", "force-release", "cron-pause", "cron-trigger", "cron-pause-all", "free-if-idle"} // with the lock goes the right to steer its job
	cron := []string{"cron-pause", "cron-trigger", "cron-pause-all"}
	for name, tc := range map[string]struct {
		who   Principal
		pages PagesConfig
		may   func(do string) bool
		looks int // the status of the overview
	}{
		"nothing":    {Principal{ID: "x", Scopes: ScopeLock, AllKeys: true, AllQueues: true}, PagesConfig{}, func(string) bool { return false }, 403},
		"reader":     {Principal{ID: "x", Scopes: ScopeRead, AllKeys: true, AllQueues: true}, PagesConfig{}, func(string) bool { return false }, 200},
		"operator":   {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, AllKeys: true, AllQueues: true}, PagesConfig{}, func(do string) bool { return !slices.Contains(cron, do) }, 200},
		"cron":       {Principal{ID: "x", Scopes: ScopeRead | ScopeCron, AllKeys: true, AllQueues: true}, PagesConfig{}, func(do string) bool { return slices.Contains(cron, do) }, 200},
		"admin":      {Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{}, func(string) bool { return true }, 200},
		"read-only":  {Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{ReadOnly: true}, func(string) bool { return false }, 200},
		"other keys": {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"import:"}, AllQueues: true}, PagesConfig{}, func(string) bool { return false }, 200},
		"own keys":   {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"export:"}, AllQueues: true}, PagesConfig{}, func(do string) bool { return !slices.Contains(cron, do) }, 200},
		"queues":     {Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Queues: []string{"mail"}, AllKeys: true}, PagesConfig{}, func(do string) bool { return do == "force-release" || do == "free-if-idle" }, 200},
	} {
		t.Run(name, func(t *testing.T) {
			authorize := func(cfg *Config) {
				cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return tc.who, nil })
			}
			staged(t, tc.pages, authorize, func(s *stage) {
				s.open("").has(tc.looks)
				if tc.looks != http.StatusOK {
					s.open("locks").has(403)
					return
				}
				audit := http.StatusForbidden
				if tc.who.Scopes&ScopeAdmin != 0 {
					audit = http.StatusOK
				}
				s.open("audit").has(audit)
				sees := tc.who.mayUse(heldKey)
				locks := s.open("locks").has(200)
				if strings.Contains(locks.whole(), heldKey) != sees {
					t.Errorf("sees the key: %t", !sees)
				}
				for _, path := range []string{s.lockPage(heldKey), "act?do=force-release&key=" + url.QueryEscape(heldKey)} {
					page := s.open(path)
					if offers := strings.Contains(page.text, `do=force-release`) || strings.Contains(page.text, `value="force-release"`); offers != tc.may("force-release") {
						t.Errorf("%s offers to force: %t", path, offers)
					}
				}
				seesJob := 200
				if !tc.who.mayEnqueueIn("default") {
					seesJob = 403
				}
				job := s.open("job?job=" + url.QueryEscape(s.job)).has(seesJob)
				if jobs := s.open("jobs").has(200); strings.Contains(jobs.whole(), s.job) != (sees && seesJob == 200) {
					t.Errorf("sees the job in the list: %t", seesJob != 200)
				}
				if !sees && strings.Contains(job.words(), "no disk") {
					t.Error("the job of another caller's key is shown")
				}
				for _, do := range order {
					page := s.submit("act", append(actions[do](s), "do", do, "reason", "x")...)
					if tc.may(do) != (page.status == http.StatusSeeOther || page.status == http.StatusConflict) || !tc.may(do) && page.status != http.StatusForbidden {
						t.Errorf("%s: %d %s", do, page.status, page.words())
					}
				}
				bulk := s.open("bulk?prefix=export:")
				if (bulk.status == 200) != (tc.may("free-if-idle")) && name != "other keys" {
					t.Errorf("bulk: %d", bulk.status)
				}
				forged := s.submit("bulk", "query", "prefix=export:", "k", heldKey, "f", s.fence(heldKey), "s", "held", "live", "1", "typed", "1 live", "reason", "x")
				if tc.may("free-if-idle") != (forged.status == 200) {
					t.Errorf("bulk: %d %s", forged.status, forged.words())
				}
			})
		})
	}
}

// Nothing but a page of the server itself may send a form.
func TestFormsOfOtherSites(t *testing.T) {
	staged(t, PagesConfig{}, func(cfg *Config) { cfg.Hosts = []string{"localhost", "ops.example"} }, func(s *stage) {
		form := []string{"do", "free-if-idle", "key", jobKey, "fence", s.fence(jobKey), "reason", "x"}
		for name, headers := range map[string]map[string]string{
			"cross-site":    {"Sec-Fetch-Site": "cross-site"},
			"same-site":     {"Sec-Fetch-Site": "same-site"},
			"origin":        {"Origin": "https://evil.example"},
			"null":          {"Origin": "null"},
			"rebound":       {"Sec-Fetch-Site": "same-origin", "Host": "evil.example"},
			"rebound port":  {"Sec-Fetch-Site": "same-origin", "Host": "evil.example:80", "Origin": "http://evil.example:80"},
			"host and user": {"Sec-Fetch-Site": "same-origin", "Host": "localhost.evil.example"},
		} {
			s.headers = headers
			if page := s.submit("act", form...); page.status != http.StatusForbidden && page.status != http.StatusMisdirectedRequest {
				t.Errorf("%s: %d %s", name, page.status, page.words())
			}
			if page := s.submit("logout"); page.status == http.StatusSeeOther {
				t.Errorf("%s: signed out", name)
			}
		}
		s.wantState(jobKey, joblock.StateParked)
		s.headers = map[string]string{"Sec-Fetch-Site": "cross-site"}
		s.open("locks").has(http.StatusOK) // a link in a chat
		s.headers = map[string]string{"Host": "evil.example"}
		s.open("locks").has(http.StatusMisdirectedRequest)
		s.headers = map[string]string{"Host": "ops.example:8443", "Origin": "https://ops.example:8443"}
		s.submit("act", form...).has(http.StatusSeeOther)
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			s.headers = nil
			s.send(method, "locks", nil).has(http.StatusMethodNotAllowed)
		}
		s.send(http.MethodPut, "act", nil).has(http.StatusMethodNotAllowed)
	})
}

func TestSessions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		path, token := accountsFile(t, `"scopes": ["read", "operate"], "prefixes": ["billing:"]`)
		_, record := audited(t)
		a := newReplica(t, store(), record, withAccounts(t, path))
		b := a.browser(PagesConfig{})
		if to := b.open("lock?key=billing:1&x=%22").has(http.StatusSeeOther).location(); to != "login?next=lock%3Fkey%3Dbilling%253A1%26x%3D%2522" {
			t.Errorf("the login is at %s", to)
		}
		b.open("live?page=locks").has(http.StatusUnauthorized)
		b.submit("act", "do", "force-release").has(http.StatusUnauthorized)
		b.open("login?next=locks").has(http.StatusOK, `name="token"`, `value="locks"`)
		for _, wrong := range []string{"", "x", token + "x", token[:len(token)-1], "jl_billing_", strings.Repeat("x", 1000)} {
			b.submit("login", "token", wrong).has(http.StatusUnauthorized, "This token is unknown")
		}
		for next, to := range map[string]string{
			"locks": "locks", "lock?key=billing:1": "lock?key=billing%3A1", "https://evil.example/": "./", "//evil.example": "./", "/\\evil.example": "./", "javascript:alert(1)": "./",
			"lock?key=%zz": "lock", "act?do=force-release": "./", "../x": "./", "": "./", "logout": "./", "locks\r\nX: y": "./",
		} {
			r := b.submit("login", "token", " "+token+"\n", "next", next).has(http.StatusSeeOther)
			if r.location() != to {
				t.Errorf("after the login for %q: %s, want %s", next, r.location(), to)
			}
			cookie := r.header.Get("Set-Cookie")
			if !strings.Contains(cookie, "HttpOnly") || !strings.Contains(cookie, "SameSite=Strict") || strings.Contains(cookie, token) || strings.Contains(cookie, "Path=") || strings.Contains(cookie, "Domain=") {
				t.Errorf("%s", cookie)
			}
		}
		b.headers["Origin"] = "https://localhost"
		if cookie := b.submit("login", "token", token).header.Get("Set-Cookie"); !strings.Contains(cookie, "Secure") {
			t.Errorf("over TLS: %s", cookie)
		}
		delete(b.headers, "Origin")
		b.open("locks").has(http.StatusOK, "No lock is held").has(http.StatusOK, "Sign out")
		good := b.cookies[sessionCookie]
		for name, value := range map[string]string{
			"other rights": strings.Replace(good, ".", "x.", 1), "no sum": good[:strings.Index(good, ".")], "cut": good[:len(good)-2], "empty": "", "nonsense": "a.b.c",
		} {
			b.cookies[sessionCookie] = value
			if r := b.open("locks"); r.status != http.StatusSeeOther {
				t.Errorf("%s: %d", name, r.status)
			}
		}
		b.cookies[sessionCookie] = good
		peer := newReplica(t, shared{a.store}, withAccounts(t, path)).browser(PagesConfig{})
		peer.cookies[sessionCookie] = good
		peer.open("locks").has(http.StatusOK) // replicas share sessions
		stranger := newReplica(t, memoryStore(), withAccounts(t, path)).browser(PagesConfig{})
		stranger.cookies[sessionCookie] = good
		stranger.open("locks").has(http.StatusSeeOther) // other stores do not
		time.Sleep(sessionTime - time.Minute)
		b.open("locks").has(http.StatusOK)
		time.Sleep(2 * time.Minute)
		b.open("locks").has(http.StatusSeeOther)
		b.submit("login", "token", token).has(http.StatusSeeOther)
		b.open("locks").has(http.StatusOK)
		old := b.cookies[sessionCookie]
		b.submit("logout").has(http.StatusSeeOther)
		if len(b.cookies) != 0 {
			t.Errorf("cookies after signing out: %v", b.cookies)
		}
		b.cookies[sessionCookie] = old
		writeAccount(t, path, `"scopes": ["read"], "expires": "2030-01-01T00:00:00Z"`) // a new token
		touch(t, path)
		time.Sleep(2 * checkFile)
		b.open("locks").has(http.StatusSeeOther)
		a.wantNoSecrets(token, good)
	})
}

// touch makes sure that the change of a file is seen: the file's time is that of the machine, not that of the bubble.
func touch(t *testing.T, path string) {
	t.Helper()
	later := time.Now().Add(time.Hour)
	testkit.WantNil(t, "Chtimes", os.Chtimes(path, later, later))
}

// With another Authorizer a session has the rights of its beginning.
func TestSessionsOfAFunction(t *testing.T) {
	bubble(t, func(t *testing.T) {
		who := Principal{ID: "ann", Scopes: ScopeRead, Expires: time.Now().Add(time.Hour), AllKeys: true, AllQueues: true}
		a := newReplica(t, store(), func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(r *http.Request) (Principal, error) {
				if r.Header.Get("Authorization") == "Bearer good" {
					return who, nil
				}
				return Principal{}, ErrUnauthorized
			})
		})
		_, err := a.locks.TryAcquire(t.Context(), key)
		testkit.WantNil(t, "TryAcquire", err)
		b := a.browser(PagesConfig{})
		b.submit("login", "token", "bad").has(http.StatusUnauthorized)
		b.submit("login", "token", "good").has(http.StatusSeeOther)
		b.open("locks").has(http.StatusOK, key)
		b.open("job?job=default/1").has(http.StatusOK)
		time.Sleep(61 * time.Minute)
		b.open("locks").has(http.StatusSeeOther)
		who.Prefixes, who.AllKeys = []string{strings.Repeat("x", 4000)}, false
		who.Expires = time.Time{}
		b.submit("login", "token", "good").has(http.StatusForbidden, "too many prefixes")
	})
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

// A stream tells of a change within a second, and does not move rows.
func TestStreamOfAPage(t *testing.T) {
	staged(t, PagesConfig{}, nil, func(s *stage) {
		hs := HTTPServer(s.handler)
		lines := newPipes()
		served := make(chan struct{})
		go func() { defer close(served); _ = hs.Serve(lines) }()
		transport := &http.Transport{DialContext: lines.dial}
		listen := func(query string) (<-chan message, func()) {
			ctx, cancel := context.WithCancel(s.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/live?"+query, nil)
			testkit.WantNil(t, "NewRequest", err)
			res, err := transport.RoundTrip(r)
			testkit.WantNil(t, "RoundTrip", err)
			if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
				t.Fatalf("%d %v", res.StatusCode, res.Header)
			}
			all := make(chan message, 1000)
			go func() {
				defer close(all)
				defer res.Body.Close()
				for in := bufio.NewReader(res.Body); ; {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					if text, ok := strings.CutPrefix(line, "data: "); ok {
						var m message
						testkit.WantNil(t, "Unmarshal", json.Unmarshal([]byte(text), &m))
						all <- m
					}
				}
			}()
			return all, cancel
		}
		list, leave := listen("page=locks")
		one, leaveOne := listen("page=lock&key=" + url.QueryEscape(jobKey))
		first := <-list
		rows := first.rows()
		if len(rows) != 3 || first.part("l-sum") == "" || first.part("banner") == "" || !strings.Contains(first.part("walk"), "are read every second") {
			t.Errorf("%+v", first)
		}
		<-one
		time.Sleep(5 * time.Second)
		drain(list)
		drain(one)
		began := time.Now()
		testkit.WantNil(t, "Force", ops.Force(s.Context(), s.locks, s.status(jobKey), true, "away"))
		for _, from := range []<-chan message{list, one} {
			m := <-from
			if time.Since(began) > time.Second {
				t.Errorf("notified after %s", time.Since(began))
			}
			if !strings.Contains(fmt.Sprint(m), "free") {
				t.Errorf("%+v", m)
			}
		}
		for i, pause := range []time.Duration{100, 950, 300} { // wherever between two looks the change comes
			time.Sleep(pause * time.Millisecond)
			drain(one)
			began := time.Now()
			if i%2 == 0 {
				_, err := s.locks.TryAcquire(s.Context(), jobKey)
				testkit.WantNil(t, "TryAcquire", err)
			} else {
				testkit.WantNil(t, "Force", ops.Force(s.Context(), s.locks, s.status(jobKey), false, "away"))
			}
			want := map[bool]string{true: "held", false: "free"}[i%2 == 0]
			for m := range one {
				if strings.Contains(m.part("k-now"), `class="state `+want) {
					break
				}
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("%s was shown after %s", want, took)
			}
		}
		// A new lock is counted, and no row moves.
		_, err := s.locks.TryAcquire(s.Context(), "aaa")
		testkit.WantNil(t, "TryAcquire", err)
		deadline := time.After(time.Minute)
		for told := false; !told; {
			select {
			case m := <-list:
				for _, row := range m.rows() {
					if !slices.Contains(rows, row) {
						t.Errorf("the stream brings the new row %s", row)
					}
				}
				told = strings.Contains(m.part("l-sum"), "1 more since")
			case <-deadline:
				t.Fatal("the page does not show the new lock")
			}
		}
		s.store.SetAll(faultstore.Fault{Mode: faultstore.Refuse})
		for m := range list {
			if strings.Contains(m.part("banner"), "does not answer") {
				break
			}
		}
		s.store.Clear()
		for m := range list {
			if strings.Contains(m.part("banner"), `id="banner"`) && !strings.Contains(m.part("banner"), "does not answer") {
				break
			}
		}
		leave()
		leaveOne()
		// Close ends the streams.
		last, _ := listen("page=overview")
		<-last
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		testkit.WantNil(t, "Close", s.s.Close(ctx))
		for range last {
		}
		s.open("locks").has(http.StatusServiceUnavailable)
		transport.CloseIdleConnections()
		_ = hs.Close()
		<-served
	})
}

type message struct {
	Now   int64 `json:"now"`
	Parts []struct{ ID, HTML string }
}

func (m message) part(id string) string {
	for _, p := range m.Parts {
		if p.ID == id {
			return p.HTML
		}
	}
	return ""
}

// rows returns the ids of the rows that came, alone or in a list.
func (m message) rows() (ids []string) {
	for _, p := range m.Parts {
		for _, begin := range strings.Split(p.HTML, `<tr id="`)[1:] {
			id, _, _ := strings.Cut(begin, `"`)
			ids = append(ids, id)
		}
	}
	return ids
}

func drain(c <-chan message) {
	for {
		select {
		case <-c:
		default:
			return
		}
	}
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

// Pages and API have one rule for tasks: what the task carries by a genuine header must be the caller's. A lock that is
// bound to the task, as its holder binds it, gives no right over the task, and takes none away.
func TestPagesSteerOnlyTasksThatCarryTheCallersLocks(t *testing.T) {
	who := Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"export:"}, AllQueues: true}
	authorize := func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
	}
	staged(t, PagesConfig{}, authorize, func(s *stage) {
		l, err := s.locks.TryAcquire(s.Context(), "secret:payroll")
		testkit.WantNil(t, "TryAcquire", err)
		bound := "default/of-another-lock"
		_, err = l.Park(s.Context(), joblock.ForJob(bound), joblock.Reserve(time.Hour))
		testkit.WantNil(t, "Park", err)
		for job, c := range map[string]struct {
			headers map[string]string
			own     bool
		}{
			s.job:                    {nil, false}, // which the caller's lock is bound to
			"default/foreign":        {s.carry("default/foreign", "secret:payroll"), false},
			"default/both":           {s.carry("default/both", jobKey, "secret:payroll"), false},
			"default/of-another-job": {s.carry(s.job, jobKey), false},
			"default/forged":         {map[string]string{envelope.Header: s.carry("default/forged", jobKey)[envelope.Header] + "x"}, false},
			"default/own":            {s.carry("default/own", jobKey), true},
			bound:                    {s.carry(bound, jobKey), true},
		} {
			queue, id, _ := strings.Cut(job, "/")
			put := func() {
				s.tasks.put(job, asynq.TaskInfo{ID: id, Queue: queue, Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1, LastErr: "a secret", Headers: c.headers})
			}
			put()
			if p := s.open("job?job=" + url.QueryEscape(job)); !c.own && job != "default/both" && strings.Contains(p.text, "a secret") {
				t.Errorf("%s: the page of the job shows the task", job)
			}
			left := s.tasks.count()
			api, page, gone := http.StatusForbidden, http.StatusForbidden, 0
			if c.own {
				api, page, gone = http.StatusOK, http.StatusSeeOther, 1
			}
			if r := s.do(http.MethodPost, "/v1/jobs/default/"+id+"/drop", map[string]any{"reason": "x"}, with("If-Match", "*")); r.status != api || s.tasks.count() != left-gone {
				t.Errorf("%s: the API answers %d %s", job, r.status, r.text)
			}
			put()
			if p := s.submit("act", "do", "delete-task", "job", job, "reason", "x"); p.status != page || s.tasks.count() != left-gone {
				t.Errorf("%s: the page answers %d, %d tasks are left", job, p.status, s.tasks.count())
			}
		}
	})
}

// A page names a job as the API and the command line do: with %2F for a slash in the name of the queue, and %25 for a %.
func TestPagesSteerTasksOfEveryQueue(t *testing.T) {
	who := Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, AllKeys: true, Queues: []string{"a/b%c"}}
	authorize := func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
	}
	staged(t, PagesConfig{}, authorize, func(s *stage) {
		const job, other = "a%2Fb%25c/1", "a%2Fb%25/1"
		s.tasks.put("a/b%c/1", asynq.TaskInfo{ID: "1", Queue: "a/b%c", Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1})
		s.tasks.put("a/b%/1", asynq.TaskInfo{ID: "1", Queue: "a/b%", Type: "export", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1})
		left := s.tasks.count()
		for _, bad := range []string{"a/b%c/1", "a%2fb%25c/1", "/1", "a%2Fb%25c/"} {
			if p := s.submit("act", "do", "delete-task", "job", bad, "reason", "x"); p.status != http.StatusBadRequest && p.status != http.StatusForbidden {
				t.Errorf("%s: %d %s", bad, p.status, p.words())
			}
		}
		s.submit("act", "do", "delete-task", "job", other, "reason", "x").has(http.StatusForbidden)
		s.open("job?" + url.Values{"job": {other}}.Encode()).has(http.StatusForbidden)
		s.open("job?"+url.Values{"job": {job}}.Encode()).has(http.StatusOK, "Delete the task")
		s.submit("act", "do", "run-task", "job", job, "reason", "x").has(http.StatusSeeOther)
		s.submit("act", "do", "delete-task", "job", job, "reason", "x").has(http.StatusSeeOther)
		if n := s.tasks.count(); n != left-1 {
			t.Errorf("%d tasks are left of %d", n, left)
		}
	})
}

// The API and the pages show a caller no task in a queue that is not its own, and the doctor tells a caller with prefixes of
// its own keys only. What the pages have read for others before makes no difference.
func TestNothingOfOthersIsShown(t *testing.T) {
	var who Principal
	authorize := func(cfg *Config) {
		cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) { return who, nil })
	}
	staged(t, PagesConfig{}, authorize, func(s *stage) {
		j, err := journal.New(s.s.cfg.Redis, nil)
		testkit.WantNil(t, "journal.New", err)
		for range 3 {
			j.Observe(event.Event{Kind: event.Lost, Key: heldKey, Holder: "web1:71", Fence: 7, Err: joblock.ErrLost})
			j.Observe(event.Event{Kind: event.Lost, Key: "secret:payroll", Holder: "web9:99", Fence: 7, Err: errors.New("payroll is broken")})
			j.ObserveCron("shop")(scheduler.Event{Kind: scheduler.Failed, Tick: scheduler.Tick{Name: "wages", At: time.Now()}, Err: errors.New("no money")})
		}
		testkit.WantNil(t, "Close", j.Close(s.Context()))
		for _, key := range []string{"export:paused", "secret:paused"} {
			_, err := s.s.desk.As("root", "").Act(s.Context(), ops.PauseKey{Key: key, Reason: key[:7] + "why"})
			testkit.WantNil(t, "PauseKey", err)
		}
		relays, err := (*core.Locker)(s.locks).TryAcquire(s.Context(), keyspace.Outboxes, core.Options{OwnKey: true, Memo: true})
		testkit.WantNil(t, "TryAcquire", err)
		testkit.WantNil(t, "WriteMemo", relays.WriteMemo(s.Context(), workerstats.Relays{"orders": {At: time.Now(), Began: time.Now(), LastError: "secret:refused", FailedAt: time.Now()}}.Encode()))
		testkit.WantNil(t, "Release", relays.Release(s.Context(), core.Release{}))
		all := Principal{ID: "all", Scopes: ScopeRead, AllKeys: true, AllQueues: true}
		keys := Principal{ID: "keys", Scopes: ScopeRead, Prefixes: []string{"export:", "shop"}, AllQueues: true}
		queues := Principal{ID: "queues", Scopes: ScopeRead, AllKeys: true, Queues: []string{"mine"}}
		jobPath := "/v1/locks/" + url.QueryEscape(jobKey)
		task, foreign := []string{"no disk", "retry"}, []string{"secret:payroll", "web9", "payroll is broken", "wages", "no money", cronName}
		for _, c := range []struct {
			who         Principal
			path        string
			has, hasNot []string
		}{
			{all, jobPath, task, nil}, {all, jobPath + "/explain", task, nil}, {all, "lock?key=" + jobKey, task[:1], nil},
			{queues, jobPath, nil, task}, {queues, jobPath + "/explain", nil, task}, {queues, "lock?key=" + jobKey, nil, task},
			{keys, jobPath, task, nil},
			{all, "/v1/doctor", []string{heldKey, "secret:payroll"}, nil}, {all, "doctor", []string{heldKey, "secret:payroll"}, nil}, {all, "", nil, nil},
			{keys, "/v1/doctor", []string{heldKey}, foreign}, {keys, "doctor", []string{heldKey}, foreign}, {keys, "", nil, foreign[:3]},
			{all, "limits", []string{"export%3apaused", "secret%3apaused", "secret:why"}, nil}, {all, "nodes", []string{"orders", "secret:refused"}, nil},
			{keys, "limits", []string{"export%3apaused"}, []string{"secret"}}, {keys, "nodes", []string{"orders"}, []string{"secret:"}},
			{keys, "/v1/controls", []string{"export:paused"}, []string{"secret:"}}, {keys, "/v1/outboxes", []string{"orders"}, []string{"secret:"}},
		} {
			who = c.who
			var text string
			if strings.HasPrefix(c.path, "/") {
				text = string(s.get(c.path).text)
			} else {
				s.open(c.path)
				time.Sleep(5 * time.Second)
				text = s.open(c.path).text
			}
			for _, want := range c.has {
				if !strings.Contains(text, want) {
					t.Errorf("%s: %q does not have %q: %s", c.who.ID, c.path, want, text)
				}
			}
			for _, never := range c.hasNot {
				if strings.Contains(text, never) {
					t.Errorf("%s: %q has %q: %s", c.who.ID, c.path, never, text)
				}
			}
		}
	})
}
