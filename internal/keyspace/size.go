package keyspace

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Said is what the record at Size says: how many permits a limit has, according to its users. Its text is the label of
// the record's holder, and has at most 256 bytes.
type Said struct {
	N      int       // from 1
	Since  time.Time // since when every user has said N, in whole seconds; zero: since the record began
	Before int       // the number that was said before Since; 0 if none is known
	First  string    // the label of the first user to say N after Before
	By     string    // the label of the latest user to say N
}

// maxSaid bounds the text of a Said, as driver.MaxLabelBytes does.
const maxSaid = 256

// String returns the text. It truncates labels that are too long.
func (s Said) String() string {
	since := int64(0)
	if !s.Since.IsZero() {
		since = s.Since.Unix()
	}
	cut := func(label string, most int) string {
		for len(label) > most {
			_, size := utf8.DecodeLastRuneInString(label)
			label = label[:len(label)-size]
		}
		return label
	}
	first := cut(s.First, maxSaid/2-32)
	text := strconv.Itoa(s.N) + " " + strconv.FormatInt(since, 10) + " " + strconv.Itoa(s.Before) + " " + strconv.Itoa(len(first)) + " " + first
	return text + cut(s.By, maxSaid-len(text))
}

// ParseSaid parses the text of a Said. ok is false if String did not write it.
func ParseSaid(text string) (s Said, ok bool) {
	fields := strings.SplitN(text, " ", 5)
	if len(fields) != 5 {
		return Said{}, false
	}
	n, bad1 := strconv.Atoi(fields[0])
	since, bad2 := strconv.ParseInt(fields[1], 10, 64)
	before, bad3 := strconv.Atoi(fields[2])
	length, bad4 := strconv.Atoi(fields[3])
	if bad4 != nil || length < 0 || length > len(fields[4]) || !utf8.RuneStart((fields[4] + " ")[length]) {
		return Said{}, false
	}
	if bad1 != nil || bad2 != nil || bad3 != nil || n < 1 || before < 0 || since < 0 || since > 1<<40 {
		return Said{}, false
	}
	s = Said{N: n, Before: before, First: fields[4][:length], By: fields[4][length:]}
	if since > 0 {
		s.Since = time.Unix(since, 0)
	}
	return s, true
}
