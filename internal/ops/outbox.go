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

// outboxLate is the age of a row from which an outbox is behind.
const outboxLate = time.Minute

// outboxGone is the age of stats from which an outbox is taken for one that was removed.
const outboxGone = 24 * time.Hour

// outboxes checks the relays of outboxes.
func (c *checkup) outboxes(ctx context.Context) error {
	recs, err := c.in.Inspect(ctx, "doctor", "", driver.InspectRequest{Keys: []string{keyspace.Outboxes}, Memo: true})
	switch {
	case err != nil && slices.ContainsFunc(c.findings, Finding.Unread): // for the same reason
		return nil
	case err != nil:
		return c.unread(ctx, "outbox", "", err)
	}
	all, err := workerstats.DecodeRelays(recs[0].Memo)
	if err != nil {
		c.add(Note, "outbox", "", err.Error(), "how far the relays are is not known", "run processes of one version")
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if r := all[name]; recs[0].Now.Sub(r.At) < outboxGone {
			c.outbox(name, r, recs[0].Now.Sub(r.At))
		}
	}
	return nil
}

// outbox checks one relay, whose stats are of that age.
func (c *checkup) outbox(name string, r workerstats.Relay, age time.Duration) {
	c.used = true
	oldest := time.Duration(r.Oldest) * time.Millisecond
	switch {
	case age > 4*workerstats.RelayPeriod:
		c.add(Fault, "outbox", name, fmt.Sprintf("no relay has reported for %s; %d rows were waiting then", length(age), r.Backlog),
			"jobs of committed transactions are not enqueued", "run Outbox.Run in every process of the application, and look at the log of "+r.Holder)
	case r.Unread:
		c.add(Fault, "outbox", name, "its database does not answer the relay: "+r.LastError, "jobs of committed transactions are not enqueued", "mend the connection of "+r.Holder)
	case oldest > outboxLate:
		found := fmt.Sprintf("%d rows wait, the first one for %s", r.Backlog, length(oldest))
		if r.LastError != "" {
			found += "; the latest error of the relay: " + r.LastError
		}
		c.add(Warning, "outbox", name, found, "jobs start that much later", "look at the columns attempts and error of the first rows with state 0: as a rule another job has their key")
	}
	if r.Refused > 0 {
		c.add(Warning, "outbox", name, fmt.Sprintf("%d rows were refused", r.Refused), "their jobs are not enqueued",
			"look at the column error of the rows with state 2; set state and due_ms to 0, or delete the rows")
	}
	c.well("outbox", name, fmt.Sprintf("%d rows wait, %d were sent by %s", r.Backlog, r.Sent, r.Holder))
}
