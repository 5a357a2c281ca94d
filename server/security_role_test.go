package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// A role is a caller with some rights.
type role struct {
	name  string
	who   Principal
	pages PagesConfig
}

var roles = []role{
	{"no account", Principal{}, PagesConfig{}},
	{"lock, enqueue", Principal{ID: "x", Scopes: ScopeLock | ScopeEnqueue, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"operate, cron", Principal{ID: "x", Scopes: ScopeOperate | ScopeCron, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"read", Principal{ID: "x", Scopes: ScopeRead, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"read, operate", Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"the same, other keys", Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Prefixes: []string{"import:"}, AllQueues: true}, PagesConfig{}},
	{"the same, another queue", Principal{ID: "x", Scopes: ScopeRead | ScopeOperate, Queues: []string{"mail"}, AllKeys: true}, PagesConfig{}},
	{"read, cron", Principal{ID: "x", Scopes: ScopeRead | ScopeCron, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"admin", Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{}},
	{"admin, read-only pages", Principal{ID: "x", Scopes: ScopeAdmin, AllKeys: true, AllQueues: true}, PagesConfig{ReadOnly: true}},
}

// deeds is everything that can be asked of the pages, in an order in which none is in the way of the next.
var deeds = []struct {
	name string
	do   func(s *stage) *seen
}{
	{"look at the overview", func(s *stage) *seen { return s.open("") }},
	{"look at the locks", func(s *stage) *seen { return s.open("locks") }},
	{"look at a lock", func(s *stage) *seen { return s.open(s.lockPage(heldKey)) }},
	{"look at the jobs", func(s *stage) *seen { return s.open("jobs") }},
	{"look at a job", func(s *stage) *seen { return s.open("job?job=" + s.job) }},
	{"look at the sequences", func(s *stage) *seen { return s.open("sequences") }},
	{"look at the limits", func(s *stage) *seen { return s.open("limits") }},
	{"look at the cron jobs", func(s *stage) *seen { return s.open("cron") }},
	{"look at a cron job", func(s *stage) *seen { return s.open("cronjob?scope=shop&name=" + url.QueryEscape(cronName)) }},
	{"look at the events", func(s *stage) *seen { return s.open("events") }},
	{"look at the nodes", func(s *stage) *seen { return s.open("nodes") }},
	{"look at what the doctor finds", func(s *stage) *seen { return s.open("doctor") }},
	{"look at the audit", func(s *stage) *seen { return s.open("audit") }},
	{"look at the help", func(s *stage) *seen { return s.open("help") }},
	{"the live stream of the audit, which does not exist", func(s *stage) *seen { return s.open("live?page=audit") }},
	{"the form to force", func(s *stage) *seen { return s.open("act?do=force-release&key=" + url.QueryEscape(heldKey)) }},
	{"the form to free many", func(s *stage) *seen { return s.open("bulk?prefix=export:") }},
	{"cancel a task", func(s *stage) *seen { return s.deed("cancel-task", "job", "default/active") }},
	{"end a job, and archive it", func(s *stage) *seen { return s.deed("end-and-archive-task", "job", "default/active") }},
	{"end a job, and delete it", func(s *stage) *seen { return s.deed("end-and-delete-task", "job", "default/active") }},
	{"run a task", func(s *stage) *seen { return s.deed("run-task", "job", s.job) }},
	{"archive a task", func(s *stage) *seen { return s.deed("archive-task", "job", s.job) }},
	{"delete a task", func(s *stage) *seen { return s.deed("delete-task", "job", s.job) }},
	{"add a note about a job", func(s *stage) *seen { return s.deed("annotate-job", "job", s.job) }},
	{"pause a key", func(s *stage) *seen { return s.deed("pause-key", "key", "paused:k") }},
	{"resume a key", func(s *stage) *seen { return s.deed("resume-key", "key", "paused:k") }},
	{"skip a job", func(s *stage) *seen { return s.deed("skip-job", "key", jobKey, "fence", s.fence(jobKey)) }},
	{"free many", func(s *stage) *seen {
		return s.submit("bulk", "query", "prefix=export:", "k", "export:many", "f", s.fence("export:many"), "s", "parked", "live", "0", "reason", "x")
	}},
	{"free if idle", func(s *stage) *seen {
		return s.deed("free-if-idle", "key", "export:idle", "fence", s.fence("export:idle"))
	}},
	{"force release", func(s *stage) *seen {
		return s.deed("force-release", "key", heldKey, "fence", s.fence(heldKey), "typed", heldKey)
	}},
	{"cron: pause", func(s *stage) *seen { return s.deed("cron-pause", "scope", "shop", "name", cronName) }},
	{"cron: resume", func(s *stage) *seen { return s.deed("cron-resume", "scope", "shop", "name", cronName) }},
	{"cron: trigger", func(s *stage) *seen { return s.deed("cron-trigger", "scope", "shop", "name", cronName) }},
	{"cron: stop a backfill", func(s *stage) *seen { return s.deed("cron-stop-backfill", "scope", "shop", "name", cronName) }},
	{"cron: pause all", func(s *stage) *seen { return s.deed("cron-pause-all", "scope", "shop", "typed", "shop") }},
	{"cron: resume all", func(s *stage) *seen { return s.deed("cron-resume-all", "scope", "shop") }},
	{"cron: forget, while a node has the job", func(s *stage) *seen { return s.deed("cron-forget", "scope", "shop", "name", cronName) }},
	{"cron: pause, in a scope that is not served", func(s *stage) *seen { return s.deed("cron-pause", "scope", "other", "name", cronName) }},
}

func (s *stage) deed(do string, pairs ...string) *seen {
	s.Helper()
	deedsDone[do] = true
	return s.submit("act", append(pairs, "do", do, "reason", "x")...)
}

// deedsDone are the actions that were tried.
var deedsDone = make(map[string]bool)

// fillForRoles adds what the deeds need in addition to what a stage has.
func (s *stage) fillForRoles() {
	for _, key := range []string{"export:many", "export:idle", "export:active"} {
		l, err := s.locks.TryAcquire(s.Context(), key)
		testkit.WantNil(s, "TryAcquire", err)
		opts := []joblock.ParkOption{joblock.Reserve(time.Hour)}
		if key == "export:active" {
			opts = append(opts, joblock.ForJob("default/active"))
		}
		_, err = l.Park(s.Context(), opts...)
		testkit.WantNil(s, "Park", err)
	}
	s.tasks.put("default/active", asynq.TaskInfo{ID: "active", Queue: "default", Type: "export", State: asynq.TaskStateActive})
}

// Who may do what on the pages: each caller tries everything.
func TestSecurityRoles(t *testing.T) {
	rows := make([]string, len(deeds))
	head := "| |"
	for i, d := range deeds {
		rows[i] = "| " + d.name + " |"
	}
	for _, r := range roles {
		head += " " + r.name + " |"
		authorize := func(cfg *Config) {
			cfg.Authorize = AuthorizeFunc(func(*http.Request) (Principal, error) {
				if r.who.ID == "" {
					return Principal{}, ErrUnauthorized
				}
				return r.who, nil
			})
		}
		staged(t, r.pages, authorize, func(s *stage) {
			s.fillForRoles()
			for i, d := range deeds {
				page := d.do(s)
				rows[i] += fmt.Sprintf(" %d |", page.status)
				if changed := page.status == http.StatusSeeOther && !strings.HasPrefix(page.location(), "login"); changed && (r.who.Scopes&(ScopeOperate|ScopeCron|ScopeAdmin) == 0 || r.pages.ReadOnly) {
					s.Errorf("%s may %s", r.name, d.name)
				}
			}
		})
	}
	for _, verb := range ops.Verbs {
		if do := strings.ReplaceAll(verb.Action.Verb(), " ", "-"); !deedsDone[do] && !verb.Has("From") && !verb.Has("Limit") { // they have no form
			t.Errorf("no deed tries the action %s", do)
		}
	}
	wantTable(t, "roles", append([]string{head}, rows...))
}
