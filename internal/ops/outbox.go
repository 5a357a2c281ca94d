package ops

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/workerstats"
	"github.com/joblock/toolkit/joblock/driver"
)

const (
	outboxLate = time.Minute                 // an outbox is behind if its oldest row has waited longer
	outboxGone = 24 * time.Hour              // an outbox counts as removed if its latest report is older
	relayQuiet = 4 * workerstats.RelayPeriod // no relay works if the latest report is older
)

// OutboxState says how well the outbox is relayed.
type OutboxState string

// The states of an outbox.
const (
	OutboxWell     OutboxState = "well"     // a relay works, and keeps up
	OutboxBehind   OutboxState = "behind"   // the first row has waited for more than a minute
	OutboxUnread   OutboxState = "unread"   // the database does not answer the relay
	OutboxUnserved OutboxState = "unserved" // no relay has reported for 40 seconds
)

// Outbox is the latest report of the relay of an outbox of module outbox. The counts are those of the relay's process
// since it began.
type Outbox struct {
	Name     string      `json:"name"`
	State    OutboxState `json:"state"`
	Database string      `json:"database"` // postgres, mysql or sqlite
	Relay    string      `json:"relay"`    // label of the process that relays, or was the last to do so
	Since    Time        `json:"since"`    // when that process began to relay
	At       Time        `json:"at"`       // when that process last reported; it reports about every ten seconds

	Waiting int    `json:"waiting"`            // rows that are not enqueued yet; 0 if the database did not answer
	Oldest  Millis `json:"oldest_ms,omitzero"` // how long the oldest of these rows has been in the table
	Refused int    `json:"refused"`            // rows that will not be enqueued, and stay in the table with their errors

	Sent    int64 `json:"sent"`
	Retried int64 `json:"retried"` // failed tries after which the row is tried again

	LastSent  Time   `json:"last_sent,omitzero"`
	LastError string `json:"last_error,omitempty"` // of Redis or the database; hidden from a caller that may use only some keys
	FailedAt  Time   `json:"failed_at,omitzero"`   // when LastError occurred
}

// Outboxes are the outboxes whose relays have reported in the last day.
type Outboxes struct {
	Outboxes []Outbox `json:"items"` // in the order of names
	Now      Time     `json:"now"`   // by the store's clock
}

// Outboxes returns the latest reports of the outboxes' relays, with one call to the store. Errors: joblock.ErrUnavailable
// and ErrClosed, and an error if this build cannot read the record.
func (d *Desk) Outboxes(ctx context.Context) (Outboxes, error) {
	out := Outboxes{Outboxes: []Outbox{}}
	recs, err := d.in.Inspect(ctx, "outboxes", "", driver.InspectRequest{Keys: []string{keyspace.Outboxes}, Memo: true})
	if err != nil {
		return out, err
	}
	out.Now = Time{recs[0].Now}
	all, err := workerstats.DecodeRelays(recs[0].Memo)
	if err != nil {
		return out, err
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		r := all[name]
		if out.Now.Sub(r.At) >= outboxGone {
			continue
		}
		o := Outbox{
			Name: name, State: outboxState(r, out.Now.Time), Database: r.Database, Relay: r.Holder, Since: Time{r.Began}, At: Time{r.At},
			Waiting: r.Backlog, Oldest: millisOf(r.Oldest), Refused: r.Refused, Sent: r.Sent, Retried: r.Retried,
			LastSent: Time{r.SentAt}, LastError: r.LastError, FailedAt: Time{r.FailedAt},
		}
		if viewerOf(ctx).Key != nil {
			o.LastError = ""
		}
		out.Outboxes = append(out.Outboxes, o)
	}
	return out, nil
}

func outboxState(r workerstats.Relay, now time.Time) OutboxState {
	switch {
	case now.Sub(r.At) > relayQuiet:
		return OutboxUnserved
	case r.Unread:
		return OutboxUnread
	case millisOf(r.Oldest).Duration() > outboxLate:
		return OutboxBehind
	}
	return OutboxWell
}

// outboxes checks the relays of outboxes.
func (c *checkup) outboxes(ctx context.Context) error {
	all, err := c.Outboxes(ctx)
	switch {
	case err != nil && slices.ContainsFunc(c.findings, Finding.Unread): // the reason is the same
		return nil
	case err != nil && !all.Now.IsZero():
		c.add(Note, "outbox", "", err.Error(), "the progress of the relays is unknown", "run the same version in all processes")
		return nil
	case err != nil:
		return c.unread(ctx, "outbox", "", err)
	}
	for _, o := range all.Outboxes {
		c.outbox(o, length(all.Now.Sub(o.At.Time)))
	}
	return nil
}

// outbox checks one outbox. The parameter ago is the age of its latest report, in words.
func (c *checkup) outbox(o Outbox, ago string) {
	c.used = true
	switch o.State {
	case OutboxUnserved:
		c.add(Fault, "outbox", o.Name, fmt.Sprintf("no relay has reported for %s; %d rows were waiting then", ago, o.Waiting),
			"jobs of committed transactions are not enqueued", "run Outbox.Run in every process of the application, and look at the log of "+o.Relay)
	case OutboxUnread:
		c.add(Fault, "outbox", o.Name, "its database does not answer the relay: "+o.LastError, "jobs of committed transactions are not enqueued", "repair the connection of "+o.Relay)
	case OutboxBehind:
		found := fmt.Sprintf("%d rows wait, the first one for %s", o.Waiting, length(o.Oldest.Duration()))
		if o.LastError != "" {
			found += "; the latest error of the relay: " + o.LastError
		}
		c.add(Warning, "outbox", o.Name, found, "jobs start that much later", "look at the columns attempts and error of the first rows with state 0: as a rule another job has their key")
	}
	if o.Refused > 0 {
		c.add(Warning, "outbox", o.Name, fmt.Sprintf("%d rows were refused", o.Refused), "their jobs are not enqueued",
			"look at the column error of the rows with state 2; set their state to 0, or delete the rows")
	}
	c.well("outbox", o.Name, fmt.Sprintf("%d rows wait, %d were sent by %s", o.Waiting, o.Sent, o.Relay))
}
