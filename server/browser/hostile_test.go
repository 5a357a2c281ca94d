package browser

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/scheduler/admin"
	"github.com/joblock/toolkit/server"
)

// Names of scopes, jobs and nodes, errors and reasons are from elsewhere. None becomes a part of a page, goes beyond a narrow
// window, or turns the text around it.
func TestHostileNamesOfCronJobs(t *testing.T) {
	t.Parallel()
	const (
		markup = `"><script>hit=1</script>`
		image  = `'"><img src=x onerror=hit=1>&lt;b&gt;{{.}}`
		turned = "\u202egnp.exe\u2066"
	)
	scope := markup + "\u202e" // 32 bytes at most
	long := strings.Repeat("W", 200)
	s := newStage(t, func(_ *stage, cfg *server.Config) { cfg.CronScopes = []string{scope} })
	ctx, stop := context.WithCancel(s.Context())
	defer stop()
	names := []string{"a " + image, "b " + turned, "c שלום 12", "d " + long[:126]}
	for _, node := range []string{markup + image, "ענן 7 " + turned, long} {
		cron, err := scheduler.New(s.locks, &scheduler.Config{Scope: scope, Node: node, Logger: quiet})
		s.nil(err)
		for _, name := range names {
			s.nil(cron.Func(name, "0 3 * * *", func(context.Context) error { return errors.New(name + markup + "\x1b[31m" + long) }))
		}
		s.group.Go(func() { _ = cron.Run(ctx) })
	}
	ops, err := admin.New(s.locks, scope, turned+image)
	s.nil(err)
	for _, name := range names {
		s.await(func() bool { return triggerAndWait(ctx, ops, name) })
	}
	s.nil(ops.Pause(ctx, names[0], turned+image+long))
	s.lock("export:1", long)
	_, err = s.locks.TryAcquire(ctx, "export:"+image+long, joblock.Holder(turned+image))
	s.nil(err)

	b := open(t, s.url)
	paths := []string{"cron", "nodes", "doctor", ""}
	for _, name := range names {
		paths = append(paths, "cronjob?"+url.Values{"scope": {scope}, "name": {name}}.Encode())
	}
	for i, path := range paths {
		b.visit(path)
		b.until(`document.querySelector("h1")`)
		if path == "" {
			b.until(`document.querySelector(".safe")`)
		}
		b.fits(path)
		if hits := js[string](b, `[typeof hit === "undefined" ? "" : "a script ran", ...[...document.querySelectorAll("script:not(head > script), img, b > b, main iframe")].map(e => e.outerHTML)].join(" ").trim()`); hits != "" {
			t.Errorf("%s has become a part of the page: %s", path, hits)
		}
		if text := js[string](b, `document.documentElement.innerHTML`); strings.ContainsAny(text, "\u202e\u2066\x1b") {
			t.Errorf("%s: the page has a character that turns text around, or an escape", path)
		}
		if path == "cron" {
			b.a11y(path, "")
		}
		b.quiet(path)
		if dir := os.Getenv("JOBLOCK_PICTURES"); dir != "" {
			b.do(chromedp.EmulateViewport(360, 800))
			b.picture(filepath.Join(dir, "hostile-"+string(rune('0'+i))+".webp"))
			b.do(chromedp.EmulateViewport(1280, 800))
		}
	}
}
