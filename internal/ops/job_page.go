package ops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
)

// JobsPage is a part of a walk over jobs.
type JobsPage struct {
	Items []Job

	// Next continues the walk; "" at its end. A JobsPage may be empty and yet not the last.
	Next string
}

// jobStep is where a walk over jobs continues.
type jobStep struct {
	Part   int    `json:"p"`
	Cursor string `json:"c,omitempty"` // of the page of the index
	After  string `json:"a,omitempty"` // the mark of the last entry of that page that was processed
}

// lookedUp is how many tasks JobsPage looks up before it checks the time.
const lookedUp = 64

// JobsPage is Jobs in parts, for callers that keep no walk open. The parameter from is "" or the JobsPage.Next of the
// same query. A page has at most most jobs, and takes about two seconds at most, plus the time of one call to the store.
// A task that asynq does not return in that time has the state TaskUnknown. Progress of the query must not be set. Errors
// are those of Jobs; a bad from is joblock.ErrInvalid.
func (d *Desk) JobsPage(ctx context.Context, q JobsQuery, from string, most int) (JobsPage, error) {
	const op = "list jobs"
	if err := d.in.Check(op); err != nil {
		return JobsPage{}, err
	}
	if _, err := d.index().place(op, from); err != nil {
		return JobsPage{}, err
	}
	until := time.Now().Add(pageTime)
	keeper, err := d.Keeper(ctx)
	if err != nil {
		return JobsPage{}, err
	}
	page := JobsPage{}
	page.Items, page.Next, err = pageOf(ctx, d.index(), indexWalk{op: op, share: q.Share, wants: q.wants, until: until}, from, most, func(some []bound) []Job {
		return joinUntil(ctx, d.asynq(), until, some, q, keeper)
	})
	return page, err
}

// indexWalk says how pageOf iterates over the index of jobs.
type indexWalk struct {
	op    string
	share float64 // 0 means the default
	wants func(driver.Entry) bool
	until time.Time // when to end the page
}

// pageOf reads entries of the index of jobs, beginning at the place from, and returns the items that join makes of them,
// at most one for each entry. next continues the walk; it is "" at the end.
func pageOf[T any](ctx context.Context, x index, walk indexWalk, from string, most int, join func([]bound) []T) (items []T, next string, err error) {
	share := cmp.Or(walk.share, defaultShare)
	if !(share >= 0.001 && share <= 1) {
		return nil, "", core.Invalid(walk.op, "", "the share is %v, must be from 0.001 to 1", share)
	}
	at, err := x.place(walk.op, from)
	if err != nil {
		return nil, "", err
	}
	items = []T{}
	for at.Part < x.in.Parts() {
		began := time.Now()
		page, found, err := x.page(ctx, walk.op, driver.EntriesRequest{Part: at.Part, Cursor: at.Cursor, Count: indexPage}, walk.wants)
		if err != nil {
			return nil, "", err
		}
		// If the entry of the mark is gone, the page starts over: an item may come twice, but none is left out.
		found = found[1+slices.IndexFunc(found, func(b bound) bool { return mark(b.Entry) == at.After }):]
		for len(found) > 0 && len(items) < most {
			some := found[:min(len(found), lookedUp, most-len(items))]
			items = append(items, join(some)...)
			at.After = mark(some[len(some)-1].Entry)
			if found = found[len(some):]; !time.Now().Before(walk.until) {
				break
			}
		}
		if len(found) > 0 {
			break
		}
		at = jobStep{Part: at.Part, Cursor: page.Next}
		if at.Cursor == "" {
			at.Part++
		}
		if len(items) == most || !time.Now().Before(walk.until) {
			break
		}
		if err := sleep.For(ctx, time.Duration(float64(time.Since(began))*(1/share-1))); err != nil {
			return nil, "", err
		}
	}
	if at.Part < x.in.Parts() {
		text, err := json.Marshal(at)
		if err != nil {
			return nil, "", err
		}
		next = base64.RawURLEncoding.EncodeToString(text)
	}
	return items, next, nil
}

// joinUntil returns the jobs of found that match q. It waits for asynq until the time until and a moment longer.
func joinUntil(ctx context.Context, dbs databases, until time.Time, found []bound, q JobsQuery, keeper Keeper) []Job {
	ctx, cancel := context.WithDeadline(ctx, until.Add(pageTime/4))
	defer cancel()
	return slices.DeleteFunc(join(ctx, dbs, found, keeper), func(j Job) bool { return !q.shows(j) })
}

// mark identifies an entry of the index without revealing its key and job.
func mark(l driver.Entry) string {
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
