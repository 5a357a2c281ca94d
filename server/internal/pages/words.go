package pages

import (
	"errors"
	"fmt"
	"hash/fnv"
	"html/template"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// length returns d in words, with two units at most: "21 s", "4 min 10 s", "3 d 2 h". The script has the same function.
func length(d time.Duration) string {
	if d = max(0, d); d < time.Second {
		return "0 s"
	}
	units := []struct {
		of   time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "min"}, {time.Second, "s"}}
	for i, u := range units[:len(units)-1] {
		small := units[i+1]
		if d < u.of {
			continue
		}
		text := fmt.Sprintf("%d %s", d/u.of, u.name)
		if rest := d % u.of / small.of; rest > 0 {
			text += fmt.Sprintf(" %d %s", rest, small.name)
		}
		return text
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// exact returns a duration with its precision: "12 ms", "3.4 s", "4 min 10 s".
func exact(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(0, d.Milliseconds()))
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return length(d)
}

// parseLength reads a duration as people write it: "90", "90s", "1h30m", "2d".
func parseLength(text string) (time.Duration, error) {
	text = strings.ReplaceAll(text, " ", "")
	if days, ok := strings.CutSuffix(text, "d"); ok {
		if n, err := strconv.Atoi(days); err == nil && n >= 0 && n <= 366 {
			return time.Duration(n) * 24 * time.Hour, nil
		}
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 0 && n <= 366*86400 {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > 366*24*time.Hour {
		return 0, errors.New("must be a duration such as 90s, 1h30m or 2d, of at most 366d")
	}
	return d, nil
}

// visible returns text with each character that does not print, or that changes the direction of the following text,
// replaced by its escape as in Go.
func visible(text string) string {
	clean := func(r rune) bool { return r != utf8.RuneError && (unicode.IsPrint(r) || r == ' ') }
	if strings.IndexFunc(text, func(r rune) bool { return !clean(r) }) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// mostWord is the maximum length of a part of a name that is not broken, in characters.
const mostWord = 22

// mostTail is the maximum length of a part of a name that stays on the line of the part before it, including the
// separator.
const mostTail = 3

// breaks renders a name so that lines break between its parts: after a colon, a slash and the like. Only a part that is
// too long is broken elsewhere.
func breaks(name string) template.HTML {
	var b strings.Builder
	word := func(text string) {
		if n := utf8.RuneCountInString(text); n > mostWord || n < 2 {
			b.WriteString(template.HTMLEscapeString(text))
			return
		}
		b.WriteString(`<span class="w">`)
		b.WriteString(template.HTMLEscapeString(text))
		b.WriteString(`</span>`)
	}
	parts := strings.FieldsFunc(separators.ReplaceAllString(name, "$0\x00"), func(r rune) bool { return r == 0 })
	for i := 0; i < len(parts); i++ {
		part := parts[i]
		// A number or a letter at the end of a name stays with the part before.
		for i+1 < len(parts) && utf8.RuneCountInString(parts[i+1]) <= mostTail && utf8.RuneCountInString(part+parts[i+1]) <= mostWord {
			i++
			part += parts[i]
		}
		word(part)
		if i+1 < len(parts) {
			b.WriteString("<wbr>")
		}
	}
	return template.HTML(b.String())
}

var separators = regexp.MustCompile("[:/._@ -]")

// shorten truncates text that is longer than most characters.
func shorten(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}

// count returns a number with thin groups of digits: 12 345.
func count[N int | int64](n N) string {
	text := strconv.FormatInt(int64(n), 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return count(n) + " " + many
}

// idOf returns the element id for a thing of this kind and name.
func idOf(kind, name string) string {
	sum := fnv.New64a()
	sum.Write([]byte(name))
	return kind + "-" + strconv.FormatUint(sum.Sum64(), 36)
}
