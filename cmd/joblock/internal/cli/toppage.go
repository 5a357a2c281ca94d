package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

// topPage is what "top" shows, and how it responds to keys. It uses neither the terminal nor Redis. Except for the field
// paused, it is not safe for concurrent use.
type topPage struct {
	where   string // the Redis, for display
	colours bool
	columns int
	lines   int

	whole  topLook   // the last look that was complete
	part   topLook   // the look under way
	at     time.Time // when whole arrived, by the local clock
	rate   string    // how many locks have changed hands per second
	fences map[string]int64

	order  int // an index of lockOrders
	filter string
	typing bool       // typed characters go into the filter
	rows   []ops.Lock // the locks that pass the filter, in order; see list
	cursor string     // the key of the lock at the cursor
	from   int        // the first line of the list that is shown
	paused gate

	view        topView
	explanation explained
	scroll      int
}

// topView is what fills the screen.
type topView int

const (
	viewList topView = iota
	viewExplain
	viewHelp
)

// action is what a key requires outside of the page.
type action int

const (
	actNone action = iota
	actEnd
	actLook
	actExplain
)

func newTopPage(where, order string, colours bool) *topPage {
	return &topPage{where: where, order: slices.Index(lockOrders, order), colours: colours, columns: 80, lines: 24}
}

// gate lets a goroutine through unless it is closed. The zero gate is open.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // nil while the gate is open
}

// toggle opens or closes the gate.
func (g *gate) toggle() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
		return
	}
	close(g.opened)
	g.opened = nil
}

func (g *gate) closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.opened != nil
}

// wait returns when the gate is open, or returns false when ctx ends.
func (g *gate) wait(ctx context.Context) bool {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened == nil {
		return ctx.Err() == nil
	}
	select {
	case <-opened:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *topPage) resize(columns, lines int) { p.columns, p.lines = columns, lines }

// look takes over the result of a look, which may be incomplete.
func (p *topPage) look(l topLook, now time.Time) {
	if p.part = l; l.done < 1 {
		if p.at.IsZero() {
			p.list()
		}
		return
	}
	fences := make(map[string]int64, len(l.Items))
	moved := 0
	for _, lock := range l.Items {
		fences[lock.Key] = lock.First
		if first, known := p.fences[lock.Key]; !known || first != lock.First {
			moved++
		}
	}
	p.rate = ""
	if passed := now.Sub(p.at).Seconds(); p.fences != nil && passed > 0 {
		p.rate = fmt.Sprintf("; at least %.1f taken per second", float64(moved)/passed)
	}
	p.whole, p.at, p.fences = l, now, fences
	p.list()
}

// explain shows an explanation, unless the user has left its view.
func (p *topPage) explain(e explained) {
	if p.view == viewExplain && p.explanation.key == e.key {
		p.explanation = e
	}
}

// press handles a key. It returns what the key requires outside of the page; for actExplain, lock is the key of the lock.
func (p *topPage) press(key string) (act action, lock string) {
	switch {
	case key == "ctrl-c":
		return actEnd, ""
	case p.typing:
		p.typed(key)
		return actNone, ""
	case p.view != viewList:
		return p.pressed(key)
	}
	switch key {
	case "q":
		return actEnd, ""
	case "?", "h":
		p.view, p.scroll = viewHelp, 0
	case "/":
		p.typing = true
	case "esc":
		p.filter = ""
		p.list()
	case "s":
		p.order = (p.order + 1) % len(lockOrders)
		p.list()
	case "p":
		p.paused.toggle()
	case "r":
		return actLook, ""
	case "x", "enter":
		if len(p.rows) == 0 {
			return actNone, ""
		}
		at := p.rows[p.index()].Key
		p.view, p.scroll, p.explanation = viewExplain, 0, explained{at, []string{"Waiting for Redis."}}
		return actExplain, at
	default:
		p.move(key)
	}
	return actNone, ""
}

// pressed handles a key in a view other than the list.
func (p *topPage) pressed(key string) (action, string) {
	switch key {
	case "q", "esc", "x", "enter", "?", "back":
		p.view = viewList
	case "r":
		if p.view == viewExplain {
			return actExplain, p.explanation.key
		}
	case "up", "k":
		p.scroll = max(0, p.scroll-1)
	case "down", "j":
		p.scroll++ // draw bounds the scroll
	case "pgup":
		p.scroll = max(0, p.scroll-p.lines/2)
	case "pgdn":
		p.scroll += p.lines / 2
	case "home":
		p.scroll = 0
	}
	return actNone, ""
}

// typed applies a key to the filter.
func (p *topPage) typed(key string) {
	switch key {
	case "enter":
		p.typing = false
	case "esc":
		p.typing, p.filter = false, ""
	case "back":
		if runes := []rune(p.filter); len(runes) > 0 {
			p.filter = string(runes[:len(runes)-1])
		}
	default:
		if len([]rune(key)) == 1 {
			p.filter += key
		}
	}
	p.list()
}

func (p *topPage) move(key string) {
	if len(p.rows) == 0 {
		return
	}
	step := 0
	switch key {
	case "up", "k":
		step = -1
	case "down", "j":
		step = 1
	case "pgup":
		step = -p.listLines()
	case "pgdn":
		step = p.listLines()
	case "home":
		step = -len(p.rows)
	case "end":
		step = len(p.rows)
	}
	p.cursor = p.rows[max(0, min(len(p.rows)-1, p.index()+step))].Key
}

// index returns the index of the lock at the cursor, or 0 if that lock is gone.
func (p *topPage) index() int {
	return max(0, slices.IndexFunc(p.rows, func(l ops.Lock) bool { return l.Key == p.cursor }))
}

// shown returns the look that is on the screen: the last complete one, or the first one while it is under way.
func (p *topPage) shown() topLook {
	if p.at.IsZero() {
		return p.part
	}
	return p.whole
}

// list finds the locks that pass the filter, and sorts them.
func (p *topPage) list() {
	word := strings.ToLower(p.filter)
	p.rows = p.rows[:0]
	for _, l := range p.shown().Items {
		if word == "" || strings.Contains(strings.ToLower(strings.Join([]string{l.Key, l.Holder, l.Job, stateText(l)}, "\n")), word) {
			p.rows = append(p.rows, l)
		}
	}
	sortLocks(p.rows, lockOrders[p.order])
}

// summary says in a sentence what a look has found.
func (t *topLook) summary() string {
	text := fmt.Sprintf("%d locks: %d held, %d parked, %d orphaned", t.Locks, t.Held, t.Parked, t.Orphaned)
	if t.Oldest > 0 {
		text += "; oldest " + span(t.Oldest.Duration())
	}
	if t.Lines > 0 {
		text += fmt.Sprintf("; %d waiting in %d lines", t.Waiting, t.Lines)
	}
	return text + fmt.Sprintf("; %d of jobs", t.OfJobs)
}

// chrome is how many lines of the list page are not locks: three at the top, the headings, and one at the bottom.
const chrome = 5

// listLines returns how many locks fit onto the screen.
func (p *topPage) listLines() int { return max(1, p.lines-chrome) }

// draw returns the lines of the screen: safe for a terminal, none longer than the screen, and as many as the screen
// has.
func (p *topPage) draw(now time.Time) []string {
	var lines []string
	switch p.view {
	case viewHelp:
		lines = p.drawText("Keys of joblock top", topKeys)
	case viewExplain:
		lines = p.drawText(safe(p.explanation.key), p.explanation.text)
	default:
		lines = p.drawList(now)
	}
	return lines[:min(len(lines), p.lines)]
}

// topKeys are the paragraphs of the help.
var topKeys = []string{
	"up, down, j, k, pgup, pgdn, home, end: move",
	"x, enter: explain the lock at the cursor",
	"s: sort by age, waiters, reserved, state, key",
	"/: show only locks in which a text occurs; enter ends the text, esc removes it",
	"p: pause, go on",
	"r: look again now",
	"q, ctrl-c: end",
	"SINCE is when the holder got the lock. LEASE is what is left of the holder's lease.",
	"RESERVED is the time until others can get the lock, unless it is renewed or released.",
}

// drawText returns a page with paragraphs.
func (p *topPage) drawText(title string, paragraphs []string) []string {
	var text []string
	for i, paragraph := range paragraphs {
		if i > 0 && p.view == viewExplain {
			text = append(text, "")
		}
		for line := range strings.SplitSeq(wrap(visible(paragraph), p.columns), "\n") {
			text = append(text, cut(line, p.columns))
		}
	}
	body := max(1, p.lines-3)
	p.scroll = max(0, min(p.scroll, len(text)-body))
	lines := []string{p.style(cut(title, p.columns), "1"), ""}
	lines = append(lines, text[p.scroll:min(len(text), p.scroll+body)]...)
	for len(lines) < p.lines-1 {
		lines = append(lines, "")
	}
	return append(lines, p.style(cut("esc back  up, down scroll  r again", p.columns), "2"))
}

// drawList returns the page with the list of locks.
func (p *topPage) drawList(now time.Time) []string {
	look := p.shown()
	head := "joblock top " + safe(p.where)
	switch {
	case p.part.err != nil:
		head += ": " + textOf(p.part.err)
	case p.at.IsZero():
		head += fmt.Sprintf(": looking, %.0f%% done", p.part.done*100)
	default:
		head += ": as of " + span(now.Sub(p.at)) + " ago"
		if p.part.done < 1 && now.Sub(p.at) > 3*time.Second {
			head += fmt.Sprintf(", looking again, %.0f%% done", p.part.done*100)
		}
	}
	if p.paused.closed() {
		head += " (paused)"
	}
	third := "sorted by " + lockOrders[p.order] + p.rate
	if p.filter != "" || p.typing {
		third += fmt.Sprintf("; %d with %s", len(p.rows), safe(p.filter))
		if p.typing {
			third += "_"
		}
	}
	if look.Locks > len(look.Items) {
		third += fmt.Sprintf("; of the first %d locks", len(look.Items))
	}
	headRole := "1"
	if p.part.err != nil {
		headRole = "31"
	}
	widths := p.widths()
	lines := []string{
		p.style(cut(visible(oneLine(head)), p.columns), headRole),
		cut(look.summary(), p.columns),
		cut(third, p.columns),
		p.style(cut(row(widths, "  ", []string{"KEY", "STATE", "SINCE", "LEASE", "RESERVED", "WAIT", "HOLDER", "JOB"}), p.columns), "1"),
	}
	at, room := p.index(), p.listLines()
	p.from = max(0, min(p.from, len(p.rows)-room))
	p.from = max(min(p.from, at), at-room+1)
	for i := p.from; i < min(len(p.rows), p.from+room); i++ {
		l := p.rows[i]
		mark, style := "  ", ""
		if i == at {
			mark, style = "> ", "7"
		} else if r := stateRole(l); r == bad {
			style = colourOf[r]
		}
		text := row(widths, mark, []string{
			safe(l.Key), l.State.String(), span(l.Age.Duration()), leaseText(l), reservedText(l), count(l.Waiters), safe(l.Holder), safe(l.Job),
		})
		lines = append(lines, p.style(cut(text, p.columns), style))
	}
	for len(lines) < p.lines-1 {
		lines = append(lines, "")
	}
	return append(lines, p.style(cut("q end  x explain  s sort  / filter  p pause  r look now  ? help", p.columns), "2"))
}

// oneLine returns text without line feeds.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// widths returns the widths of the list's columns. Columns that do not fit at the right get 0.
func (p *topPage) widths() []int {
	widths := []int{0, 8, 6, 6, 8, 5, 0, 0} // 0: a share of what is left
	rest := p.columns - len("> ")
	for _, w := range widths {
		rest -= w + len(gap)
	}
	rest += len(gap)
	widths[0], widths[6], widths[7] = rest*2/5, rest*3/10, rest*3/10
	if rest < 45 {
		rest += len(gap)
		widths[0], widths[6], widths[7] = rest*3/5, rest*2/5, 0
	}
	widths[0] = max(widths[0], 12)
	return widths
}

// row returns a line of the list. Texts that are too long are truncated.
func row(widths []int, mark string, texts []string) string {
	var b strings.Builder
	b.WriteString(mark)
	for i, text := range texts {
		if widths[i] <= 0 {
			continue
		}
		if i > 0 {
			b.WriteString(gap)
		}
		text = cut(text, widths[i])
		b.WriteString(text + strings.Repeat(" ", widths[i]-widthOf(text)))
	}
	return b.String()
}

// style returns text as the terminal shows it in a style. Without colours only the cursor has a style.
func (p *topPage) style(text, style string) string {
	if style == "" || !p.colours && style != "7" {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}
