// Package eventlog is the format of the journal: a Redis stream with what happens to locks and cron jobs. Package
// joblock/journal writes the stream, and package ops reads it.
package eventlog

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Name is the stream's Redis key, after the prefix of the locks. No lock has this name, and no list of locks shows it;
// see redisstore.
const Name = "%events"

// Field is the only field of an entry in the stream. Its value is the JSON of an Entry.
const Field = "event"

// KindDropped is the kind of an Entry that stands for events that were not written.
const KindDropped = "dropped"

// CronKind returns the kind of an Entry about a cron job. kind is a scheduler.Kind.
func CronKind(kind string) string { return "cron " + kind }

// Entry is an event. Durations are in milliseconds.
type Entry struct {
	Kind string `json:"kind"` // event.Kind.String, CronKind or KindDropped

	// These fields are for events of a lock; see event.Event.
	Key       string `json:"key,omitempty"`
	Owner     string `json:"owner,omitempty"`
	Fence     int64  `json:"fence,omitempty"`
	Holder    string `json:"holder,omitempty"`
	Job       string `json:"job,omitempty"`
	Reason    string `json:"reason,omitempty"`
	Error     string `json:"error,omitempty"`
	Code      string `json:"code,omitempty"` // of Error, if it is one of package joblock
	Waited    int64  `json:"waited_ms,omitempty"`
	Held      int64  `json:"held_ms,omitempty"`
	Late      int64  `json:"late_ms,omitempty"` // of a cron job too
	Remaining int64  `json:"remaining_ms,omitempty"`
	Prior     string `json:"prior,omitempty"`
	Recovered bool   `json:"recovered,omitempty"`
	Locks     int    `json:"locks,omitempty"`

	// These fields are for events of a cron job; see scheduler.Event. Key is then the key of the job's lock.
	Scope    string    `json:"scope,omitempty"`
	Name     string    `json:"name,omitempty"`
	Tick     time.Time `json:"tick,omitzero"`
	Node     string    `json:"node,omitempty"`
	Took     int64     `json:"took_ms,omitempty"`
	Attempts int       `json:"attempts,omitempty"`
	Count    int       `json:"count,omitempty"`

	Dropped int64 `json:"dropped,omitempty"` // of KindDropped: how many events were not written

	Source string `json:"source"`           // the process that recorded the event, for people
	Nonce  string `json:"nonce"`            // unique to the event: both copies of an entry that was written twice have the same Nonce
	Ago    int64  `json:"ago_ms,omitempty"` // how long before the write the event happened
}

// Encode returns the text of e.
func (e Entry) Encode() (string, error) {
	text, err := json.Marshal(e)
	return string(text), err
}

// Decode decodes an entry of the stream. at is when the event happened, by the clock of Redis. ok is false for an entry
// that package journal did not write.
func Decode(m redis.XMessage) (e Entry, at time.Time, ok bool) {
	text, _ := m.Values[Field].(string)
	if json.Unmarshal([]byte(text), &e) != nil || e.Kind == "" {
		return Entry{}, time.Time{}, false
	}
	ms, _, valid := ParseID(m.ID)
	return e, time.UnixMilli(ms).Add(-time.Duration(e.Ago) * time.Millisecond).UTC(), valid
}

// ParseID returns the two numbers of an entry's ID. ok is false for any other text.
func ParseID(id string) (ms, seq int64, ok bool) {
	first, second, dash := strings.Cut(id, "-")
	ms, err := parse(first)
	if err != nil {
		return 0, 0, false
	}
	if dash {
		seq, err = parse(second)
	}
	return ms, seq, err == nil
}

// parse parses an unsigned number that fits an int64.
func parse(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	return int64(n), err
}

// Before reports whether the entry with ID a comes before the entry with ID b. Both must be entry IDs.
func Before(a, b string) bool {
	ams, aseq, _ := ParseID(a)
	bms, bseq, _ := ParseID(b)
	return ams < bms || ams == bms && aseq < bseq
}
