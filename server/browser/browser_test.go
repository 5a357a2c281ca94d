// Package browser tries the pages of the lock server in a real browser, Debian's Chromium, on a real Redis.
//
// With JOBLOCK_PICTURES=DIR the test of all pages writes a picture of each into DIR.
package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/server"
)

// axe finds what keeps people with a screen reader, or with a keyboard only, from using a page. Its licence is next to it.
//
//go:embed testdata/axe.min.js
var axe string

var chromium context.Context // of the one browser of all tests; nil without one

func TestMain(m *testing.M) {
	path, err := find()
	if err != nil {
		if os.Getenv("CI") != "" {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Fprintf(os.Stderr, "\nNO BROWSER: %v\nThe pages of the lock server are not tried in a browser. \"make setup\" installs one.\n\n", err)
		os.Exit(0)
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.Flag("disable-gpu", true), chromedp.Flag("hide-scrollbars", true), chromedp.Flag("lang", "en-GB"))
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	var end context.CancelFunc
	chromium, end = chromedp.NewContext(allocator)
	if err := chromedp.Do(chromium); err != nil {
		fmt.Fprintln(os.Stderr, "the browser does not start:", err)
		os.Exit(1)
	}
	code := m.Run()
	end()
	cancel()
	os.Exit(code)
}

func find() (string, error) {
	if path := os.Getenv("JOBLOCK_CHROMIUM"); path != "" {
		return path, nil
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("no chromium in PATH, and JOBLOCK_CHROMIUM is not set")
}

// A tab is a tab of the browser that shows pages of one server.
type tab struct {
	*testing.T
	ctx  context.Context
	base string

	mu       sync.Mutex
	messages []string // that a page must not write to the console
	expected string   // what messages may have
}

func open(t *testing.T, base string) *tab {
	t.Helper()
	// Each tab has its own cookies.
	ctx, cancel := chromedp.NewContext(chromium, chromedp.WithNewBrowserContext())
	ctx, stop := context.WithTimeout(ctx, 5*time.Minute)
	b := &tab{T: t, ctx: ctx, base: base}
	b.do(chromedp.EmulateViewport(1280, 900))
	listening, quiet := context.WithCancel(ctx)
	var group sync.WaitGroup
	messages := chromedp.Console(listening)
	group.Go(func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			if m.Type == chromedp.ConsoleError || m.Type == chromedp.ConsoleWarning || m.IsException() {
				b.mu.Lock()
				b.messages = append(b.messages, fmt.Sprintf("%s: %s %s", m.Type, m.Text, m.URL))
				b.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() {
		b.quiet("the test")
		quiet()
		group.Wait()
		stop()
		cancel()
	})
	return b
}

func (b *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	if err := chromedp.Do(b.ctx, steps...); err != nil {
		b.Fatalf("%v; the page: %s", err, b.where())
	}
}

func (b *tab) where() string {
	ctx, cancel := context.WithTimeout(b.ctx, 5*time.Second)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText.slice(0, 3000)`))
	if err != nil {
		return err.Error()
	}
	return text
}

func (b *tab) visit(path string) {
	b.Helper()
	b.do(chromedp.Navigate(b.base + path))
}

func js[T any](b *tab, expression string) T {
	b.Helper()
	v, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	if err != nil {
		b.Fatalf("%.200s: %v", expression, err)
	}
	return v
}

// until waits until an expression is true in a page that is loaded: keys that are pressed before its script runs are lost.
func (b *tab) until(expression string) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 30*time.Second)
	defer cancel()
	for {
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`document.readyState === "complete" && !!(`+expression+")"))
		if err == nil && ok {
			return
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			b.Fatalf("never true: %s (%v); the page: %s", expression, err, b.where())
		}
	}
}

// shows waits until the page has a text.
func (b *tab) shows(text string) {
	b.Helper()
	b.until(fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
}

// quiet fails the test if a page has written an error to the console: a violation of the policy is one.
func (b *tab) quiet(what string) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.messages {
		if b.expected == "" || !strings.Contains(m, b.expected) {
			b.Errorf("%s: the console has: %s", what, m)
		}
	}
	b.messages = nil
}

func (b *tab) scheme(name string) {
	b.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	if err != nil {
		b.Fatal(err)
	}
}

// a11y fails the test if axe has a serious or critical finding.
func (b *tab) a11y(what, rules string) {
	b.Helper()
	js[bool](b, axe+"\n;true")
	text := js[string](b, `axe.run(document, {resultTypes: ["violations"]`+rules+`}).then(r => JSON.stringify(r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, nodes: v.nodes.slice(0, 4).map(n => n.html.slice(0, 200) + " " + (n.any[0]?.message || ""))}))))`)
	var found []struct {
		ID, Impact, Help string
		Nodes            []string
	}
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		b.Fatal(err)
	}
	for _, f := range found {
		if f.Impact == "serious" || f.Impact == "critical" {
			b.Errorf("%s: %s: %s: %q", what, f.Impact, f.Help, f.Nodes)
		} else {
			b.Logf("%s: %s: %s", what, f.Impact, f.Help)
		}
	}
}

// All pages, light, dark and narrow: no error, no violation of the policy, nothing that axe calls serious, and nothing
// that is wider than the window.
func TestEveryPage(t *testing.T) {
	s := newStage(t, func(_ *stage, cfg *server.Config) { cfg.CronScopes = []string{"shop"} })
	s.fill()
	b := open(t, s.url)
	pictures := os.Getenv("JOBLOCK_PICTURES")
	paths := s.sights()
	for _, look := range []struct {
		name, scheme string
		width        int64
	}{{"light", "light", 1280}, {"dark", "dark", 1280}, {"narrow", "light", 360}} {
		b.scheme(look.scheme)
		b.do(chromedp.EmulateViewport(look.width, 800))
		for _, p := range paths {
			what := p.name + " " + look.name
			b.visit(p.path)
			b.until(`document.querySelector("h1")`)
			if p.live {
				b.until(`document.querySelector("#liveness")?.textContent === "live"`)
				b.until(fmt.Sprintf(`document.body.innerText.includes(%q)`, p.has)) // the first walk over all jobs may be under way
			}
			if text := js[string](b, `document.body.innerText`); !strings.Contains(text, p.has) {
				t.Errorf("%s lacks %q: %s", what, p.has, text)
			}
			if wide := js[int](b, `document.documentElement.scrollWidth - document.documentElement.clientWidth`); wide > 0 {
				t.Errorf("%s: %d pixels are beyond the window: %s", what, wide, js[string](b, `[...document.querySelectorAll("main *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1).slice(0, 5).map(e => e.outerHTML.slice(0, 120)).join("\n")`))
			}
			if look.name == "narrow" {
				if off := js[bool](b, `(() => { const h = document.querySelector("nav [aria-current]"), n = document.querySelector("nav"); if (!h) return false; const a = h.getBoundingClientRect(), b = n.getBoundingClientRect(); return a.left < b.left - 1 || a.right > b.right + 1 })()`); off {
					t.Errorf("%s: the present page is out of sight in the navigation", what)
				}
				if !js[bool](b, `!document.querySelector("nav") || document.querySelector("nav").matches(".left, .right")`) {
					t.Errorf("%s: nothing tells that the navigation has more", what)
				}
				if low := js[string](b, `[...document.querySelectorAll(".list td:not(:first-child)")].filter(d => { const r = document.createRange(); r.selectNodeContents(d); const box = r.getClientRects()[0]; return box && box.height > 4 && box.top - d.getBoundingClientRect().top > 14 }).slice(0, 3).map(e => e.outerHTML.slice(0, 160)).join("\n")`); low != "" {
					t.Errorf("%s: an empty line stands before: %s", what, low)
				}
			}
			switch look.name { // what is wrong in one colour scheme only is contrast
			case "light":
				b.a11y(what, "")
			case "dark":
				b.a11y(what, `, runOnly: ["color-contrast"]`)
			}
			b.quiet(what)
			if pictures != "" {
				b.picture(filepath.Join(pictures, p.name+"-"+look.name+".webp"))
			}
		}
	}
}

func (b *tab) picture(path string) {
	b.Helper()
	size := call(b, page.GetLayoutMetrics, cdp.Empty{}).CSSContentSize
	whole := true
	shot := call(b, page.CaptureScreenshot, page.CaptureScreenshotParams{
		Format: page.CaptureScreenshotFormatWebp, CaptureBeyondViewport: &whole,
		Clip: &page.Viewport{Width: size.Width, Height: size.Height, Scale: 1},
	})
	if err := os.WriteFile(path, shot.Data, 0o644); err != nil {
		b.Fatal(err)
	}
}

// The way from the list to a forced release. The key moves on between the page and the form: the form is refused, the
// page says why and what is there now, and the second form means the new holder.
func TestForceWhileTheFenceMovesOn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := s.lock("deploy:shop", "ops1:71 make deploy")
	b := open(t, s.url)
	b.visit("locks")
	b.do(chromedp.Click(`a.key[href*="deploy"]`))
	b.shows("ops1:71 make deploy has had the lock")
	b.do(chromedp.Click(`.offers a.danger`))
	b.shows("If you do nothing") // only the next page says so
	b.shows("Until the holder notices, two holders may work at the same time")
	if !js[bool](b, `document.querySelector("form.act button").disabled`) {
		t.Error("the button works before the key is typed")
	}
	b.do(chromedp.SendKeys(`#reason`, "it hangs"), chromedp.SendKeys(`#typed`, "deploy:shop"))
	s.release(first)
	second := s.lock("deploy:shop", "ops2:99 make deploy")
	b.do(chromedp.Click(`form.act button`))
	b.shows("Nothing was changed: the key has moved on.")
	b.shows("ops2:99 make deploy has the key")
	if st := s.status("deploy:shop"); st.Fence != second.Fence() {
		t.Fatalf("the key is %+v", st)
	}
	b.expected = "409" // the browser writes the status of the page to the console
	b.do(chromedp.SendKeys(`#typed`, "deploy:shop"), chromedp.Click(`form.act button`))
	b.shows("by anyone: “it hangs”")
	b.until(`location.href.includes("done=")`)
	if st := s.status("deploy:shop"); st.State != joblock.StateFree {
		t.Errorf("the key is %+v", st)
	}
	<-second.Done()
}

// What changes is on the screen within a second, in its place, and the keyboard's focus stays.
func TestLiveUpdates(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lock := s.lock("export:1", "web1:71")
	s.lock("export:2", "web2:72")
	b := open(t, s.url)
	b.visit("locks?sort=key")
	b.until(`document.querySelector("#liveness")?.textContent === "live"`)
	js[bool](b, `document.querySelectorAll("tr.row a.key")[1].focus(), window.there = document.querySelectorAll("tr.row")[1], true`)
	took := s.seen(b, `document.querySelector("tr.row .state").textContent.trim() === "parked"`, func() { s.park(lock, "default/1") })
	t.Logf("a change of a row was on the screen after %s", took)
	if js[string](b, `document.activeElement.textContent`) != "export:2" || !js[bool](b, `window.there.isConnected`) {
		t.Error("the row that has not changed was replaced, or has lost the focus")
	}
	b.visit("lock?key=export:2")
	b.until(`document.querySelector("#liveness")?.textContent === "live"`)
	took = s.seen(b, `document.querySelector("#k-line").textContent.includes("web3:73")`, func() { s.wait("export:2", "web3:73") })
	t.Logf("a new waiter was on the screen after %s", took)
	// A list that was empty has its rows as soon as there are some, and their count. The rows that were there stay.
	b.visit("limits")
	b.until(`document.querySelector("tr.none")?.textContent.includes("No permit is taken")`)
	for i, name := range []string{"mail", "geo"} { // the second one comes before the first one
		_, err := limit.New(s.locks, 2).TryAcquire(s.Context(), name)
		s.nil(err)
		b.until(fmt.Sprintf(`document.querySelectorAll("tr.row").length === %d && !document.querySelector("tr.none")`, i+1))
		if i == 0 {
			js[bool](b, `document.querySelector("tr.row a.key").focus(), window.there = document.querySelector("tr.row"), true`)
		}
	}
	if got := js[string](b, `[...document.querySelectorAll("tr.row a.key")].map(a => a.textContent).join()`); got != "geo,mail" {
		t.Errorf("the rows are %s", got)
	}
	if js[string](b, `document.activeElement.textContent`) != "mail" || !js[bool](b, `window.there.isConnected`) {
		t.Error("the row that was there was replaced, or has lost the focus")
	}
	// The pause lasts over pages.
	b.do(chromedp.Click(`#pause`))
	b.until(`document.querySelector("#liveness").textContent === "stopped"`)
	b.visit("locks")
	b.until(`document.querySelector("#liveness").textContent === "stopped"`)
	b.do(chromedp.Click(`#pause`))
	b.until(`document.querySelector("#liveness").textContent === "live"`)
}

// seen returns how long it takes until a change is on the screen.
func (s *stage) seen(b *tab, expression string, change func()) time.Duration {
	b.Helper()
	js[bool](b, `new Promise(ok => setTimeout(() => ok(true), 300))`)
	js[bool](b, `window.seen = new Promise(ok => { const look = () => `+expression+` ? ok(Date.now()) : setTimeout(look, 10); look() }), true`)
	began := time.Now()
	change()
	at := js[float64](b, `window.seen`)
	return time.UnixMilli(int64(at)).Sub(began).Round(time.Millisecond)
}

// While Redis is away the page stays, and says how old it is. When Redis is back, so is the page.
func TestRedisAwayAndBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.lock("export:1", "web1:71")
	b := open(t, s.url)
	b.visit("locks")
	b.until(`document.querySelector("#liveness")?.textContent === "live"`)
	s.proxy.Refuse()
	b.shows("The store does not answer. This page shows what was read")
	b.shows("web1:71")
	b.visit("lock?key=export:never-seen") // there is nothing to show
	b.shows("The store does not answer")
	b.expected = "503"
	b.visit("locks")
	b.shows("web1:71")
	s.proxy.Heal()
	b.until(`!document.querySelector("#banner").innerText.includes("does not answer")`)
	b.shows("web1:71")
}

// While the server is away the page stays too. When it is back, the page is live again.
func TestServerAwayAndBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.lock("export:1", "web1:71")
	b := open(t, s.url)
	b.expected = "net::ERR" // what the browser says of a server that is away
	b.visit("locks")
	b.until(`document.querySelector("#liveness")?.textContent === "live"`)
	s.web.CloseClientConnections()
	s.away.Store(true)
	s.web.CloseClientConnections()
	b.until(`document.querySelector("#liveness").textContent !== "live"`)
	b.shows("web1:71")
	s.lock("export:0", "web0:70")
	s.away.Store(false)
	b.until(`document.querySelector("#liveness").textContent === "live"`)
	b.expected = ""
	b.mu.Lock()
	b.messages = nil
	b.mu.Unlock()
}

// Everything can be done without the script.
func TestWithoutJavaScript(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lock := s.lock("deploy:shop", "ops1:71 make deploy")
	s.lock("export:1", "web1:71")
	b := open(t, s.url)
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	b.visit("locks")
	b.typeInto(`#prefix`, "deploy:")
	b.press(`.filter button`, "1 lock</b> matches")
	b.press(`a.key`, "ops1:71 make deploy has had the lock")
	b.press(`.offers a.danger`, "If you go on")
	b.typeInto(`#reason`, "it hangs")
	b.typeInto(`#typed`, "deploy")
	b.press(`form.act button`, "What was typed is not the same")
	b.expected = "422"
	b.typeInto(`#typed`, "deploy:shop")
	b.press(`form.act button`, "by anyone: “it hangs”")
	<-lock.Done()
	b.visit("locks?refresh=5")
	b.has("every 15 s")
	b.visit("cron")
	b.has("No scheduler has run in the last year")
}

// call runs a command of the protocol. What chromedp itself offers needs scripts in the page.
func call[P, R any](b *tab, cmd cdp.Command[P, R], params P) R {
	b.Helper()
	r, err := chromedp.Call(b.ctx, cmd, params)
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// node finds a node, in a page that may be about to come.
func (b *tab) node(selector string) cdp.NodeID {
	b.Helper()
	for b.ctx.Err() == nil {
		doc, err := chromedp.Call(b.ctx, dom.GetDocument, dom.GetDocumentParams{})
		if err != nil {
			continue
		}
		got, err := chromedp.Call(b.ctx, dom.QuerySelector, dom.QuerySelectorParams{NodeID: doc.Root.NodeID, Selector: selector})
		if err == nil && got.NodeID != 0 {
			return got.NodeID
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.Fatalf("the page has no %s", selector)
	return 0
}

func (b *tab) html() string {
	b.Helper()
	for { // the page may go away between the two commands
		doc := call(b, dom.GetDocument, dom.GetDocumentParams{})
		got, err := chromedp.Call(b.ctx, dom.GetOuterHTML, dom.GetOuterHTMLParams{NodeID: doc.Root.NodeID})
		if err == nil {
			return got.OuterHTML
		}
		if b.ctx.Err() != nil {
			b.Fatal(err)
		}
	}
}

// reach finds a node and uses it, and does so again if the browser has meanwhile reloaded the document, which renumbers its
// nodes.
func (b *tab) reach(selector string, use func(cdp.NodeID) error) {
	b.Helper()
	for {
		err := use(b.node(selector))
		if err == nil {
			return
		}
		if b.ctx.Err() != nil || !strings.Contains(err.Error(), "node with given id") {
			b.Fatal(err)
		}
	}
}

func (b *tab) typeInto(selector, text string) {
	b.Helper()
	b.reach(selector, func(id cdp.NodeID) error {
		_, err := chromedp.Call(b.ctx, dom.Focus, dom.FocusParams{NodeID: id})
		return err
	})
	call(b, input.InsertText, input.InsertTextParams{Text: text})
}

// press clicks, and waits for a text of the next page.
func (b *tab) press(selector, then string) {
	b.Helper()
	var quad dom.Quad
	b.reach(selector, func(id cdp.NodeID) error {
		if _, err := chromedp.Call(b.ctx, dom.ScrollIntoViewIfNeeded, dom.ScrollIntoViewIfNeededParams{NodeID: id}); err != nil {
			return err
		}
		got, err := chromedp.Call(b.ctx, dom.GetContentQuads, dom.GetContentQuadsParams{NodeID: id})
		if err == nil {
			quad = got.Quads[0]
		}
		return err
	})
	x, y := (quad[0]+quad[4])/2, (quad[1]+quad[5])/2
	for _, kind := range []input.DispatchMouseEventType{input.DispatchMouseEventTypeMousePressed, input.DispatchMouseEventTypeMouseReleased} {
		call(b, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: kind, X: x, Y: y, Button: input.MouseButtonLeft, ClickCount: 1})
	}
	b.has(then)
}

// has waits until the page has a text. It works without scripts.
func (b *tab) has(text string) {
	b.Helper()
	for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(30 * time.Millisecond) {
		if strings.Contains(b.html(), text) {
			return
		}
	}
	b.Fatalf("the page lacks %q: %s", text, b.html())
}

// Who is not known signs in with a token, and gets where he wanted to go. The cookie is not for scripts.
func TestSignIn(t *testing.T) {
	t.Parallel()
	s := newStage(t, withToken)
	s.lock("export:1", "web1:71")
	b := open(t, s.url)
	b.visit("lock?key=export:1")
	b.shows("Sign in")
	b.a11y("sign in", "")
	b.do(chromedp.SendKeys(`#token`, "wrong"), chromedp.Click(`main button`))
	b.shows("This token is unknown")
	b.expected = "401"
	b.do(chromedp.SendKeys(`#token`, s.token), chromedp.Click(`main button`))
	b.shows("web1:71 has had the lock")
	if cookie := js[string](b, `document.cookie`); cookie != "" {
		t.Errorf("scripts see the cookie %s", cookie)
	}
	cookies, err := chromedp.Call(b.ctx, network.GetCookies, network.GetCookiesParams{URLs: []string{b.base}})
	if err != nil || len(cookies.Cookies) != 1 || !cookies.Cookies[0].HTTPOnly || cookies.Cookies[0].SameSite != network.CookieSameSiteStrict || strings.Contains(cookies.Cookies[0].Value, s.token) {
		t.Errorf("%+v, %v", cookies, err)
	}
	b.shows("You need the scope operate to act here.")
	b.do(chromedp.Click(`.me button.link`))
	b.shows("Sign in")
	b.visit("locks")
	b.shows("Sign in")
}

// The keyboard is enough.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.lock("export:1", "web1:71")
	s.lock("export:2", "web2:72")
	b := open(t, s.url)
	b.visit("locks?sort=key")
	b.do(chromedp.KeyEvent("j"), chromedp.KeyEvent("j"))
	if at := js[string](b, `document.activeElement.textContent`); at != "export:2" {
		t.Errorf("the focus is at %q", at)
	}
	b.do(chromedp.KeyEvent("\r"))
	b.shows("web2:72 has had the lock")
	b.do(chromedp.KeyEvent("g"), chromedp.KeyEvent("l"))
	b.until(`location.pathname.endsWith("/locks")`)
	b.do(chromedp.KeyEvent("/"))
	b.until(`document.activeElement.id === "prefix"`)
	js[bool](b, `document.activeElement.value = "", true`) // a real keyboard types no slash
	b.do(chromedp.KeyEvent("export:2\r"))
	b.shows("1 lock")
	b.do(chromedp.KeyEvent("?"))
	b.until(`location.pathname.endsWith("/help")`)
}
