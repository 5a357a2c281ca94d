package server

import (
	"context"
	"errors"
	"html"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
)

// evil is a text that is dangerous in every place of a page. The word after x- says where it came from.
func evil(place string) string {
	return `<x-` + place + ` onclick=alert(1)>"'` + "`" + `></textarea></title></script><script>alert(1)</script>{{.}}&lt;`
}

// The markup of a page: the names of its elements and of its attributes, and the addresses in it.
type markup struct{ elements, attributes, addresses map[string]bool }

// markupOf reads HTML as a browser would, as far as that is needed to find what is an element.
func markupOf(text string) markup {
	m := markup{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	for {
		i := strings.IndexByte(text, '<')
		if i < 0 {
			return m
		}
		text = text[i+1:]
		if text == "" || text[0] == '!' || text[0] == '/' {
			continue
		}
		end := strings.IndexAny(text, " \t\n/>")
		if end < 0 {
			return m
		}
		m.elements[text[:end]] = true
		text = text[end:]
		for {
			if text = strings.TrimLeft(text, " \t\n/"); text == "" || text[0] == '>' {
				break
			}
			end := strings.IndexAny(text, " \t\n/>=")
			if end <= 0 {
				break
			}
			name, value := text[:end], ""
			text = text[end:]
			if strings.HasPrefix(text, "=") {
				text = text[1:]
				if text != "" && (text[0] == '"' || text[0] == '\'') {
					value, text, _ = strings.Cut(text[1:], text[:1])
				} else {
					end := strings.IndexAny(text, " \t\n>")
					value, text = text[:end], text[end:]
				}
			}
			m.attributes[name] = true
			if name == "href" || name == "src" || name == "action" {
				m.addresses[html.UnescapeString(value)] = true
			}
		}
	}
}

// harmless says what is wrong with the markup of a page, or "".
func (m markup) harmless() string {
	for name := range m.elements {
		if strings.HasPrefix(name, "x-") || slices.Contains([]string{"style", "iframe", "object", "embed", "base", "textarea", "img"}, name) {
			return "the element " + name
		}
	}
	for name := range m.attributes {
		if strings.HasPrefix(strings.ToLower(name), "on") || name == "style" || name == "srcdoc" || name == "formaction" {
			return "the attribute " + name
		}
	}
	for at := range m.addresses {
		u, err := url.Parse(at)
		if err != nil || u.Scheme != "" || u.Host != "" || strings.HasPrefix(at, "/") {
			return "the address " + at
		}
	}
	return ""
}

// evilPlaces are the texts of others that pages show, or do not.
var evilPlaces = []struct {
	name, what string
	shown      bool
}{
	{"key", "a key", true}, {"holder", "the label of a holder", true}, {"waiter", "the label of a waiter", true}, {"limit", "the key of a limit", true},
	{"permit", "the holder of a permit", true}, {"job", "the ID of a job", true}, {"type", "the type of a task", true}, {"error", "the error of a task", true},
	{"payload", "the payload of a task", false}, {"memo", "the memo of a lock", false}, {"reason", "the reason of an action", true}, {"cron", "the name of a cron job", true}, {"cronerror", "the error of a cron job", true},
	{"pause", "the reason of a pause", true}, {"node", "the name of a node", true}, {"event", "the error in an event", true},
}

// fillEvil puts the dangerous text everywhere, and returns the paths of the pages that no link leads to.
func (s *stage) fillEvil() (paths []string) {
	ctx := s.Context()
	key := evil("key")
	_, err := s.locks.TryAcquire(ctx, key, joblock.Holder(evil("holder")))
	testkit.WantNil(s, "TryAcquire", err)
	go func() { _, _ = s.locks.Acquire(ctx, key, joblock.Holder(evil("waiter"))) }()
	_, err = ops.AcquireLease(ctx, s.locks, ops.LeaseRequest{Key: evil("limit"), TTL: time.Hour, Limit: 3, Holder: evil("permit")})
	testkit.WantNil(s, "AcquireLease", err)
	job := "default/" + evil("job")
	s.tasks.put(job, asynq.TaskInfo{
		ID: evil("job"), Queue: "default", Type: evil("type"), Payload: []byte(evil("payload")), LastErr: evil("error") + "\u202e\x1b[2J\x00", State: asynq.TaskStateRetry, MaxRetry: 3, Retried: 1,
	})
	l, err := s.locks.TryAcquire(ctx, "kept")
	testkit.WantNil(s, "TryAcquire", err)
	token, err := l.Park(ctx, joblock.ForJob(job), joblock.Reserve(time.Hour))
	testkit.WantNil(s, "Park", err)
	_ = token
	lease, err := ops.AcquireLease(ctx, s.locks, ops.LeaseRequest{Key: "noted", TTL: time.Hour})
	testkit.WantNil(s, "AcquireLease", err)
	testkit.WantNil(s, "WriteMemo", ops.WriteMemo(ctx, s.locks, lease.Token, time.Hour, []byte(evil("memo"))))
	gone, err := s.locks.TryAcquire(ctx, "gone")
	testkit.WantNil(s, "TryAcquire", err)
	_, err = gone.Park(ctx, joblock.Reserve(time.Hour))
	testkit.WantNil(s, "Park", err)
	freed := s.raw("POST", "/act", url.Values{"do": {"free-if-idle"}, "key": {"gone"}, "fence": {s.fence("gone")}, "reason": {evil("reason")}}.Encode(), site(sameOrigin)).has(http.StatusSeeOther)
	j, err := journal.New(s.s.cfg.Redis, nil)
	testkit.WantNil(s, "journal.New", err)
	j.Observe(event.Event{Kind: event.Lost, Key: key, Holder: evil("holder"), Fence: 7, Err: errors.New(evil("event"))})
	testkit.WantNil(s, "Close", j.Close(ctx))
	return []string{"/" + freed.location(), "/lock?key=kept", "/lock?key=gone", "/lock?key=noted", "/lock?key=" + url.QueryEscape(key), "/job?job=" + url.QueryEscape(job)}
}

// withEvilCron runs f while a node with a dangerous name has a cron job with a dangerous name.
func (s *stage) withEvilCron(f func()) {
	ctx, cancel := context.WithCancel(s.Context())
	node, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: evil("node"), Logger: slog.New(slog.DiscardHandler)})
	testkit.WantNil(s, "scheduler.New", err)
	testkit.WantNil(s, "Func", node.Func(evil("cron"), "@every 1m", func(context.Context) error { return errors.New(evil("cronerror") + "\u202e") }))
	over := make(chan error)
	go func() { over <- node.Run(ctx) }()
	time.Sleep(3 * time.Minute)
	testkit.WantNil(s, "Pause", admin.Of(node).Pause(ctx, evil("cron"), evil("pause")))
	f()
	cancel()
	<-over
}

// tryEvil says for each place whether its text is shown, and that it is nothing but text.
func (s *stage) tryEvil() map[string]string {
	result := make(map[string]string)
	s.withEvilCron(func() {
		extra := s.fillEvil()
		time.Sleep(time.Minute)
		pages := s.crawl()
		for _, path := range extra {
			pages[path] = s.raw("GET", path, "")
		}
		for _, p := range evilPlaces {
			result[p.name] = "not shown"
		}
		for path, page := range pages {
			if !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
				continue
			}
			if bad := markupOf(page.text).harmless(); bad != "" {
				s.Errorf("%s has %s", path, bad)
			}
			if strings.ContainsAny(page.text, "\u202e\x1b\x00") || strings.Contains(page.text, "ZgotmplZ") {
				s.Errorf("%s has a character that steers, or a text in a place for which it could not be escaped", path)
			}
			for _, p := range evilPlaces {
				if strings.Contains(page.whole(), "&lt;x-"+p.name) {
					result[p.name] = "shown as text"
				}
				if strings.Contains(page.text, "<x-"+p.name) {
					s.Errorf("%s has the element x-%s", path, p.name)
				}
			}
		}
		// In the answers of the API, and in every parameter of every page.
		for _, path := range []string{"/v1/locks?own=1", "/v1/jobs", "/v1/sequences", "/v1/cron", "/v1/events", "/v1/audit", "/v1/explain?key=" + url.QueryEscape(evil("key"))} {
			if r := s.raw("GET", path, ""); r.status != 200 || strings.Contains(r.text, "<") || r.header.Get("Content-Type") != "application/json" || r.header.Get("X-Content-Type-Options") != "nosniff" {
				s.Errorf("%s: %d %s", path, r.status, r.header)
			}
		}
		for name, params := range map[string]string{
			"": "refresh", "locks": "prefix holder job older waiters state after sort dir", "lock": "key done", "jobs": "prefix queue task after", "sequences": "prefix state after", "job": "job done", "limits": "prefix after",
			"cron": "name scope state after done", "cronjob": "scope name done", "events": "key prefix kind after", "nodes": "refresh", "doctor": "again", "audit": "key by action outcome after",
			"help": "q", "act": "do key job scope name reason fence", "bulk": "prefix holder job query", "login": "next", "live": "page every",
		} {
			all := url.Values{}
			for param := range strings.FieldsSeq(params) {
				all.Set(param, evil("parameter"))
				page := s.raw("GET", "/"+name+"?"+url.Values{param: all[param]}.Encode(), "")
				if bad := markupOf(page.text).harmless(); bad != "" || page.status >= 500 {
					s.Errorf("%s with %q: %d, %s", name, param, page.status, bad)
				}
			}
			if bad := markupOf(s.raw("GET", "/"+name+"?"+all.Encode(), "").text).harmless(); bad != "" {
				s.Errorf("%s: %s", name, bad)
			}
		}
	})
	return result
}
