package records

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memo"
	"github.com/joblock/toolkit/scheduler/internal/roster"
)

// nodeTTL is how long a node that has died is still shown.
const nodeTTL = 90 * time.Second

// Node is a node that is up.
type Node struct {
	roster.Node
	ID  string
	Has func(job string) bool
}

// Nodes returns the nodes that are up, sorted by name and ID.
func (s *Scope) Nodes(ctx context.Context) ([]Node, error) {
	views, err := memo.Read(ctx, s.Locks, keyspace.CronNodes(s.part))
	if err != nil {
		return nil, err
	}
	list, err := roster.DecodeNodes(views[0].Memo)
	if err != nil {
		return nil, err
	}
	views, err = s.nodeViews(ctx, list.IDs)
	if err != nil {
		return nil, err
	}
	var up []Node
	for i, v := range views {
		if v.State != joblock.StateHeld || len(v.Memo) == 0 {
			continue
		}
		n, err := roster.DecodeNode(v.Memo)
		if err != nil {
			return nil, err
		}
		up = append(up, Node{n, list.IDs[i], n.Has()})
	}
	slices.SortFunc(up, func(a, b Node) int { return strings.Compare(a.Name+"\n"+a.ID, b.Name+"\n"+b.ID) })
	return up, nil
}

func (s *Scope) nodeViews(ctx context.Context, ids []string) (all []memo.View, err error) {
	for part := range slices.Chunk(ids, batch) {
		keys := make([]string, len(part))
		for i, id := range part {
			keys[i] = keyspace.CronNode(s.part, id)
		}
		views, err := memo.Read(ctx, s.Locks, keys...)
		if err != nil {
			return nil, err
		}
		all = append(all, views...)
	}
	return all, nil
}

// MayHave returns, by ID, for each of the nodes with these IDs that may be up, a function that reports whether the node
// may have a job.
func (s *Scope) MayHave(ctx context.Context, ids []string) (map[string]func(job string) bool, error) {
	views, err := s.nodeViews(ctx, ids)
	if err != nil {
		return nil, err
	}
	has := make(map[string]func(job string) bool)
	for i, v := range views {
		if v.State == joblock.StateFree {
			continue
		}
		has[ids[i]] = func(string) bool { return true } // unless the record says otherwise
		if n, err := roster.DecodeNode(v.Memo); err == nil && len(v.Memo) > 0 {
			has[ids[i]] = n.Has()
		}
	}
	return has, nil
}

// NodeTTL returns how long the record of a node lasts without a renewal: 90 s, or Config.MaxTTL of the Locker.
func (s *Scope) NodeTTL() time.Duration {
	return min(nodeTTL, (*core.Locker)(s.Locks).Settings().MaxTTL)
}

// WriteNode writes the record of the node with this ID, if it has changed. own is the lock of the record; if it is nil
// or lost, WriteNode takes the lock. It returns the lock that the record has now. The error is joblock.ErrHeld if the
// record is still held by the lock that was lost.
func (s *Scope) WriteNode(ctx context.Context, own *joblock.Lock, id string, n *roster.Node) (*joblock.Lock, error) {
	if own == nil || own.Err() != nil {
		lock, err := s.Locks.TryAcquire(ctx, keyspace.CronNode(s.part, id), core.OwnKey, joblock.Holder(s.By),
			joblock.TTL(s.NodeTTL()), joblock.Retain(time.Minute), joblock.MaxRenew(driver.MaxPeriod))
		if err != nil {
			return nil, err
		}
		own = lock
	}
	if text := n.Encode(); !bytes.Equal(memo.Of(own), text) {
		return own, memo.Write(ctx, own, text)
	}
	return own, nil
}

// ListNode adds the ID of a node to the list of nodes, unless it is there, and removes the nodes that are not up.
func (s *Scope) ListNode(ctx context.Context, id string) error {
	key := keyspace.CronNodes(s.part)
	has := func(text []byte) (list roster.Nodes, listed bool, err error) {
		list, err = roster.DecodeNodes(text)
		return list, slices.Contains(list.IDs, id), err
	}
	views, err := memo.Read(ctx, s.Locks, key)
	if err != nil {
		return err
	}
	if _, listed, err := has(views[0].Memo); listed || err != nil {
		return err
	}
	return s.rewrite(ctx, key, func(text []byte, _ int64) ([]byte, error) {
		list, listed, err := has(text)
		if listed || err != nil {
			return nil, err
		}
		up, err := s.Nodes(ctx)
		list.IDs = []string{id}
		for _, other := range up {
			list.IDs = append(list.IDs, other.ID)
		}
		return list.Encode(), err
	})
}
