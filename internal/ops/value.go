package ops

import (
	"encoding/json"
	"time"
)

// Time is an instant by the store's clock. In JSON a Time is RFC 3339 in UTC, with milliseconds.
type Time struct{ time.Time }

const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// MarshalJSON writes the time in UTC, with milliseconds.
func (t Time) MarshalJSON() ([]byte, error) {
	return []byte(`"` + t.UTC().Format(timeLayout) + `"`), nil
}

// Millis is a duration. In JSON a Millis is a whole number of milliseconds.
type Millis time.Duration

// Duration returns m as a time.Duration.
func (m Millis) Duration() time.Duration { return time.Duration(m) }

// String formats m as time.Duration does.
func (m Millis) String() string { return time.Duration(m).String() }

// MarshalJSON writes the whole milliseconds of m.
func (m Millis) MarshalJSON() ([]byte, error) {
	return json.Marshal(time.Duration(m).Milliseconds())
}

// UnmarshalJSON reads whole milliseconds.
func (m *Millis) UnmarshalJSON(text []byte) error {
	var ms int64
	err := json.Unmarshal(text, &ms)
	*m = Millis(time.Duration(ms) * time.Millisecond)
	return err
}
