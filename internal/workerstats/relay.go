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
	At       time.Time `json:"at"`     // when the stats were written
	Began    time.Time `json:"began"`  // when the relay began to work
	Holder   string    `json:"holder"` // label of its process
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

	SentAt    time.Time `json:"sent_at,omitzero"` // when a row was last enqueued
	LastError string    `json:"last_error,omitempty"`
	FailedAt  time.Time `json:"failed_at,omitzero"` // when LastError occurred
}

// Relays has the stats of all outboxes, by name. It is the memo of keyspace.Outboxes.
type Relays map[string]Relay

// Encode returns the text of rs.
func (rs Relays) Encode() []byte {
	text, err := json.Marshal(rs)
	if err != nil {
		panic(fmt.Sprintf("workerstats: %v", err)) // all its values can be encoded
	}
	return text
}

// DecodeRelays reverses Relays.Encode. No text means no outboxes.
func DecodeRelays(text []byte) (Relays, error) {
	rs := Relays{}
	if len(text) == 0 {
		return rs, nil
	}
	if err := json.Unmarshal(text, &rs); err != nil {
		return nil, fmt.Errorf("the stats of the outboxes cannot be read: %w", err)
	}
	return rs, nil
}
