package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
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
			"%d hand-overs a second at most, for the fleets one after the other in turns. From the moment before Release until the other process returns from Acquire. "+
			"Late: of 1,000 hand-overs, how many took longer than 100 ms. All waiters of all three fleets wait all the time, and ask every "+fleetPoll.String()+" without a push. "+
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
	nodes := map[string][]*rig.Server{fleetServer: {b.Server}, fleetCluster: cluster.Nodes()}
	for range fleetMasters {
		server, err := rig.Start(ctx, b.Program)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, server.Stop()) }()
		nodes[fleetServers] = append(nodes[fleetServers], server)
	}
	for range b.Scale.Fewest() {
		if err := b.fleetRound(ctx, s, nodes); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// oneFleet is one subject in one round.
type oneFleet struct {
	subject       string
	nodes         []*rig.Server
	all           crowd
	took, settled []answer

	latencies []float64 // of the hand-overs, in ms
	late      float64   // of these

	connections, listening  float64
	channels, subscriptions float64
}

// fleetRound has the fleets of all subjects hold and wait at the same time, and hand over one
// after the other, in many turns: what the machine does meanwhile it does to all.
func (b *Bench) fleetRound(ctx context.Context, s *report.Section, nodes map[string][]*rig.Server) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f := b.Scale.Fleet
	var fleets []*oneFleet
	for _, subject := range []string{fleetServer, fleetServers, fleetCluster} {
		one := &oneFleet{subject: subject, nodes: nodes[subject]}
		part := &fleetPart{
			Cluster: subject == fleetCluster, Prefix: strings.ReplaceAll(subject, " ", "-") + ":",
			Keys: f.Keys, Rate: float64(f.Rate) / float64(f.Processes), Turn: f.Turn,
		}
		for _, node := range one.nodes {
			if err := node.Flush(ctx); err != nil {
				return err
			}
			part.Addrs = append(part.Addrs, node.Addr())
		}
		if one.all, one.took, err = gather(ctx, assignment{Fleet: part}, Crowd{Waiters: f.Keys, Processes: f.Processes}); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, one.all.disperse()) }()
		if _, err := one.all.order(orderWait); err != nil {
			return err
		}
		fleets = append(fleets, one)
	}
	pause(ctx, f.Settle)
	for _, one := range fleets {
		if one.settled, err = one.all.order(orderMark); err != nil {
			return err
		}
	}
	start := time.Now()
	for turn := range f.Turns {
		for i := range fleets {
			if _, err := fleets[(i+turn)%len(fleets)].all.order(orderHand); err != nil {
				return err
			}
		}
	}
	for _, one := range fleets {
		if err := one.end(ctx, s, f, start); err != nil {
			return fmt.Errorf("%s: %w", one.subject, err)
		}
	}
	return nil
}

// end stops a fleet and adds its row.
func (one *oneFleet) end(ctx context.Context, s *report.Section, f Fleet, start time.Time) error {
	if err := one.count(ctx); err != nil {
		return err
	}
	last, err := one.all.order(orderStop)
	if err != nil {
		return err
	}
	elapsed := time.Since(start).Seconds()
	if err := one.match(last); err != nil {
		return err
	}
	goroutines, mib := 0.0, 0.0
	for i := range one.settled {
		goroutines += float64(one.settled[i].Fleet.Goroutines - one.took[i].Fleet.Goroutines)
		mib += float64(one.settled[i].Memory) / (1 << 20)
	}
	n, keys := float64(len(one.latencies)), float64(f.Keys)
	s.Add(fleetCase(f), one.subject,
		report.Quantile(one.latencies, 0.5), report.Quantile(one.latencies, 0.99), 1000*one.late/n, n,
		float64(sent(one.settled, last).Commands)/elapsed, one.connections, one.listening, one.channels, one.subscriptions,
		goroutines/keys, float64(grown(one.took, one.settled))/1024/keys, mib/float64(f.Processes))
	return nil
}

// count asks the servers for connections and subscriptions under the prefix of the fleet. The
// question has a connection to each node, which is not counted.
func (one *oneFleet) count(ctx context.Context) error {
	prefix := strings.ReplaceAll(one.subject, " ", "-") + ":*"
	for _, node := range one.nodes {
		rdb := node.Client()
		channels, err := rdb.PubSubChannels(ctx, prefix).Result()
		if err != nil {
			return err
		}
		subscribers, err := rdb.PubSubNumSub(ctx, channels...).Result()
		if err != nil {
			return err
		}
		one.add(subscribers)
		if one.subject != fleetCluster {
			continue
		}
		if channels, err = rdb.PubSubShardChannels(ctx, prefix).Result(); err != nil {
			return err
		}
		if subscribers, err = rdb.PubSubShardNumSub(ctx, channels...).Result(); err != nil {
			return err
		}
		one.add(subscribers)
	}
	return one.countConnections(ctx)
}

func (one *oneFleet) add(subscribers map[string]int64) {
	for _, n := range subscribers {
		one.channels++
		one.subscriptions += float64(n)
	}
}

// countConnections counts the connections whose name is that of the fleet.
func (one *oneFleet) countConnections(ctx context.Context) error {
	name := " name=" + strings.ReplaceAll(one.subject, " ", "-") + ": "
	for _, node := range one.nodes {
		for _, c := range []struct {
			n    *float64
			args []any
		}{
			{&one.connections, []any{"client", "list"}},
			{&one.listening, []any{"client", "list", "type", "pubsub"}},
		} {
			list, err := node.Client().Do(ctx, c.args...).Text()
			if err != nil {
				return err
			}
			*c.n += float64(strings.Count(list, name))
		}
	}
	return nil
}

// match finds the grant that followed each release: the next one of the same key. The last
// hand-over of a key may have no grant, because the members were told to stop.
func (one *oneFleet) match(last []answer) error {
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
		one.latencies = append(one.latencies, ms)
		if ms > 100 {
			one.late++
		}
	}
	if len(one.latencies) == 0 {
		return errors.New("no hand-over")
	}
	return nil
}
