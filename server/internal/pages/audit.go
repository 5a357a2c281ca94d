package pages

import (
	"context"
	"slices"
	"strings"

	"github.com/joblock/toolkit/internal/ops"
)

// AuditBody is what the list of actions shows.
type AuditBody struct {
	Rows    []HistoryItem
	All     int
	Key     string
	By      string
	Action  string
	Outcome string
	Actions []string
	Frees   bool // some of the actions freed a key
	Next    string
	Full    bool // there are records older than those that the page searches
	Off     bool
}

// actionFree is the value of the filter for all actions that free a key.
const actionFree = "freed by an operator"

func freeing(action string) bool {
	verb := ops.VerbOf(action)
	return verb != nil && verb.Has("Key")
}

func (h *Handler) auditPage(ctx context.Context, v *View) (any, error) {
	b := &AuditBody{
		Key: one(v.Query, "key"), By: strings.TrimSpace(one(v.Query, "by")), Action: one(v.Query, "action"), Outcome: one(v.Query, "outcome"), Off: !h.cfg.Recorded,
	}
	r, err := h.tail(ctx)
	all, err := take(v, "the actions", r, err)
	if err != nil {
		return nil, err
	}
	b.Full = len(all) == tailLength
	all = slices.DeleteFunc(slices.Clone(all), func(e ops.AuditEntry) bool { return !v.Who.viewer().MaySeeAction(e) })
	after, past := one(v.Query, "after"), false
	kinds := map[string]bool{}
	for _, e := range all {
		name := itemOf(e).What
		if !kinds[name] {
			kinds[name] = true
			b.Actions = append(b.Actions, name)
		}
		b.Frees = b.Frees || freeing(name)
		if b.Key != "" && e.Key != b.Key && !slices.Contains(e.Keys, b.Key) || b.By != "" && !strings.Contains(e.By, b.By) || b.Action != "" && name != b.Action && !(b.Action == actionFree && freeing(name)) || b.Outcome != "" && e.Outcome != b.Outcome {
			continue
		}
		b.All++
		if after != "" && !past {
			past = e.ID == after
			continue
		}
		if len(b.Rows) < pageRows {
			b.Rows = append(b.Rows, itemOf(e))
		} else if b.Next == "" {
			b.Next = b.Rows[len(b.Rows)-1].ID
		}
	}
	return b, nil
}

func (h *Handler) helpPage(context.Context, *View) (any, error) { return nil, nil }
