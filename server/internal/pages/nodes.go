package pages

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

// keeper reads the state of the keepers. If there is nothing to show yet, it waits for at most the parameter any.
func (h *Handler) keeper(ctx context.Context, any time.Duration) (read[ops.Keeper], error) {
	return getAs(ctx, h.cache, "keeper", terms{least: 2 * time.Second, newer: patience, any: any}, func(ctx context.Context) (ops.Keeper, error) {
		k, err := h.cfg.Desk.Keeper(ctx)
		h.clock(k.Now)
		return k, err
	})
}

// NodesBody is what the page about keepers and nodes shows.
type NodesBody struct {
	Keeper  ops.Keeper
	Boxes   ops.Outboxes
	Scopes  []NodesOfScope
	Problem []string
}

// NodesOfScope are the nodes of a scope that are up.
type NodesOfScope struct {
	Scope string
	Nodes []ops.CronNode
	Mixed bool // the nodes run several builds
}

func (h *Handler) nodesPage(ctx context.Context, v *View) (any, error) {
	r, err := h.keeper(ctx, patienceNew)
	keeper, err := take(v, "the keepers", r, err)
	if err != nil {
		return nil, err
	}
	b := &NodesBody{Keeper: keeper}
	boxes, err := get(ctx, h.cache, "outboxes"+v.Who.sight(), 2*time.Second, seen(v.Who, h.cfg.Desk.Outboxes))
	if b.Boxes, err = take(v, "the outboxes", boxes, err); err != nil {
		b.Problem = append(b.Problem, "The outboxes could not be read: "+plain(err)+".")
	}
	for _, scope := range h.cfg.Scopes {
		r, err := get(ctx, h.cache, "nodes "+scope, 2*time.Second, func(ctx context.Context) ([]ops.CronNode, error) {
			return h.cfg.Desk.CronNodes(ctx, scope)
		})
		nodes, err := take(v, "the nodes of "+visible(scope), r, err)
		if err != nil {
			b.Problem = append(b.Problem, "The nodes of the scope "+scope+" could not be read: "+plain(err)+".")
			continue
		}
		builds := map[string]bool{}
		for _, n := range nodes {
			builds[n.Program+" "+n.Build] = true
		}
		b.Scopes = append(b.Scopes, NodesOfScope{scope, nodes, len(builds) > 1})
	}
	return b, nil
}

// Freed is how many locks a keeper has freed for one reason.
type Freed struct {
	Reason string
	N      int64
}

// FreedOf returns the counts of a keeper, sorted by reason.
func (b *NodesBody) FreedOf(p ops.KeeperPlace) (all []Freed) {
	for _, reason := range slices.Sorted(maps.Keys(p.Freed)) {
		all = append(all, Freed{reason, p.Freed[reason]})
	}
	return all
}

// Strange returns the names of the queues that a keeper does not know.
func (b *NodesBody) Strange(p ops.KeeperPlace) string {
	return visible(strings.Join(p.Strangers, ", "))
}
