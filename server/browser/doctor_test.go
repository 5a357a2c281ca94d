package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/journal"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/server"
)

// config changes settings of the Redis.
func (s *stage) config(settings ...string) {
	s.Helper()
	for i := 0; i < len(settings); i += 2 {
		s.nil(s.rdb.ConfigSet(s.Context(), settings[i], settings[i+1]).Err())
	}
}

// durable makes the Redis one of which nothing endangers locks.
func (s *stage) durable() { s.Helper(); s.config("appendonly", "yes", "appendfsync", "always") }

// replica connects a replica.
func (s *stage) replica() {
	s.Helper()
	_, port, _ := strings.Cut(s.redis.Addr(), ":")
	redistest.Start(s.T, "--replicaof", "127.0.0.1 "+port)
	s.await(func() bool {
		text, err := s.rdb.Info(s.Context(), "replication").Result()
		return err == nil && strings.Contains(text, "state=online")
	})
}

// What the doctor says first is true of each Redis, stands on the first page too, and leads to the finding that it is from.
func TestWhetherLocksAreSafe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set   func(*stage)
		says  string
		tone  string // class of the word
		means string // on the first page
	}{
		"well":      {(*stage).durable, "yes, because the doctor has found nothing at the servers of the locks that breaks a promise.", "", "The doctor has found no fault"},
		"everysec":  {func(s *stage) { s.config("appendonly", "yes") }, "yes, but a crash of the machine, which is rare, frees the locks of its last second, because of appendfsync ADDR: everysec.", "", "A crash of the machine loses the locks of the last second or more."},
		"eviction":  {func(s *stage) { s.durable(); s.config("maxmemory", "100mb", "maxmemory-policy", "allkeys-lru") }, "no, because of maxmemory-policy ADDR: allkeys-lru with maxmemory 104857600.", "dangerword", "When memory is short, the server drops records"},
		"volatile":  {func(s *stage) { s.config("save", "") }, "yes, but a restart of Redis, which is routine, frees held locks, because of persistence ADDR: volatile: nothing is kept on disk", "warnword", "A restart or a crash of the server loses the held locks"},
		"a replica": {func(s *stage) { s.durable(); s.replica() }, "yes, but a fail-over, which is uncommon, can free the newest locks, because of min-replicas-to-write ADDR: 0.", "warnword", "A master that is cut off from its replicas still grants locks"},
		"a guarded replica": {func(s *stage) { s.durable(); s.replica(); s.config("min-replicas-to-write", "1") },
			"yes, but a fail-over, which is uncommon, can free the newest locks, because of replication ADDR: 1 replica; a write is acknowledged before it is replicated.", "", "A fail-over can lose the latest locks"},
		"away": {func(s *stage) { s.proxy.Refuse() }, "unknown, because of servers: could not be read: dial tcp PROXY: connect: connection refused.", "warnword", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, func(_ *stage, cfg *server.Config) { cfg.CronScopes = []string{"shop"} })
			s.lock("export:1", "web1:71")
			c.set(s)
			says := "Safe for locks: " + strings.NewReplacer("ADDR", s.proxy.Addr(), "PROXY", s.proxy.Addr()).Replace(c.says)
			b := open(t, s.url)
			look := func(what string) {
				t.Helper()
				if tone := js[string](b, `document.querySelector(".safe b").className`); tone != c.tone {
					t.Errorf("%s: the word has the class %q, want %q", what, tone, c.tone)
				}
				b.a11y(what, "")
				b.scheme("dark")
				b.a11y(what+" in the dark", `, runOnly: ["color-contrast"]`)
				b.scheme("light")
				b.fits(what)
				b.quiet(what)
				if dir := os.Getenv("JOBLOCK_PICTURES"); dir != "" {
					b.picture(filepath.Join(dir, "safe-"+strings.ReplaceAll(name, " ", "-")+"-"+what+".webp"))
				}
			}
			b.visit("doctor")
			b.until(`document.querySelector(".safe")`)
			b.shows(says)
			look("doctor")
			b.leads(`.safe a`)
			if text := js[string](b, `document.body.innerText`); c.means == "" && strings.Contains(text, "no job has a lock") {
				t.Error("the page says of jobs what could not be read")
			}
			if c.means == "" { // there is nothing else to show
				if js[bool](b, `[...document.querySelectorAll("dt")].some(e => e.textContent === "Look at")`) {
					t.Error("a link leads to what cannot be read")
				}
				b.expected = "503"
				b.visit("")
				b.shows("Dial tcp " + s.proxy.Addr() + ": connect: connection refused. Nothing was read before")
				b.shows("by the server's clock")
				return
			}
			b.visit("")
			b.shows(says)
			b.shows(c.means)
			look("overview")
			b.leads(`.safe a`)
		})
	}
}

// leads follows a link to a finding, if there is one, and wants the finding to be on the page.
func (b *tab) leads(selector string) {
	b.Helper()
	subject := js[string](b, fmt.Sprintf(`document.querySelector(%q)?.textContent ?? ""`, selector))
	if subject == "" {
		return
	}
	b.do(chromedp.Click(selector))
	b.until(`location.pathname.endsWith("/doctor") && document.querySelector(".findings li:target")`)
	if got := js[string](b, `document.querySelector(".findings li:target .lead b").textContent`); got != subject {
		b.Errorf("the link %q leads to the finding %q", subject, got)
	}
}

// fits fails the test if something is beyond the window, a wide one or a narrow one.
func (b *tab) fits(what string) {
	b.Helper()
	for _, width := range []int64{360, 1280} {
		b.do(chromedp.EmulateViewport(width, 800))
		if wide := js[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
			b.Errorf("%s: %d pixels are beyond %d: %s", what, wide, width, js[string](b, `[...document.querySelectorAll("body > :not(header) *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map(e => e.outerHTML.slice(0, 160)).join("\n")`))
		}
	}
}

// Each finding leads to the page that shows what it is about, with a script and without one, and with the right to read alone.
func TestWhereFindingsLead(t *testing.T) {
	t.Parallel()
	s := newStage(t, withToken, func(_ *stage, cfg *server.Config) { cfg.CronScopes = []string{"shop"} })
	s.park(s.lock("exports:7", "web1:71"), "exports/7")
	j, err := journal.New(s.rdb, nil)
	s.nil(err)
	for range 3 {
		j.Observe(event.Event{Kind: event.GaveUp, Key: "import:prices", Holder: "imports:4"})
	}
	s.nil(j.Close(s.Context()))
	cron, err := scheduler.New(s.locks, &scheduler.Config{Scope: "shop", Node: "app1:31", Logger: quiet})
	s.nil(err)
	s.nil(cron.Func("rollup", "0 3 * * *", func(context.Context) error { return errors.New(`relation "sales_2026" does not exist`) }))
	ctx, stop := context.WithCancel(s.Context())
	s.group.Go(func() { _ = cron.Run(ctx) })
	defer stop()
	s.await(func() bool { return triggerAndWait(ctx, admin.Of(cron), "rollup") })

	leads := []struct{ finding, link, shows string }{
		{"no keeper works, and jobs have locks", "nodes and keepers", "No keeper works."},
		{"relation \"sales_2026\" does not exist", "the cron job", "sales_2026"},
		{`3 times "gave up" in the last hour`, "the events of the key", "import:prices"},
	}
	b := open(t, s.url)
	b.visit("doctor")
	b.do(chromedp.SendKeys(`#token`, s.token), chromedp.Click(`main button`))
	b.until(`document.querySelector(".safe")`)
	b.a11y("doctor", "")
	b.fits("doctor")
	for _, l := range leads {
		b.visit("doctor")
		b.shows(l.finding)
		js[bool](b, fmt.Sprintf(`[...document.querySelectorAll(".findings li")].find(e => e.innerText.includes(%q)).querySelector("a").click(), true`, l.finding))
		b.until(`!location.pathname.endsWith("/doctor")`)
		b.shows(l.shows)
		b.quiet(l.link)
	}
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
	b.visit("")
	b.press(`.safe a`, "What is well")
	b.has("Safe for locks: ")
	b.press(`.findings a[href^="events"]`, "import:prices")
	b.visit("doctor")
	b.press(`.findings a[href^="cronjob"]`, "sales_2026")
}
