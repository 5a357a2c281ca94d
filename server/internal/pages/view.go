package pages

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"html/template"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

// A View is what templates get in addition to the page's own data: the viewer, the subject and the time.
type View struct {
	h *Handler

	Page  string
	Title string
	Who   *Caller
	Query url.Values
	Now   time.Time // the store's clock, as far as it is known
	Live  bool      // the page is made for the stream
	Every string    // how often the stream renders the page, in words

	Notices []string // what could not be read, and why
	Olds    []Old    // what is older than it should be
	Pauses  []Pause  // the scopes whose cron jobs are all paused

	sticky *sticky // of a stream
	parts  []part  // in the order of the page
}

// Pause is a pause of all cron jobs of a scope.
type Pause struct {
	Scope string
	ops.CronPause
}

// Old is something on a page that is older than it should be.
type Old struct {
	What string    // such as "the jobs"
	At   time.Time // when it was read, by the store's clock
	Why  string    // "" if a newer read is under way
}

// A part is a piece of a page that can change while the page is open. A list is a part with its rows as parts inside.
type part struct {
	id    string
	html  template.HTML
	inner int // how many of the parts that follow are inside of this one
}

// sum returns a hash of the part, without the words of its times, which the script updates itself. Of the parts inside,
// which are passed in their order, only the ids and places count.
func (p part) sum(seed maphash.Seed, inside []part) uint64 {
	var frame strings.Builder
	rest := string(p.html)
	for _, in := range inside {
		before, after, ok := strings.Cut(rest, string(in.html))
		if !ok {
			break
		}
		frame.WriteString(before)
		frame.WriteString("\x00" + in.id + "\x00")
		rest = after
	}
	frame.WriteString(rest)
	return maphash.String(seed, timeWords.ReplaceAllString(frame.String(), "<"))
}

var timeWords = regexp.MustCompile(`>[^<]*</time>`)

// A Cell is what a template gets.
type Cell struct {
	V  *View
	It any
}

// buffers has buffers for parts, of which a page has about a hundred.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// Part renders a template as a part of the page. The template's outermost element must have the given id. A part may have
// parts inside, but those may not.
func (v *View) Part(name, id string, it any) (template.HTML, error) {
	out := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(out)
	out.Reset()
	at := len(v.parts)
	v.parts = append(v.parts, part{id: id})
	if err := v.h.sets[v.set()].ExecuteTemplate(out, name, Cell{v, it}); err != nil {
		return "", err
	}
	html := template.HTML(out.String()) // html/template has escaped it
	v.parts[at].html, v.parts[at].inner = html, len(v.parts)-at-1
	return html, nil
}

// set returns the name of the set of templates that the page is in.
func (v *View) set() string {
	if p := v.h.page(v.Page); p != nil && p.set != "" {
		return p.set
	}
	return v.Page
}

// With returns the argument for a template that another template calls.
func (v *View) With(it any) Cell { return Cell{v, it} }

// ID returns the element id for a thing of this kind and name.
func (v *View) ID(kind, name string) string { return idOf(kind, name) }

// Acts reports whether the page may offer actions at all.
func (v *View) Acts() bool { return !v.h.cfg.ReadOnly && v.h.cfg.Recorded }

// MayOperate reports whether the page offers to free locks and to control tasks.
func (v *View) MayOperate() bool { return v.Acts() && v.Who.Operate }

// MayCron reports whether the page offers to control cron jobs.
func (v *View) MayCron() bool { return v.Acts() && v.Who.Cron }

// WhyNot returns why the viewer may not act, or "".
func (v *View) WhyNot(may bool, right string) string {
	switch {
	case v.h.cfg.ReadOnly:
		return "These pages are read-only."
	case !v.h.cfg.Recorded:
		return "There are no actions, because there is no place to record them. See server.Config.Redis."
	case !may:
		return fmt.Sprintf("You need the scope %s to act here.", right)
	}
	return ""
}

// NavItem is a link of the navigation.
type NavItem struct {
	Name, Title string
	Here        bool
}

// Nav returns the links of the navigation.
func (v *View) Nav() []NavItem {
	var all []NavItem
	for _, p := range v.h.all {
		if p.nav == "" || p.admin && !v.Who.Admin {
			continue
		}
		all = append(all, NavItem{p.href(), p.nav, p.name == v.Page || p.name == v.h.page(v.Page).under})
	}
	return all
}

// Asset returns the name under which a file of the pages is served.
func (v *View) Asset(name string) string { return v.h.assets.names[name] }

// LiveURL returns the address of the page's stream, or "".
func (v *View) LiveURL() string {
	if p := v.h.page(v.Page); p == nil || !p.live {
		return ""
	}
	q := url.Values{}
	for name, values := range v.Query {
		if name != "done" || v.Page == "cronjob" { // the result of a trigger comes later, so the stream needs to know the action
			q[name] = values
		}
	}
	q.Set("page", v.Page)
	return "live?" + q.Encode()
}

// Refresh returns how often a page reloads without the script, in seconds; 0 for never.
func (v *View) Refresh() int {
	switch v.Query.Get("refresh") {
	case "5":
		return 5
	case "15":
		return 15
	case "60":
		return 60
	}
	return 0
}

// URL returns the address of the page with some parameters changed. An empty value removes a parameter. The place in a
// list is removed, too.
func (v *View) URL(pairs ...string) string {
	q := url.Values{}
	for name, values := range v.Query {
		if name != "after" && name != "done" {
			q[name] = values
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if q.Del(pairs[i]); pairs[i+1] != "" {
			q.Set(pairs[i], pairs[i+1])
		}
	}
	name := v.Page
	if name == "overview" {
		name = "./"
	}
	if len(q) == 0 {
		return name
	}
	return name + "?" + q.Encode()
}

const stampLayout = "2006-01-02T15:04:05.000Z"

// stamp renders an instant. The script updates the words, and puts the time in the viewer's zone into the title.
func stamp(kind string, t time.Time, words string) template.HTML {
	if t.IsZero() {
		return "–"
	}
	t = t.UTC()
	return template.HTML(fmt.Sprintf(`<time datetime="%s" data-t="%s" title="%s">%s</time>`,
		t.Format(stampLayout), kind, t.Format("2006-01-02 15:04:05 UTC"), words))
}

func instant(t any) time.Time {
	switch t := t.(type) {
	case ops.Time:
		return t.Time
	case time.Time:
		return t
	}
	return time.Time{}
}

// Ago renders how long ago an instant was.
func (v *View) Ago(at any) template.HTML {
	t := instant(at)
	return stamp("ago", t, length(v.Now.Sub(t))+" ago")
}

// For renders the time since an instant.
func (v *View) For(at any) template.HTML {
	t := instant(at)
	return stamp("for", t, length(v.Now.Sub(t)))
}

// Left renders the time until an instant.
func (v *View) Left(at any) template.HTML {
	t := instant(at)
	return stamp("left", t, length(t.Sub(v.Now)))
}

// relative matches times in the sentences of package ops that are relative to when the sentence was made. The first
// alternative matches a relative time next to the instant itself.
var relative = regexp.MustCompile(`((?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC)( \(|, )([0-9][0-9a-z ]* ago|in [0-9][0-9a-z ]*|now|[0-9][0-9a-z ]* from now)|((?:lease was|was alive|lease of [0-9][0-9a-z ]* began) )([0-9][0-9a-z ]* ago)`)

// Sentence renders a sentence of package ops; the parameter made is when it was made. The script updates the times in it
// like all others on the page. If row is a newer record of the same holding, the sentence shows that record's lease.
func (v *View) Sentence(text string, made any, row ...Row) template.HTML {
	now := instant(made)
	if now.IsZero() {
		return template.HTML(template.HTMLEscapeString(text))
	}
	var b strings.Builder
	at := 0
	for _, m := range relative.FindAllStringSubmatchIndex(text, -1) {
		part := func(i int) string { return text[m[2*i]:m[2*i+1]] }
		var html template.HTML
		begin, end := m[6], m[1]
		if m[2] >= 0 {
			t, err := parseInstant(part(1), now)
			switch {
			case err != nil:
				continue
			case strings.HasSuffix(part(3), " from now"):
				if len(row) > 0 && !row[0].Ends.IsZero() {
					t = row[0].Ends
				}
				begin = m[2]
				html = v.At(t) + template.HTML(template.HTMLEscapeString(part(2)))
				if v.Past(t) {
					html += v.Ago(t)
				} else {
					html += v.Left(t) + " from now"
				}
			case strings.HasSuffix(part(3), " ago"), strings.HasPrefix(part(3), "in ") && v.Past(t):
				html = v.Ago(t)
			default:
				html = v.In(t)
			}
		} else {
			begin = m[10]
			ago, err := parseLength(strings.ReplaceAll(strings.TrimSuffix(part(5), " ago"), "min", "m"))
			if err != nil {
				continue
			}
			t := now.Add(-ago).Truncate(time.Second)
			if len(row) > 0 && !row[0].Renewed.IsZero() {
				t = row[0].Renewed
			}
			html = v.Ago(t)
		}
		b.WriteString(template.HTMLEscapeString(text[at:begin]))
		b.WriteString(string(html))
		at = end
	}
	b.WriteString(template.HTMLEscapeString(text[at:]))
	return template.HTML(b.String())
}

// In renders the time until an instant, such as "in 5 s".
func (v *View) In(at any) template.HTML {
	t := instant(at)
	if left := t.Sub(v.Now); left > 0 {
		return stamp("in", t, "in "+length(left))
	}
	return stamp("in", t, "now")
}

// Past reports whether an instant has passed. A value that was read before then can only say what was due.
func (v *View) Past(at any) bool { return instant(at).Before(v.Now) }

// Latest renders the latest time for something to happen. That time may pass between two walks, so it is shown as missed
// only a little later.
func (v *View) Latest(at any) template.HTML {
	if v.Past(instant(at).Add(longestPause)) {
		return "was due by " + v.At(at) + ", " + v.Ago(at)
	}
	return v.In(at) + " at the latest"
}

// LeaseEnds renders when a lease ends, or should have ended.
func (v *View) LeaseEnds(at any) template.HTML {
	if v.Past(at) {
		return "lease was to end " + v.Ago(at)
	}
	return "lease ends " + v.In(at)
}

// At renders the instant itself.
func (v *View) At(at any) template.HTML {
	t := instant(at)
	words := t.UTC().Format("2006-01-02 15:04:05 UTC")
	if y, m, d := v.Now.UTC().Date(); t.UTC().Year() == y && t.UTC().Month() == m && t.UTC().Day() == d {
		words = t.UTC().Format("15:04:05 UTC")
	}
	return stamp("at", t, words)
}

// stale records that something on the page is older than it should be. The parameter at is by this machine's clock.
func (v *View) stale(what string, at time.Time, err error) {
	if err == nil {
		return
	}
	if at.IsZero() && ops.Denied(err) {
		v.notice("The Redis user of this server lacks the right to read %s: %s.", what, plain(err))
		return
	}
	if at.IsZero() {
		v.notice("The store does not answer, so %s could not be read: %s.", what, plain(err))
		return
	}
	old := Old{What: what, At: at.Add(v.ahead())}
	if !errors.Is(err, errSlow) {
		old.Why = plain(err)
	}
	for i, has := range v.Olds {
		if has.What == what {
			if old.At.Before(has.At) {
				v.Olds[i] = old
			}
			return
		}
	}
	v.Olds = append(v.Olds, old)
}

// OldWhy returns why something is old: the first reason that the store gave, or "" if a newer read is under way.
func (v *View) OldWhy() string {
	for _, o := range v.Olds {
		if o.Why != "" {
			return o.Why
		}
	}
	return ""
}

func (v *View) notice(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	for _, has := range v.Notices {
		if has == text {
			return
		}
	}
	v.Notices = append(v.Notices, text)
}

// plain returns the text of an error for a sentence that already says what was not read or done.
func plain(err error) string {
	return strings.TrimRight(shorten(visible(strings.TrimPrefix(ops.WhyUnread(err), "joblock: ")), 200), ".")
}

// take returns what was read. If it is older than it should be, take records that on the page.
func take[T any](v *View, what string, r read[T], err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	v.stale(what, r.at, r.err)
	return r.val, nil
}

// Clock reports whether the store's clock is known.
func (v *View) Clock() bool { return v.h.ahead.Load() != 0 }

// ahead returns how far the store's clock is ahead of that of this machine.
func (v *View) ahead() time.Duration { return time.Until(v.Now) }
