package workerstats

import (
	"encoding/json"
	"fmt"
	"time"
)

// RelayPeriod is how often a working relay of an outbox writes its Relay.
const RelayPeriod = 10 * time.Second

// Relay has the stats of an outbox, as its working relay writes them. Times are by the clock of the locks' store, as far
// as the relay's process knows that clock. Durations are in milliseconds.
type Relay struct {
	At       time.Time `json:"at"`    // when the stats were written
	Began    time.Time `json:"began"` // when the relay began to work
	Database string    `json:"database"`

	// Of the table, unless Unread: the rows to enqueue, the age of the first of them, and the rows that were refused.
	Backlog int   `json:"backlog"`
	Oldest  int64 `json:"oldest_ms"`
	Refused int   `json:"refused"`
	Unread  bool  `json:"unread,omitempty"` // the database did not answer

	// Counts of this process: rows that were enqueued, tries after which a row waits, and rows that were given up.
	Sent    int64 `json:"sent"`
	Retried int64 `json:"retried"`
	Gaveup  int64 `json:"gave_up"`

	LastError string `json:"last_error,omitempty"`
}

// Encode returns the text of r.
func (r Relay) Encode() []byte {
	text, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("workerstats: %v", err)) // all its values can be encoded
	}
	return text
}

// DecodeRelay is the reverse of Relay.Encode.
func DecodeRelay(text []byte) (r Relay, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return Relay{}, fmt.Errorf("the stats of an outbox cannot be read: %w", err)
	}
	return r, nil
}
