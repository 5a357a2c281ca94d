package pages

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

const (
	mostBulk     = 1000
	mostBulkForm = 2 << 20 // enough for keys of 512 bytes, each byte escaped as three
	bulkAtOnce   = 8
	bulkTime     = 2 * time.Minute
)

// BulkBody is what the page of an action on many locks shows.
type BulkBody struct {
	Filter  *Filter
	Rows    []BulkRow
	Idle    int
	LiveN   int
	Most    int
	TooMany bool
	Live    bool   // also free keys with live holders
	Typed   string // what the operator must type then
	Reason  string
	Wrong   string
	Done    bool // the rows have results
	Freed   int
	Refused int
	Unknown int
	Back    string
	Query   string
}

// BulkRow is a lock on the page of an action on many locks.
type BulkRow struct {
	Row
	Result string
	Class  string // freed, refused or unknown
}

// bulk frees the locks that a filter selects. The page shows each lock with its fence, and the form sends these fences.
// The answer to the form shows the results: if it is reloaded, the form frees nothing, because the fences have changed.
func (h *Handler) bulk(w http.ResponseWriter, r *http.Request, v *View) {
	if why := v.WhyNot(v.Who.Operate, "operate"); why != "" {
		h.cfg.Logger.Warn("server: an action was refused", "principal", v.Who.ID, "action", "bulk", "why", why)
		h.Problem(w, r, v.Who, http.StatusForbidden, "Not allowed", why+" Nothing was changed.")
		return
	}
	b := &BulkBody{Most: mostBulk}
	var err error
	status := http.StatusOK
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		err = h.preview(r.Context(), v, b)
	case http.MethodPost:
		r.Body = http.MaxBytesReader(w, r.Body, mostBulkForm)
		if err := r.ParseForm(); err != nil {
			h.Problem(w, r, v.Who, http.StatusBadRequest, "The form cannot be read", "Nothing was changed.")
			return
		}
		status, err = h.freeMany(r, v, b, r.PostForm)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		h.Problem(w, r, v.Who, http.StatusMethodNotAllowed, "Not so", "Nothing was changed.")
		return
	}
	if err != nil {
		h.fail(w, r, v, err)
		return
	}
	h.write(w, r, v, status, b)
}

// preview finds the locks, and reads each of them again, because a walk may be seconds old.
func (h *Handler) preview(ctx context.Context, v *View, b *BulkBody) (err error) {
	if b.Filter, err = parseFilter(v.Query); err != nil {
		return err
	}
	b.Query = filterQuery(v.Query).Encode()
	b.Back = "locks?" + b.Query
	if !b.Filter.Any() {
		return bad("The filter is empty: name a prefix, a state, a job, a holder or an age first.")
	}
	w, err := h.locks.look(ctx)
	if err != nil {
		return err
	}
	if w.err != nil {
		return w.err
	}
	rows, more := b.Filter.match(w, v.Who, v.Now, mostBulk)
	if b.TooMany = more; more {
		return nil
	}
	keys := make([]string, len(rows))
	for i, r := range rows {
		keys[i] = r.Key
	}
	if len(keys) == 0 {
		return nil
	}
	list, err := h.cfg.Desk.Statuses(ctx, keys...)
	if err != nil {
		return err
	}
	for _, l := range list {
		if row := rowOf(l); b.Filter.wants(&row, v.Who, h.storeNow()) {
			b.add(BulkRow{Row: row})
		}
	}
	b.typed()
	return nil
}

func (b *BulkBody) add(r BulkRow) {
	if b.Rows = append(b.Rows, r); r.State == joblock.StateHeld {
		b.LiveN++
	} else {
		b.Idle++
	}
}

func (b *BulkBody) typed() {
	if b.LiveN > 0 {
		b.Typed = fmt.Sprintf("%d live", b.LiveN)
	}
}

// filterQuery returns the parameters of an address that belong to a filter.
func filterQuery(q url.Values) url.Values {
	kept := url.Values{}
	for _, name := range []string{"prefix", "contains", "state", "holder", "job", "older", "waiters", "own"} {
		if values := q[name]; len(values) > 0 {
			kept[name] = values
		}
	}
	return kept
}

// freeMany frees the keys in the form, each under its fence in the form.
func (h *Handler) freeMany(r *http.Request, v *View, b *BulkBody, form url.Values) (int, error) {
	keys, fences, states := form["k"], form["f"], form["s"]
	b.Reason, b.Live = strings.TrimSpace(one(form, "reason")), one(form, "live") == "1"
	b.Query = one(form, "query")
	kept, err := url.ParseQuery(b.Query)
	if err != nil || len(keys) == 0 || len(keys) != len(fences) || len(keys) != len(states) || len(keys) > mostBulk {
		return 0, bad("The form is incomplete. Nothing was changed.")
	}
	b.Query = filterQuery(kept).Encode()
	b.Back = "locks?" + b.Query
	seen := make(map[string]bool, len(keys))
	for i, key := range keys {
		fence, err := strconv.ParseInt(fences[i], 10, 64)
		if err != nil || seen[key] || !v.Who.MayUse(key) {
			return 0, bad("The form has a key that it must not have. Nothing was changed.")
		}
		seen[key] = true
		row := Row{Key: key, Fence: fence, State: joblock.StateParked}
		if states[i] == joblock.StateHeld.String() {
			row.State = joblock.StateHeld
		}
		b.add(BulkRow{Row: row})
	}
	b.typed()
	switch {
	case b.Reason == "":
		b.Wrong = "Say why. The next one on call reads it."
	case len(b.Reason) > mostReason:
		b.Wrong = fmt.Sprintf("The reason has %d bytes, at most %d are allowed.", len(b.Reason), mostReason)
	case b.Live && b.Typed != "" && one(form, "typed") != b.Typed:
		b.Wrong = "What was typed is not the same as what is asked for."
	}
	if b.Wrong != "" {
		return http.StatusUnprocessableEntity, nil
	}
	if !v.Who.mayDo(len(b.Rows)) {
		b.Wrong = tooMany
		return http.StatusTooManyRequests, nil
	}
	h.carryOutMany(r, v, b)
	return http.StatusOK, nil
}

func (h *Handler) carryOutMany(r *http.Request, v *View, b *BulkBody) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), bulkTime)
	defer cancel()
	desk := h.cfg.Desk.As(v.Who.ID, v.Who.From)
	var group sync.WaitGroup
	turn := make(chan struct{}, bulkAtOnce)
	for i := range b.Rows {
		turn <- struct{}{}
		group.Go(func() {
			defer func() { <-turn }()
			row := &b.Rows[i]
			_, err := desk.Act(ctx, ops.ForceRelease{Key: row.Key, Fence: row.Fence, IfIdle: !b.Live, Reason: b.Reason})
			row.Result, row.Class = bulkResult(err)
		})
	}
	group.Wait()
	b.Done = true
	for _, row := range b.Rows {
		switch row.Class {
		case "freed":
			b.Freed++
		case "refused":
			b.Refused++
		default:
			b.Unknown++
		}
	}
	h.cfg.Logger.Info("server: action", "principal", v.Who.ID, "action", "free many", "filter", b.Query, "live", b.Live, "reason", b.Reason, "freed", b.Freed, "refused", b.Refused, "unknown", b.Unknown)
	h.cache.forget("audit")
	h.locks.refresh()
}

func bulkResult(err error) (text, class string) {
	switch {
	case err == nil:
		return "freed", "freed"
	case errors.Is(err, ops.ErrNotRecorded):
		return "not begun: the action could not be recorded", "refused"
	case errors.Is(err, joblock.ErrNotOwner):
		return "left alone: another holder has the key by now, or the same job in another step", "refused"
	case errors.Is(err, joblock.ErrNotFound):
		return "left alone: the key was free already", "refused"
	case errors.Is(err, joblock.ErrBusy):
		return "left alone: a holder runs under the lock", "refused"
	case errors.Is(err, joblock.ErrInvalid):
		return "left alone: " + plain(err), "refused"
	}
	return "not known: " + plain(err), "unknown"
}
