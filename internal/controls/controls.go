// Package controls is the registry of what operators have set at run time: pauses of keys, and the values of named
// limits. It is the memo of one key of the locks' store, keyspace.Controls. Each process reads it at most once a second;
// see Reader. core.Locker.ChangeControls writes it.
package controls

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
)

// MaxName is the largest length of the name of a limit, and MaxValue the largest value, which only a rate can have.
const (
	MaxName  = 128
	MaxValue = 1_000_000
)

// Pause holds back the jobs with a lock on Key, or on a key below Key: one that begins with Key and ":".
type Pause struct {
	ID      int64     `json:"id"` // the fence of the write that made the pause
	Key     string    `json:"key"`
	Note    string    `json:"note,omitempty"`
	By      string    `json:"by"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until,omitzero"`   // when the pause ends by itself; zero: never
	Resumed time.Time `json:"resumed,omitzero"` // when an operator has ended the pause; zero while it is in force
}

// Ended reports whether the pause is over. Its jobs may not have started yet: the process that has started them removes
// the pause from the registry.
func (p Pause) Ended(now time.Time) bool {
	return !p.Resumed.IsZero() || !p.Until.IsZero() && !now.Before(p.Until)
}

// Limit is the value of a named limit, in place of the value in the code.
type Limit struct {
	Name  string    `json:"name"`
	Value int       `json:"value"`
	Note  string    `json:"note,omitempty"`
	By    string    `json:"by"`
	Since time.Time `json:"since"`
}

// Set is the content of the registry. The zero Set belongs to a registry that was never written.
type Set struct {
	Pauses []Pause `json:"pauses,omitempty"` // at most one for each key, in the order of keys
	Limits []Limit `json:"limits,omitempty"` // at most one for each name, in the order of names

	// Unread is why this process has never read the registry, or nil. The Set is then empty.
	Unread error `json:"-"`

	written time.Time     // when the registry was written, by the store's clock
	ahead   time.Duration // the store's clock minus this process's clock
}

// Decode returns the Set in a memo.
func Decode(memo []byte) (s Set, err error) {
	if len(memo) > 0 {
		err = json.Unmarshal(memo, &s)
	}
	return s, err
}

// Encode is the reverse of Decode.
func (s *Set) Encode() []byte {
	slices.SortFunc(s.Pauses, func(a, b Pause) int { return strings.Compare(a.Key, b.Key) })
	slices.SortFunc(s.Limits, func(a, b Limit) int { return strings.Compare(a.Name, b.Name) })
	text, _ := json.Marshal(s) // cannot fail: texts, numbers and times
	return text
}

// Now returns the store's time.
func (s *Set) Now() time.Time { return time.Now().Add(s.ahead) }

// Stale reports whether the registry has content and was not written for so long that it must be written again, or the
// store would forget it one day.
func (s *Set) Stale() bool {
	return len(s.Pauses)+len(s.Limits) > 0 && s.Now().Sub(s.written) > 30*24*time.Hour
}

// Covering returns the pauses that cover key and have not ended.
func (s *Set) Covering(key string) (all []Pause) {
	if len(s.Pauses) == 0 {
		return nil
	}
	key = keyspace.Base(key)
	for _, p := range s.Pauses {
		if rest, ok := strings.CutPrefix(key, p.Key); ok && (rest == "" || rest[0] == ':') && !p.Ended(s.Now()) {
			all = append(all, p)
		}
	}
	return all
}

// Paused returns the pause that holds back a job with locks on keys: of several, the one that ends last. ok is false if
// there is none.
func (s *Set) Paused(keys ...string) (last Pause, ok bool) {
	for _, key := range keys {
		for _, p := range s.Covering(key) {
			if !ok || !last.Until.IsZero() && (p.Until.IsZero() || p.Until.After(last.Until)) {
				last, ok = p, true
			}
		}
	}
	return last, ok
}

// Find returns the pause of key, which may have ended, or nil.
func (s *Set) Find(key string) *Pause {
	if i := slices.IndexFunc(s.Pauses, func(p Pause) bool { return p.Key == key }); i >= 0 {
		return &s.Pauses[i]
	}
	return nil
}

// Remove removes the pause of key.
func (s *Set) Remove(key string) {
	s.Pauses = slices.DeleteFunc(s.Pauses, func(p Pause) bool { return p.Key == key })
}

// Named returns the limit with this name, or nil.
func (s *Set) Named(name string) *Limit {
	if i := slices.IndexFunc(s.Limits, func(l Limit) bool { return l.Name == name }); i >= 0 {
		return &s.Limits[i]
	}
	return nil
}

// Clear removes the limit with this name.
func (s *Set) Clear(name string) {
	s.Limits = slices.DeleteFunc(s.Limits, func(l Limit) bool { return l.Name == name })
}
