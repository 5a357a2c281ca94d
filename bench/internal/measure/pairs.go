package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// warmUpPairs is how many pairs each goroutine does before anything is measured:
// connections are opened as they are needed, and scripts loaded.
const warmUpPairs = 20

// pairs acquires and releases, and adds up what that costs.
type pairs struct {
	server     *rig.Server
	name       peer.Name
	peer       peer.Peer
	wire       rig.Wire
	goroutines int
	keys       []string // taken in turn
	made       int      // keys made so far

	done    int
	elapsed time.Duration
	mallocs int64
	sent    rig.Count
	cpu     spent
	counts  []float64 // of each run: the server's count per pair, in µs

	apart              int       // pairs whose acquires and releases were measured apart
	acquires, releases rig.Calls // of those
}

// pairCost is per pair of acquire and release. scripts, acquire and release are by the
// server's own count, in µs; scripts is the median of the runs, because the server counts as
// well for how long another process had its core in the middle of a script.
type pairCost struct{ micros, allocs, commands, turns, own, server, scripts, acquire, release float64 }

// openPairs connects a library and warms it up, on all of the keys.
func (b *Bench) openPairs(ctx context.Context, name peer.Name, goroutines, keys int) (*pairs, error) {
	p := &pairs{server: b.Server, name: name, goroutines: goroutines}
	p.newKeys(keys)
	var err error
	if p.peer, err = peer.Open(name, peer.Options{Addr: b.Server.Addr(), Wire: &p.wire, TTL: leaseTTL, Again: b.Scale.Again}); err != nil {
		return nil, err
	}
	if err := parallel(ctx, goroutines, max(keys, warmUpPairs*goroutines), p.pair); err != nil {
		_ = p.peer.Close() // the first error is the one to tell
		return nil, err
	}
	rig.Memory() // the garbage so far is collected here and not while measuring
	return p, nil
}

func (p *pairs) close() error { return p.peer.Close() }

// newKeys has the next pairs take n keys that nobody has used before.
func (p *pairs) newKeys(n int) {
	p.keys = make([]string, n)
	for i := range p.keys {
		p.keys[i] = fmt.Sprintf("pair:%s:%d", p.name, p.made+i) // the other libraries are connected as well
	}
	p.made += n
}

func (p *pairs) pair(ctx context.Context, _, i int) error {
	held, err := p.peer.Acquire(ctx, p.keys[i%len(p.keys)])
	if err != nil {
		return err
	}
	return held.Release(ctx)
}

// run measures n pairs.
func (p *pairs) run(ctx context.Context, n int) error {
	before, err := used(ctx, p.server)
	if err != nil {
		return err
	}
	mallocs, sent, start := rig.Mallocs(), p.wire.Count(), time.Now()
	if err := parallel(ctx, p.goroutines, n, p.pair); err != nil {
		return err
	}
	p.elapsed += time.Since(start)
	d := p.wire.Count().Sub(sent)
	p.sent.Commands += d.Commands
	p.sent.Turns += d.Turns
	p.mallocs += rig.Mallocs() - mallocs
	after, err := used(ctx, p.server)
	cpu := after.since(before, peer.Commands(p.name)...)
	p.cpu.add(cpu)
	p.counts = append(p.counts, micros(cpu.calls.Time)/float64(n))
	p.done += n
	return err
}

// runApart takes a lock on each key and then releases all of them, so that the server's count
// tells one from the other.
func (p *pairs) runApart(ctx context.Context) error {
	commands := peer.Commands(p.name)
	locks := make([]peer.Held, len(p.keys))
	before, err := used(ctx, p.server)
	if err != nil {
		return err
	}
	// Not with parallel's own context: to rueidislock its end is the lock's.
	err = parallel(ctx, p.goroutines, len(locks), func(_ context.Context, _, i int) (err error) {
		locks[i], err = p.peer.Acquire(ctx, p.keys[i])
		return err
	})
	if err != nil {
		return err
	}
	between, err := used(ctx, p.server)
	if err != nil {
		return err
	}
	err = parallel(ctx, p.goroutines, len(locks), func(_ context.Context, _, i int) error { return locks[i].Release(ctx) })
	if err != nil {
		return err
	}
	after, err := used(ctx, p.server)
	p.acquires = between.since(before, commands...).calls
	p.releases = after.since(between, commands...).calls
	p.apart = len(locks)
	return err
}

// strays is how many commands a library may send beside those of the pairs, such as a PING.
const strays = 10

// cost returns what run and runApart have measured so far. It fails if the server has not
// counted what was sent: then the library sends other commands than peer.Commands says.
func (p *pairs) cost() (c pairCost, err error) {
	if d := p.sent.Commands - p.cpu.calls.Number; d < -strays || d > strays {
		return c, fmt.Errorf("%s has sent %d commands, and the server counts %d calls of %q",
			p.name, p.sent.Commands, p.cpu.calls.Number, peer.Commands(p.name))
	}
	per := 1 / float64(p.done)
	c = pairCost{
		micros:   micros(p.elapsed) * per,
		allocs:   float64(p.mallocs) * per,
		commands: float64(p.sent.Commands) * per,
		turns:    float64(p.sent.Turns) * per,
		own:      micros(p.cpu.own) * per,
		server:   micros(p.cpu.server) * per,
		scripts:  report.Quantile(p.counts, 0.5),
	}
	if p.apart > 0 {
		c.acquire = micros(p.acquires.Time) / float64(p.apart)
		c.release = micros(p.releases.Time) / float64(p.apart)
	}
	return c, nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
