package ops

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
)

// JobsPage is a part of a walk over jobs.
type JobsPage struct {
	Items []Job

	// Next continues the walk; "" at its end. A JobsPage may have no items, and yet not be the last.
	Next string
}

// jobStep is where a walk over jobs goes on.
type jobStep struct {
	Part   int    `json:"p"`
	Cursor string `json:"c,omitempty"` // of the page of the index
	After  string `json:"a,omitempty"` // the mark of the last entry of that page which was looked at
}

// lookedUp is how many tasks JobsPage looks up before it looks at the time.
const lookedUp = 64

// JobsPage is Jobs in parts, for callers that keep no walk open. The parameter from is "" or the JobsPage.Next of the same
// query. A page has at most so many jobs as the parameter most says, and takes about two seconds at most, plus the time of
// one call to the store. A task that asynq does not show in that time has TaskUnknown. Progress of the query must not be
// set. Errors are those of Jobs; a bad from is joblock.ErrInvalid.
func (d *Desk) JobsPage(ctx context.Context, q JobsQuery, from string, most int) (JobsPage, error) {
	const op = "list jobs"
	if err := d.in.Check(op); err != nil {
		return JobsPage{}, err
	}
	share := q.Share
	if share == 0 {
		share = defaultShare
	}
	if !(share >= 0.001 && share <= 1) {
		return JobsPage{}, door.Invalid(op, "", "the share is %v, must be from 0.001 to 1", share)
	}
	at, ok := parseJobStep(from)
	if !ok || at.Part >= d.in.Parts() {
		return JobsPage{}, door.Invalid(op, "", "cursor is none that an earlier page had")
	}
	until := time.Now().Add(pageTime)
	keeper, err := d.Keeper(ctx)
	if err != nil {
		return JobsPage{}, err
	}
	page := JobsPage{Items: []Job{}}
	for at.Part < d.in.Parts() {
		began := time.Now()
		index, found, err := d.page(ctx, op, driver.EntriesRequest{Part: at.Part, Cursor: at.Cursor, Count: indexPage}, q.wants)
		if err != nil {
			return JobsPage{}, err
		}
		// If the entry of the mark is gone, the page begins anew: a job may come twice, but none is left out.
		found = found[1+slices.IndexFunc(found, func(b bound) bool { return mark(b.JobLock) == at.After }):]
		for len(found) > 0 && len(page.Items) < most {
			some := found[:min(len(found), lookedUp, most-len(page.Items))]
			page.Items = append(page.Items, d.joinUntil(ctx, until, some, q, keeper)...)
			at.After = mark(some[len(some)-1].JobLock)
			if found = found[len(some):]; !time.Now().Before(until) {
				break
			}
		}
		if len(found) > 0 {
			break
		}
		at = jobStep{Part: at.Part, Cursor: index.Next}
		if at.Cursor == "" {
			at.Part++
		}
		if len(page.Items) == most || !time.Now().Before(until) {
			break
		}
		if err := sleep.For(ctx, time.Duration(float64(time.Since(began))*(1/share-1))); err != nil {
			return JobsPage{}, err
		}
	}
	if at.Part < d.in.Parts() {
		text, err := json.Marshal(at)
		if err != nil {
			return JobsPage{}, err
		}
		page.Next = base64.RawURLEncoding.EncodeToString(text)
	}
	return page, nil
}

// joinUntil returns the jobs of interest among found. It waits for asynq until so long, and a moment at least.
func (d *Desk) joinUntil(ctx context.Context, until time.Time, found []bound, q JobsQuery, keeper Keeper) []Job {
	ctx, cancel := context.WithDeadline(ctx, until.Add(pageTime/4))
	defer cancel()
	return slices.DeleteFunc(d.join(ctx, found, keeper), func(j Job) bool { return q.Suspects && j.Suspect == "" })
}

// mark names an entry of the index, and tells nothing about it.
func mark(l driver.JobLock) string {
	sum := sha256.Sum256([]byte(l.Key + "\n" + l.Job))
	return hex.EncodeToString(sum[:8])
}

func parseJobStep(from string) (at jobStep, ok bool) {
	if from == "" {
		return jobStep{}, true
	}
	text, err := base64.RawURLEncoding.DecodeString(from)
	if err != nil {
		return jobStep{}, false
	}
	dec := json.NewDecoder(strings.NewReader(string(text)))
	dec.DisallowUnknownFields()
	return at, dec.Decode(&at) == nil && at.Part >= 0
}
