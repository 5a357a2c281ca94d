package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// newPageOf returns a page after a complete look that has found locks.
func newPageOf(locks ...ops.Lock) *topPage {
	p := newTopPage("localhost:6379", "age", false)
	p.look(lookOf(locks...), time.Unix(1000, 0))
	return p
}

func lookOf(locks ...ops.Lock) topLook {
	look := topLook{done: 1}
	for _, l := range locks {
		look.add(l)
	}
	return look
}

// manyLocks returns n held locks, of which the first is the oldest.
func manyLocks(n int) (locks []ops.Lock) {
	for i := range n {
		locks = append(locks, ops.Lock{
			Key: fmt.Sprintf("key-%03d", i), State: joblock.StateHeld, Holder: fmt.Sprintf("host-%d", i), Fence: int64(i + 1), First: int64(i + 1),
			Age: ops.Millis(time.Duration(n-i) * time.Minute), Waiters: i % 3,
		})
	}
	return locks
}

// text returns the page as it is 30 s after the look.
func (p *topPage) text() string { return strings.Join(p.draw(time.Unix(1030, 0)), "\n") }

func (p *topPage) types(keys ...string) (act action, lock string) {
	for _, key := range keys {
		act, lock = p.press(key)
	}
	return act, lock
}

func wantText(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Whatever the size of the screen and the texts, a page fits, and text in it controls nothing.
func TestTopPageFitsTheScreen(t *testing.T) {
	locks := manyLocks(50)
	for i, text := range hostile {
		locks = append(locks, ops.Lock{Key: text, Holder: text, Job: text, State: joblock.StateOrphaned, Age: ops.Millis(time.Duration(i+100) * time.Hour), Waiters: 1e6})
	}
	p := newPageOf(locks...)
	for _, view := range []topView{viewList, viewExplain, viewHelp} {
		for _, size := range [][2]int{{80, 24}, {200, 60}, {40, 10}, {20, 5}, {10, 3}, {1, 1}, {300, 6}} {
			for _, look := range []topLook{lookOf(locks...), {done: 0.3}, {err: errors.New("broken\x1b[31m\nline")}} {
				p.view, p.explanation, p.filter = view, explained{hostile[0], hostile}, ""
				p.look(look, time.Unix(1000, 0))
				p.resize(size[0], size[1])
				lines := p.draw(time.Unix(1030, 0))
				if len(lines) > size[1] {
					t.Errorf("view %d, %v: %d lines", view, size, len(lines))
				}
				for _, line := range lines {
					line = strings.NewReplacer("\x1b[7m", "", "\x1b[0m", "").Replace(line)
					if strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
						t.Errorf("view %d, %v: %q", view, size, line)
					}
					if w := widthOf(line); w > size[0] {
						t.Errorf("view %d, %v: a line of %d columns: %q", view, size, w, line)
					}
				}
			}
		}
	}
}

func TestTopPageMovesTheCursor(t *testing.T) {
	p := newPageOf(manyLocks(100)...)
	p.resize(100, 15)
	for _, tc := range []struct {
		keys []string
		want string
	}{
		{nil, "key-000"}, {[]string{"down", "j"}, "key-002"}, {[]string{"up", "k", "k"}, "key-000"}, {[]string{"pgdn"}, "key-010"},
		{[]string{"end"}, "key-099"}, {[]string{"down"}, "key-099"}, {[]string{"pgup"}, "key-089"}, {[]string{"home"}, "key-000"},
	} {
		p.types(tc.keys...)
		wantText(t, p.text(), "> "+tc.want)
	}
	// The cursor stays at its lock when others come and go.
	p.types("down", "down", "down")
	p.look(lookOf(manyLocks(100)[2:]...), time.Unix(1002, 0))
	wantText(t, p.text(), "> key-003")
	p.look(lookOf(manyLocks(2)...), time.Unix(1004, 0))
	wantText(t, p.text(), "> key-000")
	p.look(lookOf(), time.Unix(1006, 0))
	if act, _ := p.types("down", "end", "x"); act != actNone || strings.Contains(p.text(), ">") {
		t.Errorf("an empty list has a cursor:\n%s", p.text())
	}
}

func TestTopPageSortsAndFilters(t *testing.T) {
	p := newPageOf(manyLocks(5)...)
	first := func() string {
		_, text, _ := strings.Cut(p.text(), "> ")
		return strings.Fields(text)[0]
	}
	p.types("home")
	for range lockOrders {
		order := lockOrders[p.order]
		p.types("home")
		if want := map[string]string{"age": "key-000", "waiters": "key-002", "reserved": "key-000", "state": "key-000", "key": "key-000"}[order]; first() != want {
			t.Errorf("by %s the first is %s, want %s", order, first(), want)
		}
		wantText(t, p.text(), "sorted by "+order)
		p.types("s")
	}
	p.types("/", "H", "o", "s", "t", "-", "4", "x", "back")
	wantText(t, p.text(), "1 with Host-4_", "key-004")
	if act, _ := p.types("q"); act != actNone {
		t.Error("a q in the filter ends top")
	}
	p.types("back", "enter")
	if text := p.text(); strings.Contains(text, "key-000") || strings.Contains(text, "Host-4_") {
		t.Errorf("after the filter was typed:\n%s", text)
	}
	p.types("esc")
	wantText(t, p.text(), "key-000")
	p.types("/", "z", "esc")
	wantText(t, p.text(), "key-000")
}

func TestTopPageExplains(t *testing.T) {
	p := newPageOf(manyLocks(5)...)
	act, lock := p.types("down", "x")
	if act != actExplain || lock != "key-001" {
		t.Errorf("x asks for %d of %s", act, lock)
	}
	wantText(t, p.text(), "key-001", "Waiting for Redis")
	p.explain(explained{"key-001", slices.Repeat([]string{"one", "two"}, 40)})
	p.explain(explained{"key-004", []string{"late answer"}})
	if text := p.text(); !strings.Contains(text, "one") || strings.Contains(text, "late") {
		t.Errorf("the explanation is\n%s", text)
	}
	before := p.text()
	p.types("down", "pgdn")
	if p.text() == before {
		t.Error("the text does not scroll")
	}
	p.types(slices.Repeat([]string{"pgdn"}, 100)...)
	end := p.text()
	p.types("up")
	if p.text() == end {
		t.Error("the text does not scroll back from its end at once")
	}
	if act, lock := p.types("r"); act != actExplain || lock != "key-001" {
		t.Errorf("r asks for %d of %s", act, lock)
	}
	p.types("esc")
	wantText(t, p.text(), "> key-001")
	p.types("?")
	wantText(t, p.text(), "Keys of joblock top")
	p.types("q")
	wantText(t, p.text(), "> key-001")
	if act, _ := p.types("q"); act != actEnd {
		t.Error("q does not end top")
	}
	p.types("/")
	if act, _ := p.types("ctrl-c"); act != actEnd {
		t.Error("ctrl-c in the filter does not end top")
	}
}

func TestTopPageSaysHowOldItIs(t *testing.T) {
	p := newTopPage("localhost:6379", "age", false)
	wantText(t, p.text(), "looking, 0% done")
	part := lookOf(manyLocks(1)...)
	part.done = 0.5
	p.look(part, time.Unix(1000, 0))
	wantText(t, p.text(), "looking, 50% done", "key-000")
	p.look(lookOf(manyLocks(3)...), time.Unix(1000, 0))
	wantText(t, p.text(), "as of 30s ago", "3 locks: 3 held", "3 waiting in 2 lines", "oldest 3m00s")
	p.look(part, time.Unix(1020, 0))
	wantText(t, p.text(), "as of 30s ago, looking again, 50% done", "key-002")
	p.look(topLook{err: errors.New("Redis is away")}, time.Unix(1025, 0))
	wantText(t, p.text(), "Redis is away", "key-002")
	moved := manyLocks(3)
	moved[1].First = 77
	p.look(lookOf(moved...), time.Unix(1010, 0))
	wantText(t, p.text(), "at least 0.1 taken per second")
	p.types("p")
	wantText(t, p.text(), "(paused)")
	p.types("p")
	if strings.Contains(p.text(), "paused") {
		t.Error("top is still paused")
	}
	if act, _ := p.types("r"); act != actLook {
		t.Error("r does not look")
	}
}

func TestKeysIn(t *testing.T) {
	for text, want := range map[string][]string{
		"q": {"q"}, "\x1b": {"esc"}, "\x1b[A\x1b[B": {"up", "down"}, "\x1bOAj": {"up", "j"}, "\x1b[5~\x1b[6~": {"pgup", "pgdn"},
		"\x1b[1;5A": nil, "\x1b[200~x": {"x"}, "é日": {"é", "日"}, "\r": {"enter"}, "\x7f\b": {"back", "back"}, "\x03": {"ctrl-c"},
		"\x00\x01\xff": nil, "\x1bx": {"esc", "x"}, "\x1b[": nil, "\x1b\x1b": {"esc", "esc"},
	} {
		if got := keysIn([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("keysIn(%q) = %q, want %q", text, got, want)
		}
	}
}
