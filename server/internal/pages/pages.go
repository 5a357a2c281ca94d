package pages

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// Config configures a Handler. Desk is required.
type Config struct {
	Desk     Desk
	Scopes   []string // of cron jobs
	ReadOnly bool     // no actions are allowed
	Recorded bool     // actions can be recorded; without a record there are no actions

	// Share is the largest share of the store's time that all walks together take after their first ones, and also the
	// largest share that each other kind of read takes. Other reads take less while there are walks. From 0.001 to 1;
	// default 0.005.
	Share float64

	Logger *slog.Logger // default slog.Default()
}

// Handler has the pages. Make a Handler with New, and Close it.
type Handler struct {
	cfg    Config
	all    []*page
	byName map[string]*page
	sets   map[string]*template.Template
	assets assets

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	mu     sync.Mutex // ensures that nothing is added to busy after ctx has ended; also guards events
	busy   sync.WaitGroup

	cache     *cache
	locks     *walker[Row]
	jobs      *walker[ops.Job]
	sequences *walker[ops.Sequence]
	keys      *walker[keyName]
	walking   atomic.Int32 // how many walkers are walking
	ring      ring
	// events are the latest events, the newest first. mu guards them.
	events []ops.Event
	ahead  atomic.Int64 // how far the store's clock is ahead of this machine's, in nanoseconds

	streams streams
}

// A page is rendered by a function that gets a View. The function's result is It in the page's templates.
type page struct {
	name  string
	title string
	nav   string // "" if the navigation does not show the page
	under string // the page in the navigation that this one belongs to
	set   string // the set of templates; "" means the set of the page's name
	admin bool
	live  bool
	make  func(context.Context, *View) (any, error)
}

func (p *page) href() string {
	if p.name == "overview" {
		return "./"
	}
	return p.name
}

// New returns a Handler, and reads nothing.
func New(cfg Config) (*Handler, error) {
	if cfg.Desk == nil {
		return nil, errors.New("Config.Desk is nil")
	}
	if cfg.Share = cmp.Or(cfg.Share, 0.005); !(cfg.Share >= 0.001 && cfg.Share <= 1) {
		return nil, fmt.Errorf("Config.Share is %v, must be from 0.001 to 1", cfg.Share)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	h := &Handler{cfg: cfg}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.cache = &cache{h: h, m: make(map[string]*entry)}
	h.locks = newWalker(h, h.walkLocks, h.ring.add)
	h.jobs = newWalker(h, h.walkJobs, nil)
	h.sequences = newWalker(h, h.walkSequences, nil)
	h.keys = newWalker(h, h.walkKeys, nil)
	h.all = []*page{
		{name: "overview", title: "Overview", nav: "Overview", live: true, make: h.overview},
		{name: "locks", title: "Locks", nav: "Locks", live: true, make: h.locksPage},
		{name: "lock", title: "Lock", under: "locks", live: true, make: h.lockPage},
		{name: "jobs", title: "Jobs", nav: "Jobs", live: true, make: h.jobsPage},
		{name: "job", title: "Job", under: "jobs", live: true, make: h.jobPage},
		{name: "sequences", title: "Sequences", nav: "Sequences", live: true, make: h.sequencesPage},
		{name: "limits", title: "Limits", nav: "Limits", live: true, make: h.limitsPage},
		{name: "cron", title: "Cron", nav: "Cron", live: true, make: h.cronPage},
		{name: "cronjob", title: "Cron job", under: "cron", live: true, make: h.cronJobPage},
		{name: "events", title: "Events", nav: "Events", live: true, make: h.eventsPage},
		{name: "nodes", title: "Nodes and keepers", nav: "Nodes", live: true, make: h.nodesPage},
		{name: "doctor", title: "Doctor", nav: "Doctor", make: h.doctorPage},
		{name: "audit", title: "Audit", nav: "Audit", admin: true, make: h.auditPage},
		{name: "help", title: "Help", nav: "Help", make: h.helpPage},
		{name: "act", title: "Act"},
		{name: "bulk", title: "Act on many locks", under: "locks"},
		{name: "login", title: "Sign in"},
		{name: "problem", title: "Problem"},
	}
	h.byName = make(map[string]*page)
	for _, p := range h.all {
		h.byName[p.name] = p
	}
	if err := h.parse(); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Handler) page(name string) *page { return h.byName[name] }

// Close ends all streams and reads, and waits until they have ended.
func (h *Handler) Close() {
	h.mu.Lock()
	h.cancel()
	h.mu.Unlock()
	h.busy.Wait()
}

// enter counts something that Close waits for, until h.busy.Done is called. It returns false after Close.
func (h *Handler) enter() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return false
	}
	h.busy.Add(1)
	return true
}

// storeNow returns the store's clock, as far as it is known.
func (h *Handler) storeNow() time.Time { return time.Now().Add(time.Duration(h.ahead.Load())) }

// clock records what the store's clock shows now.
func (h *Handler) clock(now ops.Time) {
	if !now.IsZero() {
		h.ahead.Store(int64(time.Until(now.Time)))
	}
}

// A Request is a request for a page.
type Request struct {
	Name  string // of the page, or of a file
	Asset bool   // served without authentication
}

// Parse returns what a request asks for. If r has no pattern of the mount, only the last segment of the path counts. ok
// is false if there is no such page.
func (h *Handler) Parse(r *http.Request) (req Request, ok bool) {
	name, ok := nameOf(r)
	if !ok {
		return Request{}, false
	}
	if h.assets.has(name) {
		return Request{name, true}, true
	}
	switch name {
	case "":
		return Request{Name: "overview"}, true
	case "live", "logout", "login", "act", "bulk":
		return Request{Name: name}, true
	}
	p := h.page(name)
	return Request{Name: name}, p != nil && p.make != nil && name != "overview"
}

// nameOf returns the last segment of the path. All pages are at the same depth. If the pattern of the mount is known,
// there must be nothing between the mount and the name.
func nameOf(r *http.Request) (string, bool) {
	path := r.URL.Path
	pattern := r.Pattern
	if i := strings.IndexByte(pattern, '/'); i >= 0 {
		mount := pattern[i:]
		if j := strings.IndexByte(mount, '{'); j >= 0 {
			mount = mount[:j]
		}
		path = strings.TrimPrefix(path, strings.TrimSuffix(mount, "/"))
		rest := strings.TrimPrefix(path, "/")
		return rest, !strings.Contains(rest, "/")
	}
	return path[strings.LastIndexByte(path, '/')+1:], true
}

// ServeAsset answers with a file.
func (h *Handler) ServeAsset(w http.ResponseWriter, r *http.Request, name string) {
	h.assets.serve(w, r, name)
}

// Headers sets the headers that every answer of the pages has. The content security policy allows only what the pages
// use.
func Headers(hd http.Header) {
	hd.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	hd.Set("X-Content-Type-Options", "nosniff")
	hd.Set("X-Frame-Options", "DENY") // for browsers without frame-ancestors
	// With no-referrer, browsers send "Origin: null" with forms, but over plain HTTP the Origin is the only sign of where
	// a form comes from. same-origin sends nothing to other sites either.
	hd.Set("Referrer-Policy", "same-origin")
	hd.Set("Cross-Origin-Opener-Policy", "same-origin")
	hd.Set("Cross-Origin-Resource-Policy", "same-origin")
	hd.Set("Cache-Control", "no-store")
	hd.Set("X-Robots-Tag", "noindex, nofollow")
}

// Serve answers with a page, a stream or the result of an action. The caller of Serve must have identified the viewer.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, name string, who *Caller) {
	v := h.view(name, r.URL.Query(), who)
	switch {
	case name == "live":
		h.live(w, r, who)
	case name == "act":
		h.act(w, r, v)
	case name == "bulk":
		h.bulk(w, r, v)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		h.Problem(w, r, who, http.StatusMethodNotAllowed, "Nothing to send here", "This page only shows something. Nothing was changed.")
	case h.page(name).admin && !who.Admin:
		h.Problem(w, r, who, http.StatusForbidden, "Not allowed", "You need the scope admin to see this page.")
	default:
		it, err := h.page(name).make(r.Context(), v)
		var to *moved
		if errors.As(err, &to) {
			seeOther(w, to.href)
			return
		}
		if err != nil {
			h.fail(w, r, v, err)
			return
		}
		h.write(w, r, v, http.StatusOK, it)
	}
}

func (h *Handler) view(name string, q url.Values, who *Caller) *View {
	v := &View{h: h, Page: name, Who: who, Query: q, Now: h.storeNow()}
	if p := h.page(name); p != nil {
		v.Title = p.title
	}
	return v
}

// A shown is an error whose text the viewer sees, with the status of the answer.
type shown struct {
	status int
	title  string
	text   string
}

func (e *shown) Error() string { return e.text }

// moved is an error that redirects to the page that replaces this one.
type moved struct{ href string }

func (e *moved) Error() string { return "see " + e.href }

func bad(format string, args ...any) error {
	return &shown{http.StatusBadRequest, "That cannot be shown", fmt.Sprintf(format, args...)}
}

// fail answers with an error.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, v *View, err error) {
	s := h.explain(err)
	h.Problem(w, r, v.Who, s.status, s.title, s.text)
}

func (h *Handler) explain(err error) *shown {
	var s *shown
	switch {
	case errors.As(err, &s):
		return s
	case errors.Is(err, joblock.ErrInvalid):
		return &shown{http.StatusBadRequest, "That cannot be shown", sentence(err)}
	case errors.Is(err, joblock.ErrNotFound):
		return &shown{http.StatusNotFound, "There is no such thing", sentence(err)}
	case errors.Is(err, joblock.ErrClosed), errors.Is(err, context.Canceled):
		return &shown{http.StatusServiceUnavailable, "The server is closing", "Another replica serves the same page. Load the page again."}
	case errors.Is(err, joblock.ErrUnavailable) && ops.Denied(err):
		h.cfg.Logger.Warn("server: rendering a page failed", "err", err)
		return &shown{http.StatusServiceUnavailable, "This server may not read that", sentence(err) + " The Redis user of the server lacks a right, which an administrator of Redis can grant."}
	case errors.Is(err, joblock.ErrUnavailable), errors.Is(err, errSlow), errors.Is(err, context.DeadlineExceeded):
		h.cfg.Logger.Warn("server: rendering a page failed", "err", err)
		return &shown{http.StatusServiceUnavailable, "The store does not answer", sentence(err) + " Nothing was read before, so there is nothing to show. Locks that are held stay held until their leases end."}
	}
	h.cfg.Logger.Error("server: rendering a page failed", "err", err)
	return &shown{http.StatusInternalServerError, "The server has a fault", "The log of the server describes it."}
}

// sentence returns the text of an error as a sentence.
func sentence(err error) string {
	return asSentence(strings.TrimPrefix(plain(err), "scheduler: "))
}

// asSentence returns text with a capital at its beginning, and a full stop if it has no end.
func asSentence(text string) string {
	if text == "" {
		return ""
	}
	first, n := utf8.DecodeRuneInString(text)
	return ended(string(unicode.ToUpper(first)) + text[n:])
}

// ended returns text with a full stop if it has no end.
func ended(text string) string {
	if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "…") {
		return text
	}
	return text + "."
}

// Problem answers with a page that says what is wrong.
func (h *Handler) Problem(w http.ResponseWriter, r *http.Request, who *Caller, status int, title, text string) {
	v := h.view("problem", url.Values{}, who)
	v.Title = title
	h.write(w, r, v, status, text)
}

// Login answers with the sign-in page. next is the page to go to afterwards, and wrong says why the last token was refused.
func (h *Handler) Login(w http.ResponseWriter, r *http.Request, status int, next, wrong string) {
	v := h.view("login", url.Values{}, &Caller{})
	h.write(w, r, v, status, struct{ Next, Wrong string }{h.Next(next), wrong})
}

// Next returns text if it is a page with its query, otherwise the overview, so that no text can lead to another site.
func (h *Handler) Next(text string) string {
	name, query, _ := strings.Cut(text, "?")
	p := h.page(name)
	if p == nil || p.make == nil || name == "overview" {
		return "./"
	}
	q, err := url.ParseQuery(query)
	if err != nil || len(q) == 0 {
		return name
	}
	return name + "?" + q.Encode()
}

// write renders the whole page before it sends the first byte.
func (h *Handler) write(w http.ResponseWriter, r *http.Request, v *View, status int, it any) {
	if v.Who.ID != "" {
		v.Pauses = h.pauses()
	}
	var out bytes.Buffer
	if err := h.render(&out, v, it); err != nil {
		h.cfg.Logger.Error("server: executing a page's template failed", "page", v.Page, "err", err)
		http.Error(w, "The server has a fault, which its log describes.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(out.Bytes()) // the client may have disconnected
	}
}

func (h *Handler) render(out *bytes.Buffer, v *View, it any) error {
	set := h.sets[v.set()]
	if set == nil {
		return fmt.Errorf("no templates for %q", v.Page)
	}
	return set.ExecuteTemplate(out, "layout", Cell{v, it})
}

// seeOther sends the browser to a page. The address is relative to the present one, so that it works under every path.
func seeOther(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

// one returns the first value of a parameter, or "".
func one(q url.Values, name string) string {
	if values := q[name]; len(values) > 0 {
		return values[0]
	}
	return ""
}

func oneOf(text string, of ...string) string {
	if slices.Contains(of, text) {
		return text
	}
	return of[0]
}
