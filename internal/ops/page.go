package ops

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Read returns the locks of keys with the fields that Locks sets, in the order of keys. Errors are those of Lock. With an
// error it returns no locks, because a key that could not be read would look free.
func (d *Desk) Read(ctx context.Context, keys ...string) ([]Lock, error) {
	const op = "status"
	if err := d.in.Check(op, keys...); err != nil {
		return nil, err
	}
	locks := make([]Lock, 0, len(keys))
	for begin := 0; begin < len(keys); begin += driver.MaxBatch {
		batch := keys[begin:min(len(keys), begin+driver.MaxBatch)]
		recs, err := d.in.Inspect(ctx, op, "", driver.InspectRequest{Keys: batch})
		if err != nil {
			return nil, err
		}
		for _, rec := range recs {
			locks = append(locks, lockOf(rec))
		}
	}
	return locks, nil
}

// Page is a part of a walk over locks.
type Page struct {
	Items []Lock

	// Next continues the walk; "" at its end. A Page may be empty and yet not the last.
	Next string
}

const (
	// pageKeys is how many keys the store looks at per call.
	pageKeys = 250

	// pageTime bounds how long a Page takes if few locks match.
	pageTime = 2 * time.Second

	// maxSteps is the maximum number of places at which a walk can continue, one for each server.
	maxSteps = 1000
)

// LocksPage is Locks in parts, for callers that keep no walk open. The parameter from is "" or the Page.Next of the same
// query. A Page has at least most locks, unless the walk ends or two seconds have passed; with Jobs or Queue, it has at
// most that many. Progress of the query must not be set. Errors are those of Locks; a bad from is joblock.ErrInvalid.
func (d *Desk) LocksPage(ctx context.Context, q LocksQuery, from string, most int) (Page, error) {
	const op = "list"
	if err := d.in.Check(op); err != nil {
		return Page{}, err
	}
	if err := cmp.Or(core.CheckText(op, "", "prefix", q.Prefix, 0, driver.MaxKeyBytes), checkContains(op, q.Contains)); err != nil {
		return Page{}, err
	}
	if q.Jobs || q.Queue != "" {
		return d.index().locksPage(ctx, q, from, most)
	}
	steps, ok := parseSteps(from)
	if !ok {
		return Page{}, core.Invalid(op, "", "cursor does not come from an earlier page")
	}
	share := q.Share
	if share == 0 {
		share = defaultShare
	}
	if !(share >= 0.001 && share <= 1) {
		return Page{}, core.Invalid(op, "", "the share is %v, must be from 0.001 to 1", share)
	}
	page := Page{Items: []Lock{}}
	for until := time.Now().Add(pageTime); len(steps) > 0 && len(page.Items) < most; {
		began := time.Now()
		var got driver.ListPage
		err := d.in.Call(ctx, op, "", func(ctx context.Context, store driver.Store) (err error) {
			got, err = store.List(ctx, driver.ListRequest{Prefix: q.Prefix, Cursor: steps[0], Count: pageKeys})
			return err
		})
		if err != nil {
			return Page{}, err
		}
		steps = append(steps[1:], got.Next...)
		for _, rec := range got.Records {
			st := joblock.Status(core.StatusOf(rec))
			if l := show(st); q.wants(l) {
				page.Items = append(page.Items, l)
			}
		}
		if !time.Now().Before(until) {
			break
		}
		if err := sleep.For(ctx, time.Duration(float64(time.Since(began))*(1/share-1))); err != nil {
			return Page{}, err
		}
	}
	if len(steps) > 0 {
		text, err := json.Marshal(steps)
		if err != nil {
			return Page{}, err
		}
		page.Next = base64.RawURLEncoding.EncodeToString(text)
	}
	return page, nil
}

// parseSteps returns the places at which a walk continues.
func parseSteps(from string) (steps []string, ok bool) {
	if from == "" {
		return []string{""}, true
	}
	text, err := base64.RawURLEncoding.DecodeString(from)
	if err != nil || json.Unmarshal(text, &steps) != nil {
		return nil, false
	}
	return steps, len(steps) > 0 && len(steps) <= maxSteps
}
