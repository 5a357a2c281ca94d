package workerstats

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// MostDurations is how many durations the table keeps of each type: the latest.
	MostDurations = 20

	// MostType is the maximum length in bytes of a type's name in the table, so that no type fills the table alone.
	MostType = 512
)

// Durations has the durations of successful attempts, by the type of the task. The zero value is empty.
type Durations struct {
	Writes int64             `json:"writes"`
	Types  map[string]Recent `json:"types,omitempty"`
}

// Recent has the latest successful attempts of a type.
type Recent struct {
	Write   int64   `json:"write"`      // Durations.Writes when the latest of them was added
	Lengths []int64 `json:"lengths_ms"` // the oldest first
}

// Add adds durations in milliseconds, by type, oldest first.
func (t *Durations) Add(lengths map[string][]int64) {
	t.Writes++
	if t.Types == nil {
		t.Types = make(map[string]Recent)
	}
	for name, more := range lengths {
		if len(name) > MostType || len(more) == 0 {
			continue
		}
		all := append(slices.Clone(t.Types[name].Lengths), more...)
		t.Types[name] = Recent{t.Writes, all[max(0, len(all)-MostDurations):]}
	}
}

// Encode returns the text of t. If the text is too long for a memo, Encode first removes the types that were added to
// least recently.
func (t *Durations) Encode() []byte {
	for {
		text, err := json.Marshal(t)
		if err != nil {
			panic(fmt.Sprintf("workerstats: %v", err)) // Durations can always be encoded
		}
		if len(text) <= driver.MaxMemoBytes {
			return text
		}
		names := make([]string, 0, len(t.Types))
		for name := range t.Types {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return int(t.Types[a].Write - t.Types[b].Write) })
		for _, name := range names[:1+len(names)/8] {
			delete(t.Types, name)
		}
	}
}

// DecodeDurations reverses Durations.Encode. An empty text, of a key without a memo, yields no durations.
func DecodeDurations(text []byte) (t Durations, err error) {
	if len(text) == 0 {
		return t, nil
	}
	if err := json.Unmarshal(text, &t); err != nil {
		return Durations{}, fmt.Errorf("the usual lengths of tasks cannot be read: %w", err)
	}
	return t, nil
}

// Of returns the durations of the latest successful attempts of a type, sorted; empty if none is known.
func (t Durations) Of(name string) (sorted []time.Duration) {
	for _, ms := range t.Types[name].Lengths {
		sorted = append(sorted, time.Duration(ms)*time.Millisecond)
	}
	slices.Sort(sorted)
	return sorted
}
