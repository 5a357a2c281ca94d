package measure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
	"github.com/joblock/toolkit/internal/hashtag"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// The titles of columns that Aims names.
const (
	columnPushes  = "bus messages/op"
	columnTurns   = "round trips/op"
	columnBusiest = "busiest master to mean"
)

// clusterTTL is long enough that nothing is renewed by itself meanwhile.
const clusterTTL = 10 * time.Minute

// clusterCase is a call that is measured in a cluster, or several.
type clusterCase struct {
	name  string
	calls float64 // each of which is one script and one round trip
	do    func(ctx context.Context, k *clusterKit, key string) error
}

// clusterCases are measured one after the other, each with all keys.
var clusterCases = []clusterCase{
	{"acquire", 1, func(ctx context.Context, k *clusterKit, key string) error {
		lock, err := k.holders.locks.TryAcquire(ctx, key)
		k.locks = append(k.locks, lock)
		return err
	}},
	{"park for a job", 1, func(ctx context.Context, k *clusterKit, key string) error {
		token, err := k.next().Park(ctx, joblock.ForJob("bench/"+key))
		k.tokens = append(k.tokens, token)
		return err
	}},
	{"job: resume, renew, release", 3, func(ctx context.Context, k *clusterKit, key string) error {
		token := k.tokens[0]
		k.tokens = k.tokens[1:]
		lock, err := k.holders.locks.Resume(ctx, token, joblock.ForJob("bench/"+key))
		if err == nil {
			err = lock.Renew(ctx)
		}
		if err == nil {
			err = lock.Release(ctx)
		}
		return err
	}},
	{"acquire again", 1, func(ctx context.Context, k *clusterKit, key string) error {
		lock, err := k.holders.locks.TryAcquire(ctx, key)
		k.locks = append(k.locks, lock)
		return err
	}},
	{"hand-over", 2, func(ctx context.Context, k *clusterKit, key string) error {
		go func() {
			lock, err := k.waiters.locks.Acquire(ctx, key)
			k.granted <- granted{lock, err}
		}()
		select {
		case <-k.contended:
		case g := <-k.granted:
			return errors.Join(errors.New("the waiter did not wait"), g.err)
		}
		if err := k.next().Release(ctx); err != nil {
			return err
		}
		g := <-k.granted
		k.locks = append(k.locks, g.lock)
		return g.err
	}},
	{"release", 1, func(ctx context.Context, k *clusterKit, _ string) error { return k.next().Release(ctx) }},
}

func clusterSubject(masters int) string { return fmt.Sprintf("%d masters", masters) }

func (b *Bench) cluster(ctx context.Context) (*report.Section, error) {
	s := &report.Section{
		Name:  "cluster",
		Title: fmt.Sprintf("Redis Cluster: %d keys, one call at a time", b.Scale.ClusterKeys),
		Note: "Clusters of masters without replicas, all processes on this machine: counts and processor times mean something here, latencies do not. " +
			"Of a hand-over, waiter and holder are two Lockers with Stores of their own, so that each grant is pushed through the server. " +
			"The keys are in the order of their masters: on a machine that all masters share, each finds its caches as on one of its own. " +
			"Bus messages carry pushes from master to master. CPU is that of all masters together, less what they use when idle (cluster bus, timers), " +
			"measured just before. Bytes are those from and to clients. Busiest master: its scripts, to the mean of all masters.",
		Base: clusterSubject(slices.Min(b.Scale.Masters)),
		Columns: []report.Column{
			{Title: columnPushes, Fold: report.Max, Digits: 3},
			{Title: "scripts/op", Digits: 3},
			{Title: columnTurns, Digits: 3},
			{Title: columnServer, Digits: 1, Ratio: true},
			{Title: columnScripts, Digits: 1, Ratio: true},
			{Title: "bytes/op", Ratio: true},
			{Title: columnBusiest, Digits: 2},
		},
	}
	return s, b.clusters(ctx, s)
}

// clusters adds the rows. All clusters run at the same time, and are measured in alternating parts.
func (b *Bench) clusters(ctx context.Context, s *report.Section) (err error) {
	var kits []*clusterKit
	defer func() {
		for _, k := range kits {
			err = errors.Join(err, k.close())
		}
	}()
	for _, masters := range b.Scale.Masters {
		b.say("%s, start of %d masters", s.Name, masters)
		k, err := newClusterKit(ctx, b.Program, masters)
		if err != nil {
			return err
		}
		kits = append(kits, k)
		// By then the masters know the scripts, and the waiters have subscribed wherever they will wait.
		warm := keysOf("warm", max(2000, b.Scale.ClusterKeys/5))
		for _, c := range clusterCases {
			if err := k.all(ctx, c, warm); err != nil {
				return fmt.Errorf("%d masters: warm up, %s: %w", masters, c.name, err)
			}
		}
	}
	keys := keysOf("export:acct", b.Scale.ClusterKeys)
	slices.SortFunc(keys, func(a, b string) int { return hashtag.Of(a) - hashtag.Of(b) })
	parts := make([][]clusterUse, len(clusterCases)*len(kits)) // of each case and cluster
	for _, k := range kits {
		if err := k.askOften(ctx); err != nil {
			return err
		}
	}
	for i, c := range clusterCases {
		b.say("%s, %s", s.Name, c.name)
		for part := range slices.Chunk(keys, (len(keys)+b.Scale.Rounds-1)/b.Scale.Rounds) {
			for j, k := range kits {
				used, err := k.use(ctx, len(part), func() error { return k.all(ctx, c, part) })
				if err != nil {
					return fmt.Errorf("%d masters: %s: %w", b.Scale.Masters[j], c.name, err)
				}
				parts[i*len(kits)+j] = append(parts[i*len(kits)+j], used)
			}
		}
	}
	for i, c := range clusterCases {
		for j, k := range kits {
			k.rows(s, c.name, parts[i*len(kits)+j])
		}
	}
	return nil
}

// rows adds the parts of a case as rounds.
func (k *clusterKit) rows(s *report.Section, name string, parts []clusterUse) {
	scripts := make([]int64, len(k.last)) // of each master, by all parts
	var all int64
	for _, u := range parts {
		for i, n := range u.scripts {
			scripts[i] += n
			all += n
		}
	}
	busiest := float64(slices.Max(scripts)) * float64(len(scripts)) / float64(all)
	idle := k.idle.cpu.Seconds() / k.idle.took.Seconds()
	for _, u := range parts {
		var sum int64
		for _, n := range u.scripts {
			sum += n
		}
		n := float64(u.keys)
		s.Add(name, clusterSubject(len(scripts)), float64(u.pushes)/n, float64(sum)/n, float64(u.turns)/n,
			max(0, (u.cpu.Seconds()-idle*u.took.Seconds())*1e6/n), u.scriptTime.Seconds()*1e6/n, float64(u.bytes)/n, busiest)
	}
}

// clusterKit is a cluster, and two Lockers with one wire.
type clusterKit struct {
	servers          *rig.Cluster
	wire             *rig.Wire
	holders, waiters *clusterMember

	locks  []*joblock.Lock // in the order of the keys
	tokens []joblock.Token

	contended chan struct{} // a waiter has its place
	granted   chan granted

	last  []rig.NodeUsage // at the end of the last use
	ended time.Time
	idle  struct{ took, cpu time.Duration } // between uses
	asked struct {
		cpu   time.Duration // of the question what was used
		bytes int64
	}
}

type granted struct {
	lock *joblock.Lock
	err  error
}

func newClusterKit(ctx context.Context, program string, masters int) (k *clusterKit, err error) {
	k = &clusterKit{wire: new(rig.Wire), granted: make(chan granted, 1), contended: make(chan struct{}, 1)}
	if k.servers, err = rig.StartCluster(ctx, program, masters); err != nil {
		return nil, err
	}
	if k.holders, err = k.newMember(nil); err == nil {
		k.waiters, err = k.newMember(k.observe)
	}
	if err != nil {
		return nil, errors.Join(err, k.close())
	}
	return k, nil
}

func (k *clusterKit) close() error {
	return errors.Join(k.waiters.close(), k.holders.close(), k.servers.Stop())
}

// observe is the Observer of the waiters.
func (k *clusterKit) observe(e event.Event) {
	if e.Kind == event.Contended {
		k.contended <- struct{}{}
	}
}

// next takes the first of the locks.
func (k *clusterKit) next() *joblock.Lock {
	lock := k.locks[0]
	k.locks = k.locks[1:]
	return lock
}

func (k *clusterKit) all(ctx context.Context, c clusterCase, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, key := range keys {
		if err := c.do(ctx, k, key); err != nil {
			return err
		}
	}
	return nil
}

// clusterMember is a Locker with a Store of its own.
type clusterMember struct {
	rdb   *redis.ClusterClient
	locks *joblock.Locker
}

func (k *clusterKit) newMember(o event.Observer) (*clusterMember, error) {
	m := &clusterMember{rdb: redis.NewClusterClient(&redis.ClusterOptions{Addrs: k.servers.Addrs(), Dialer: k.wire.Dial})}
	var err error
	m.locks, err = joblock.New(redisstore.New(m.rdb, nil), &joblock.Config{
		TTL: clusterTTL, Observer: o, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, errors.Join(err, m.rdb.Close())
	}
	return m, nil
}

func (m *clusterMember) close() error {
	if m == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	return errors.Join(m.locks.Close(ctx), m.rdb.Close())
}

// clusterUse is what the masters of a cluster have done for some keys, and its clients have sent.
type clusterUse struct {
	keys                  int
	took, cpu, scriptTime time.Duration
	pushes, bytes, turns  int64
	scripts               []int64 // of each master
}

// askOften finds out what the questions of use cost.
func (k *clusterKit) askOften(ctx context.Context) error {
	const times = 20
	var first []rig.NodeUsage
	for i := range times + 1 {
		now, err := k.servers.Usage(ctx)
		if err != nil {
			return err
		}
		if i == 0 {
			first = now
		}
		if i == times {
			for i := range now {
				k.asked.cpu += (now[i].CPU - first[i].CPU) / times
				k.asked.bytes += (now[i].Bytes - first[i].Bytes) / times
			}
		}
	}
	return nil
}

// use returns what do has used, and counts what was used since the last use as idle.
func (k *clusterKit) use(ctx context.Context, keys int, do func() error) (u clusterUse, err error) {
	before, err := k.servers.Usage(ctx)
	if err != nil {
		return u, err
	}
	begun, turns := time.Now(), k.wire.Count().Turns
	if k.last != nil {
		k.idle.took += begun.Sub(k.ended)
		k.idle.cpu -= k.asked.cpu
		for i := range before {
			k.idle.cpu += before[i].CPU - k.last[i].CPU
		}
	}
	if err := do(); err != nil {
		return u, err
	}
	u.keys, u.turns = keys, k.wire.Count().Turns-turns
	k.ended = time.Now()
	u.took = k.ended.Sub(begun)
	if k.last, err = k.servers.Usage(ctx); err != nil {
		return u, err
	}
	u.cpu, u.bytes = -k.asked.cpu, -k.asked.bytes
	for i, after := range k.last {
		scripts := after.Of("eval", "evalsha").Sub(before[i].Of("eval", "evalsha"))
		u.cpu += after.CPU - before[i].CPU
		u.pushes += after.Pushes - before[i].Pushes
		u.bytes += after.Bytes - before[i].Bytes
		u.scripts = append(u.scripts, scripts.Number)
		u.scriptTime += scripts.Time
	}
	return u, nil
}
