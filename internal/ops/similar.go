package ops

import (
	"cmp"
	"iter"
	"slices"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

// Unknown reports whether Desk.Lock or Explain found nothing about the key: the store has no record of it, it has no rate
// and no pause, and there are no waiters. The key may be mistyped; see SimilarTo.
func (l Lock) Unknown() bool {
	return l.Fence == 0 && l.State == joblock.StateFree && l.Permits == nil && l.Waiters == 0 && l.Rate == "" && len(l.Line) == 0 && len(l.Paused) == 0
}

// Similar are the keys that resemble a text, for an operator who may have mistyped a key.
type Similar struct {
	Keys   []string // the most similar first, five at most; for permits and slots, the key of the limit or sequence
	Looked int      // how many keys were looked at
	Begin  int      // how many of them begin with the text
}

// mostSimilar is the maximum number of keys of a Similar.
const mostSimilar = 5

// SimilarAmong returns the query for the locks to pass to SimilarTo; it includes free keys that the store still
// remembers.
func SimilarAmong() LocksQuery { return LocksQuery{Ended: true} }

// SimilarTo looks among locks for keys that resemble text. With prefix, only the beginning of a key counts. If locks
// yields an error, the result covers the locks before it.
func SimilarTo(text string, prefix bool, locks iter.Seq2[Lock, error]) (s Similar, err error) {
	type match struct {
		key   string
		score int
	}
	var best []match
	is := folded(text)
	seen := make(map[string]bool) // limits and sequences that were compared, whose keys come several times
	for l, lerr := range locks {
		if err = lerr; err != nil {
			break
		}
		if l.Role.inner() && l.Role != RoleGate && l.Role != RoleSize {
			continue
		}
		key := l.Key
		if l.Group != "" {
			if key = l.Group; seen[key] {
				continue
			}
			seen[key] = true
		}
		s.Looked++
		if strings.HasPrefix(key, text) {
			s.Begin++
		}
		score, ok := likeness(is, folded(key), prefix)
		if !ok || key == text {
			continue
		}
		m := match{key, score}
		at, _ := slices.BinarySearchFunc(best, m, func(a, b match) int {
			return cmp.Or(a.score-b.score, len(a.key)-len(b.key), strings.Compare(a.key, b.key))
		})
		if at < mostSimilar {
			best = slices.Insert(best, at, m)
			best = best[:min(len(best), mostSimilar)]
		}
	}
	for _, m := range best {
		s.Keys = append(s.Keys, m.key)
	}
	return s, err
}

// folded returns text in the form that is compared: case is ignored, and all separators are alike.
func folded(text string) []rune {
	return []rune(strings.Map(func(r rune) rune {
		if strings.ContainsRune(":/._- ", r) {
			return ':'
		}
		return r
	}, strings.ToLower(text)))
}

// likeness returns how much key differs from text, and whether it is similar at all. Both must be folded.
func likeness(text, key []rune, prefix bool) (score int, similar bool) {
	const far = 100
	most := min(4, 1+len(text)/5) // the number of typing errors that are allowed
	if prefix {
		key = key[:min(len(key), len(text)+most)]
	}
	if prefix || max(len(text)-len(key), len(key)-len(text)) <= most {
		if d := distance(text, key, prefix); d <= most && d < len(text) {
			return d, true
		}
	}
	if short := min(len(text), len(key)); !prefix && short >= 3 && (contains(key, text) || contains(text, key)) {
		return far, true // a part is missing, or there is an extra one
	}
	return 0, false
}

func contains(text, part []rune) bool { return strings.Contains(string(text), string(part)) }

// distance returns how many characters have to be inserted, deleted, replaced or swapped with their neighbor to get from
// a to b; with prefix, to get to some beginning of b.
func distance(a, b []rune, prefix bool) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			d := min(row[j]+1, next[j-1]+1)
			if a[i-1] == b[j-1] {
				d = min(d, row[j-1])
			} else {
				d = min(d, row[j-1]+1)
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, before[j-2]+1)
			}
			next[j] = d
		}
		before, row, next = row, next, before
	}
	if prefix {
		return slices.Min(row)
	}
	return row[len(b)]
}
