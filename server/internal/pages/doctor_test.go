package pages

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

// examined is a Desk whose doctor has found something.
type examined struct {
	*fake
	found []ops.Finding
	well  []string // subjects
}

func (e *examined) Doctor(context.Context) (ops.Report, error) {
	all := ops.Report{Findings: e.found}
	for _, f := range e.found {
		all.Checks = append(all.Checks, ops.Probe{Status: f.Severity, Subject: f.Subject, Node: f.Node, Found: f.Found})
	}
	for _, subject := range e.well {
		all.Checks = append(all.Checks, ops.Probe{Status: ops.Well, Subject: subject, Found: "as it should be"})
	}
	all.Safe = ops.SafetyOf(all.Findings, all.Checks)
	return all, nil
}

// The doctor says first whether locks are safe, and leads to the pages about what it has found.
func TestWhatTheDoctorSaysFirst(t *testing.T) {
	t.Parallel()
	find := func(s ops.Severity, subject, node, fix string) ops.Finding {
		return ops.Finding{Severity: s, Subject: subject, Node: node, Found: "found", Means: "means", Fix: fix}
	}
	for name, c := range map[string]struct {
		found []ops.Finding
		well  []string
		says  string
		href  string // of the first finding
	}{
		"well":                {nil, []string{"appendonly", "keeper"}, "yes, because the doctor has found nothing", ""},
		"not looked at":       {nil, []string{"keeper", "cron"}, "unknown, because this server does not look", ""},
		"a fault":             {[]ops.Finding{find(ops.Fault, "maxmemory-policy", "r:1", "x")}, nil, "no, because of maxmemory-policy r:1: found.", ""},
		"away":                {[]ops.Finding{find(ops.Fault, "servers", "", "x")}, nil, "unknown, because of servers: found.", ""},
		"refuses":             {[]ops.Finding{find(ops.Fault, "writes", "", "x")}, nil, "unknown, because of writes: found.", ""},
		"no rights":           {[]ops.Finding{find(ops.Note, "permissions", "r:1", "x")}, []string{"appendonly"}, "unknown, because of permissions r:1: found.", ""},
		"nothing on disk":     {[]ops.Finding{find(ops.Warning, "persistence", "r:1", "x"), find(ops.Note, "replication", "r:1", "x")}, nil, ops.SafeButRestart + ", because of persistence r:1: found.", ""},
		"unsaid":              {[]ops.Finding{find(ops.Note, "persistence", "r:1", "x")}, nil, ops.SafeButMaybeRestart + ", because of persistence r:1: found.", ""},
		"a crash":             {[]ops.Finding{find(ops.Warning, "appendonly", "r:1", "x")}, nil, ops.SafeButCrash + ", because of appendonly r:1: found.", ""},
		"a crash, and a note": {[]ops.Finding{find(ops.Warning, "appendonly", "r:1", "x"), find(ops.Note, "appendfsync", "r:1", "x")}, nil, ops.SafeButCrash, ""},
		"of the machine":      {[]ops.Finding{find(ops.Note, "appendfsync", "r:1", "x")}, nil, ops.SafeButMachine + ", because of appendfsync", ""},
		"one lags":            {[]ops.Finding{find(ops.Note, "replica lag", "r:1", "x")}, nil, ops.SafeButFailover + ", because of replica lag", ""},
		"a fail-over":         {[]ops.Finding{find(ops.Note, "replication", "r:1", "x")}, nil, ops.SafeButFailover + ", because of replication", ""},
		"full":                {[]ops.Finding{find(ops.Warning, "maxmemory", "r:1", "x")}, nil, "yes, because the doctor has found nothing", ""},
		"slow":                {[]ops.Finding{find(ops.Warning, "pub/sub", "", "x")}, []string{"appendonly"}, "yes, because the doctor has found nothing", ""},
		"no lists":            {[]ops.Finding{find(ops.Warning, "permissions", "", "x")}, []string{"appendonly"}, "yes, because the doctor has found nothing", ""},
		"a job":               {[]ops.Finding{find(ops.Warning, "cron", "shop: a/b", "x")}, []string{"appendonly"}, "yes, because", "cronjob?name=a%2Fb&amp;scope=shop"},
		"a scope":             {[]ops.Finding{find(ops.Fault, "cron", "shop", "x")}, []string{"appendonly"}, "yes, because", "cron?scope=shop"},
		"not shown":           {[]ops.Finding{find(ops.Fault, "cron", "other: x", "x")}, []string{"appendonly"}, "yes, because", ""},
		"a keeper":            {[]ops.Finding{find(ops.Fault, "keeper", "w1", "x")}, []string{"appendonly"}, "yes, because", "nodes"},
		"a key":               {[]ops.Finding{find(ops.Warning, "journal", "import:prices", "joblock events --since 1h -- import:prices")}, []string{"appendonly"}, "yes, because", "events?key=import%3Aprices"},
		"events of a job":     {[]ops.Finding{find(ops.Warning, "journal", "shop: rates", "joblock events --cron rates")}, []string{"appendonly"}, "yes, because", "cronjob?name=rates&amp;scope=shop"},
		"a process":           {[]ops.Finding{find(ops.Warning, "journal", "web:7", "joblock events --since 1h lists them")}, []string{"appendonly"}, "yes, because", "events"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h, err := New(Config{Desk: &examined{&fake{}, c.found, c.well}, Scopes: []string{"shop"}, Recorded: true})
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				page := h.get("doctor", someone).Body.String()
				wantPage(t, tags.ReplaceAllString(page, ""), true, "Safe for locks: "+c.says)
				if has := strings.Contains(page, "<dt>Look at</dt>"); has != (c.href != "") || has && !strings.Contains(page, `<dt>Look at</dt><dd><a href="`+c.href+`"`) {
					t.Errorf("a link: %t, want %q in %s", has, c.href, page)
				}
				h.get("", someone)
				time.Sleep(2 * time.Second)
				page = h.get("", someone).Body.String()
				wantPage(t, tags.ReplaceAllString(page, ""), true, "Safe for locks: "+c.says)
				if c.href != "" && c.found[0].Severity != ops.Note {
					wantPage(t, page, true, `<a href="`+c.href+`">`+visible(c.found[0].Node))
				}
			})
		})
	}
}

// What comes from the store can neither be markup nor hide in a page.
func TestHostileNamesOnThePageOfTheDoctor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const evil = "<i>x\x1b[2J\u202e"
		h, err := New(Config{Desk: &examined{&fake{}, []ops.Finding{
			{Severity: ops.Warning, Subject: "cron", Node: evil + "1", Found: evil + "2", Means: evil + "3", Fix: evil + "4"},
			{Severity: ops.Fault, Subject: "permissions", Node: evil + "5", Found: evil + "6", Means: evil + "7", Fix: evil + "8"},
		}, nil}, Recorded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		page := h.get("doctor", someone).Body.String()
		for _, n := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
			wantPage(t, page, true, `&lt;i&gt;x\x1b[2J\u202e`+n)
		}
		wantPage(t, page, false, "<i>x", "\x1b", "\u202e")
	})
}

// A finding about something that the caller may not see, or that could not be read, has no link.
func TestFindingsWithoutALink(t *testing.T) {
	t.Parallel()
	h := &Handler{cfg: Config{Scopes: []string{"shop"}}}
	key := ops.Finding{Subject: "journal", Node: "import:prices", Fix: "joblock events -- import:prices"}
	for _, c := range []struct {
		f    ops.Finding
		who  *Caller
		want string
	}{
		{key, &Caller{AllKeys: true, AllQueues: true}, "events?key=import%3Aprices"},
		{key, &Caller{Prefixes: []string{"import:"}, AllQueues: true}, "events?key=import%3Aprices"},
		{key, &Caller{Prefixes: []string{"export:"}, AllQueues: true}, ""},
		{ops.Finding{Subject: "keeper", Found: "could not be read: EOF"}, &Caller{AllKeys: true, AllQueues: true}, ""},
		{ops.Finding{Subject: "cron", Node: "shop", Found: "this user may not look at that: NOPERM"}, &Caller{AllKeys: true, AllQueues: true}, ""},
		{ops.Finding{Subject: "cron", Node: "shop", Found: "no node is up"}, &Caller{AllKeys: true, AllQueues: true}, "cron?scope=shop"},
	} {
		if got := h.linked(c.f, c.who).Href; got != c.want {
			t.Errorf("%+v for %q leads to %q, want %q", c.f, c.who.Prefixes, got, c.want)
		}
	}
}
