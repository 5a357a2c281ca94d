package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// The subjects of the section on fleets.
const (
	fleetServer  = "1 server"
	fleetServers = "3 servers, no cluster"
	fleetCluster = "cluster of 3"
)

const fleetMasters = 3

func fleetCase(f Fleet) string {
	return fmt.Sprintf("%d keys, %d processes", f.Keys, f.Processes)
}

func (b *Bench) fleet(ctx context.Context) (s *report.Section, err error) {
	f := b.Scale.Fleet
	s = &report.Section{
		Name:  "fleet",
		Title: "Many keys, a waiter for each",
		Note: fmt.Sprintf("joblock only. Each key has a holder in one process and a waiter in another one, which take turns: "+
			"%d hand-overs a second in all. From the moment before Release until the other process returns from Acquire. "+
			"Late: of 1,000 hand-overs, how many took longer than 100 ms. All waiters ask every 4 s without a push, as by default. "+
			"Three servers without a cluster show what the further servers cost on the same machine. "+
			"Connections, channels and subscriptions are those of all servers and all processes. "+
			"Of a waiter: what it adds to its process. Rounds: %d.", f.Rate, b.Scale.Fewest()),
		Base: fleetServer,
		Columns: []report.Column{
			{Title: columnP50, Digits: 2, Ratio: true},
			{Title: columnP99, Digits: 2, Ratio: true},
			{Title: "late ‰", Digits: 1},
			{Title: "hand-overs", Fold: report.Sum},
			{Title: "commands/s", Ratio: true},
			{Title: "connections"},
			{Title: "of these pub/sub"},
			{Title: "channels"},
			{Title: "subscriptions"},
			{Title: "goroutines/waiter", Digits: 2},
			{Title: "KiB/waiter", Digits: 1},
			{Title: "MiB/process", Digits: 1},
		},
	}
	b.say("%s, %s", s.Name, fleetCase(f))
	cluster, err := rig.StartCluster(ctx, b.Program, fleetMasters)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	nodes := map[string][]*rig.Server{fleetServer: {b.Server}, fleetServers: {b.Server}, fleetCluster: cluster.Nodes()}
	for range fleetMasters - 1 {
		server, err := rig.Start(ctx, b.Program)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		nodes[fleetServers] = append(nodes[fleetServers], server)
	}
	subjects := []string{fleetServer, fleetServers, fleetCluster}
	for round := range b.Scale.Fewest() {
		for i := range subjects {
			subject := subjects[(i+round)%len(subjects)]
			r, err := b.fleetRound(ctx, nodes[subject], subject == fleetCluster)
			if err != nil {
				return nil, fmt.Errorf("round %d, %s: %w", round+1, subject, err)
			}
			n := float64(len(r.latencies))
			s.Add(fleetCase(f), subject, report.Quantile(r.latencies, 0.5), report.Quantile(r.latencies, 0.99), 1000*r.late/n, n,
				r.commands, r.connections, r.listening, r.channels, r.subscriptions, r.goroutines, r.kib, r.mib)
		}
	}
	return s, nil
}

// fleetResult is what came out of one round.
type fleetResult struct {
	latencies []float64 // of the hand-overs, in ms
	late      float64   // of these

	commands                float64 // per second
	connections, listening  float64
	channels, subscriptions float64
	goroutines, kib         float64 // per waiter
	mib                     float64 // per process
}

// fleetRound has processes hold and wait, and hand over for a while.
func (b *Bench) fleetRound(ctx context.Context, nodes []*rig.Server, cluster bool) (r fleetResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f := b.Scale.Fleet
	part := &fleetPart{Cluster: cluster, Keys: f.Keys, Rate: float64(f.Rate) / float64(f.Processes)}
	for _, node := range nodes {
		if err := node.Flush(ctx); err != nil {
			return r, err
		}
		part.Addrs = append(part.Addrs, node.Addr())
	}
	all, took, err := gather(ctx, assignment{Fleet: part}, Crowd{Waiters: f.Keys, Processes: f.Processes})
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, all.disperse()) }()
	if _, err := all.order(orderWait); err != nil {
		return r, err
	}
	pause(ctx, f.Settle)
	settled, err := all.order(orderMark)
	if err != nil {
		return r, err
	}
	if _, err := all.order(orderHand); err != nil {
		return r, err
	}
	pause(ctx, f.Show)
	if err := r.count(ctx, nodes, cluster); err != nil {
		return r, err
	}
	last, err := all.order(orderStop)
	if err != nil {
		return r, err
	}
	r.commands = float64(sent(settled, last).Commands) / f.Show.Seconds()
	r.kib = float64(grown(took, settled)) / 1024 / float64(f.Keys)
	for i := range settled {
		r.goroutines += float64(settled[i].Fleet.Goroutines-took[i].Fleet.Goroutines) / float64(f.Keys)
		r.mib += float64(settled[i].Memory) / (1 << 20) / float64(f.Processes)
	}
	return r, r.match(last)
}

// count asks the servers for connections and subscriptions. The question has a connection to
// each node, which is not counted.
func (r *fleetResult) count(ctx context.Context, nodes []*rig.Server, cluster bool) error {
	prefix := redisstore.DefaultPrefix + "*"
	for _, node := range nodes {
		rdb := node.Client()
		list, err := rdb.ClientList(ctx).Result()
		if err != nil {
			return err
		}
		r.connections += float64(strings.Count(list, "\n") - 1)
		if list, err = rdb.Do(ctx, "client", "list", "type", "pubsub").Text(); err != nil {
			return err
		}
		r.listening += float64(strings.Count(list, "\n"))
		channels, err := rdb.PubSubChannels(ctx, prefix).Result()
		if err != nil {
			return err
		}
		subscribers, err := rdb.PubSubNumSub(ctx, channels...).Result()
		if err != nil {
			return err
		}
		r.add(subscribers)
		if !cluster {
			continue
		}
		if channels, err = rdb.PubSubShardChannels(ctx, prefix).Result(); err != nil {
			return err
		}
		if subscribers, err = rdb.PubSubShardNumSub(ctx, channels...).Result(); err != nil {
			return err
		}
		r.add(subscribers)
	}
	return nil
}

func (r *fleetResult) add(subscribers map[string]int64) {
	for _, n := range subscribers {
		r.channels++
		r.subscriptions += float64(n)
	}
}

// match finds the grant that followed each release: the next one of the same key. The last
// hand-over of a key may have no grant, because the members were told to stop.
func (r *fleetResult) match(last []answer) error {
	type act struct {
		fleetAct
		grant bool
	}
	var acts []act
	for _, a := range last {
		for _, at := range a.Fleet.Releases {
			acts = append(acts, act{at, false})
		}
		for _, at := range a.Fleet.Grants {
			acts = append(acts, act{at, true})
		}
	}
	slices.SortFunc(acts, func(a, b act) int { return cmp.Compare(a.At, b.At) })
	released := make(map[int]int64)
	for _, a := range acts {
		at, ok := released[a.Key]
		if a.grant != ok {
			return fmt.Errorf("%w: key %d", ErrNotExclusive, a.Key)
		}
		if !a.grant {
			released[a.Key] = a.At
			continue
		}
		delete(released, a.Key)
		ms := float64(a.At-at) / 1e6
		r.latencies = append(r.latencies, ms)
		if ms > 100 {
			r.late++
		}
	}
	if len(r.latencies) == 0 {
		return errors.New("no hand-over")
	}
	return nil
}
