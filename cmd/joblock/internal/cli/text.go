package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// A key, a holder, a job or a reason may come from anyone who can write to the Redis. Terminals interpret some
// characters: ESC and the C1 controls begin commands, and U+202E reverses the direction of text. No such character may
// reach the terminal, so safe and visible escape invisible characters as in a Go string, and safeJSON as in JSON.

// invisible reports whether r is a character that terminals interpret or do not show. A space is visible.
func invisible(r rune) bool { return !unicode.IsPrint(r) }

// safe returns text unchanged if all of it is visible, otherwise as a quoted Go string.
func safe(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, invisible) && strings.TrimSpace(text) == text {
		return text
	}
	return strconv.Quote(text)
}

// visible returns text with each invisible character except the line feed escaped. Use it for sentences: safe would put
// the whole sentence in quotes.
func visible(text string) string {
	bad := func(r rune) bool { return r != '\n' && invisible(r) }
	if utf8.ValidString(text) && !strings.ContainsFunc(text, bad) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if bad(r) || r == utf8.RuneError && n == 1 {
			quoted := strconv.Quote(text[:n])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteString(text[:n])
		}
		text = text[n:]
	}
	return b.String()
}

// safeJSON returns a JSON text with an escape for each invisible character. Package json writes only the controls below
// U+0020 as escapes.
func safeJSON(text []byte) []byte {
	if !strings.ContainsFunc(string(text), invisible) {
		return text
	}
	out := make([]byte, 0, len(text)+len(text)/8)
	for _, r := range string(text) {
		switch {
		case !invisible(r) || r == '\n':
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

// widthOf returns how many columns of a terminal text takes. The text has no invisible characters.
func widthOf(text string) (n int) {
	for _, r := range text {
		switch {
		case unicode.In(r, unicode.Mn, unicode.Me):
		case isWide(r):
			n += 2
		default:
			n++
		}
	}
	return n
}

// isWide reports whether terminals use two columns for r: most East Asian characters, and pictographs. If a terminal
// decides otherwise, the rest of the line is off by one column.
func isWide(r rune) bool {
	return r >= 0x1100 && (r <= 0x115f || r >= 0x2e80 && r <= 0xa4cf || r >= 0xac00 && r <= 0xd7a3 ||
		r >= 0xf900 && r <= 0xfaff || r >= 0xfe30 && r <= 0xfe6f || r >= 0xff00 && r <= 0xff60 ||
		r >= 0xffe0 && r <= 0xffe6 || r >= 0x1f300 && r <= 0x1faff || r >= 0x20000 && r <= 0x3fffd)
}

// cut returns the beginning of text that fits into the given columns of a terminal. If something is missing, the last
// column has "…".
func cut(text string, columns int) string {
	if widthOf(text) <= columns {
		return text
	}
	var b strings.Builder
	width := 0
	for _, r := range text {
		if width += widthOf(string(r)); width > columns-1 {
			break
		}
		b.WriteRune(r)
	}
	if columns > 0 {
		b.WriteRune('…')
	}
	return b.String()
}

// wrap breaks text between words, so that no line is wider than columns. A longer word gets a line of its own. If columns
// is 0, wrap returns text unchanged.
func wrap(text string, columns int) string {
	if columns <= 0 {
		return text
	}
	if line, rest, more := strings.Cut(text, "\n"); more {
		return wrap(line, columns) + "\n" + wrap(rest, columns)
	}
	var b strings.Builder
	width := 0
	for i, word := range strings.Split(text, " ") {
		w := widthOf(word)
		switch {
		case i == 0:
		case width+1+w > columns:
			b.WriteByte('\n')
			width = 0
		default:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += w
	}
	return b.String()
}

// span returns the text of a duration, in the two largest units that matter: 0.4s, 42s, 12m05s, 3h07m, 5d03h.
func span(d time.Duration) string {
	const day = 24 * time.Hour
	d = max(d, 0)
	switch {
	case d < 10*time.Second:
		return strconv.FormatFloat(d.Truncate(100*time.Millisecond).Seconds(), 'f', 1, 64) + "s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 2*day:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/day, d%day/time.Hour)
}
