package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
)

// place is a holding's place in the order of all: see peer.Placed.
type place struct {
	Fence  int64 `json:"f"`
	Joined int64 `json:"j"`
}

// orderCrowd hands over as fast as it can.
var orderCrowd = Crowd{Waiters: 16, Processes: 4}

func (b *Bench) order(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "order",
		Title: "Order of hand-overs",
		Note: "joblock only. Waiters that release as soon as they are granted the lock. By the server's clock, which " +
			"leaves no doubt who came first: how many had to wait, and how many of those got the lock after somebody " +
			"who had joined the queue later.",
		Base: string(peer.Joblock),
		Columns: []report.Column{
			{Title: "hand-overs", Fold: report.Sum},
			{Title: "waited", Fold: report.Sum},
			{Title: "overtaken", Fold: report.Sum},
		},
	}
	b.say("%s, %s", s.Name, orderCrowd)
	err := eachRound(ctx, b, b.Scale.Few(), []peer.Name{peer.Joblock}, func(_ int, name peer.Name) error {
		all, err := b.orderRound(ctx, b.Scale.Order)
		if err == nil {
			waited, overtaken := inOrder(all)
			s.Add(orderCrowd.String(), string(name), float64(len(all)), float64(waited), float64(overtaken))
		}
		return err
	})
	return s, err
}

// orderRound has the lock go round at least n times.
func (b *Bench) orderRound(ctx context.Context, n int) (all []place, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	path, err := newTurnFile()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.Remove(path)) }()
	turn, err := openTurn(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, turn.close()) }()
	a := assignment{Peer: peer.Joblock, Addr: b.Server.Addr(), Key: "order", Turn: path, Places: true}
	crowd, _, err := gather(ctx, a, orderCrowd)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, crowd.disperse()) }()
	if _, err := crowd.order(orderWait); err != nil {
		return nil, err
	}
	if !turn.reach(ctx, int64(n)) {
		return nil, fmt.Errorf("%d of %d hand-overs within %s", turn.n.Load(), n, patience)
	}
	last, err := crowd.order(orderStop)
	for _, a := range last {
		all = append(all, a.Places...)
	}
	return all, err
}

// inOrder counts those that had to wait, and among them those that got the lock
// after somebody who came later.
func inOrder(all []place) (waited, overtaken int) {
	slices.SortFunc(all, func(a, b place) int { return cmp.Compare(a.Fence, b.Fence) })
	var last int64
	for _, p := range all {
		if p.Joined == 0 {
			continue
		}
		waited++
		if p.Joined < last {
			overtaken++
		}
		last = max(last, p.Joined)
	}
	return waited, overtaken
}
