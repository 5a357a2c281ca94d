package ops

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// visible returns text with control characters and other unprintable characters replaced by their escapes, as in Go, so
// that text from the store cannot control a terminal.
func visible(text string) string {
	clean := func(r rune) bool { return r != utf8.RuneError && (unicode.IsPrint(r) || r == ' ') }
	if strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	quoted := fmt.Sprintf("%q", text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// visibleLines is visible for a text of several lines.
func visibleLines(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = visible(line)
	}
	return strings.Join(lines, "\n")
}

// quote returns a key or a job for a sentence.
func quote(text string) string { return fmt.Sprintf("%q", text) }

// Shell returns text as one word for a POSIX shell, without unprintable characters: those need bash or zsh. No command
// line can have a zero byte: bash would cut the word there, and the command would act on something else. For such a text
// the result is a word that names nothing.
func Shell(text string) string {
	if strings.ContainsRune(text, 0) {
		return "'(a name with a zero byte)'"
	}
	plain := func(r rune) bool {
		return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-.,:/@%+=", r)
	}
	if text != "" && text[0] != '-' && text[0] != '=' && strings.IndexFunc(text, func(r rune) bool { return !plain(r) }) < 0 {
		return text
	}
	if visible(text) == text {
		return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	var b strings.Builder // for bash and zsh, whose $'' has escapes
	b.WriteString("$'")
	for i := range len(text) {
		switch c := text[i]; {
		case c == '\'' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String() + "'"
}

// shorten truncates text to at most most bytes.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + "…"
}

// moment returns a time for a sentence that may be read on another day.
func moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// length returns d in words, with two units at most: "21 s", "4 min 10 s", "3 d 2 h".
func length(d time.Duration) string {
	if d = max(0, d); d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	units := []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	for i, u := range units[:len(units)-1] {
		small := units[i+1]
		rounded := d.Round(small.of)
		if rounded < u.of {
			continue
		}
		text := fmt.Sprintf("%d %s", rounded/u.of, u.name)
		if rest := rounded % u.of / small.of; rest > 0 {
			text += fmt.Sprintf(" %d %s", rest, small.name)
		}
		return text
	}
	return fmt.Sprintf("%d s", d.Round(time.Second)/time.Second)
}

// clock formats t as the time of day in UTC, with the date unless it is today's.
func (s *story) clock(t time.Time) string {
	t = t.UTC()
	if y, m, d := s.now.UTC().Date(); !s.now.IsZero() {
		if ty, tm, td := t.Date(); y == ty && m == tm && d == td {
			return t.Format("15:04:05 UTC")
		}
	}
	return t.Format("2006-01-02 15:04:05 UTC")
}

// ago returns how long before now t was.
func (s *story) ago(t time.Time) string {
	if t.IsZero() || s.now.IsZero() {
		return "time unknown"
	}
	return length(s.now.Sub(t)) + " ago"
}

// until returns how long after now t is.
func (s *story) until(t time.Time) string {
	if d := t.Sub(s.now); d > 0 {
		return "in " + length(d)
	}
	return "now"
}
