package measure

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// warmUpPairs is how many pairs each goroutine does before anything is measured:
// connections are opened as they are needed, and scripts loaded.
const warmUpPairs = 20

// pairs acquires and releases, and adds up what that costs.
type pairs struct {
	server     *rig.Server
	peer       peer.Peer
	wire       rig.Wire
	goroutines int
	keys       []string // taken in turn

	done    int
	elapsed time.Duration
	mallocs int64
	sent    rig.Count
	cpu     processors
}

// pairCost is per pair of acquire and release.
type pairCost struct{ micros, allocs, commands, turns, own, server float64 }

// openPairs connects a library and warms it up.
func (b *Bench) openPairs(ctx context.Context, name peer.Name, goroutines, keys int) (*pairs, error) {
	p := &pairs{server: b.Server, goroutines: goroutines, keys: make([]string, keys)}
	for i := range p.keys {
		p.keys[i] = fmt.Sprintf("pair:%s:%d", name, i) // the others are connected as well
	}
	var err error
	if p.peer, err = peer.Open(name, peer.Options{Addr: b.Server.Addr(), Wire: &p.wire, TTL: leaseTTL, Again: b.Scale.Again}); err != nil {
		return nil, err
	}
	if err := parallel(ctx, goroutines, warmUpPairs*goroutines, p.pair); err != nil {
		_ = p.peer.Close() // the first error is the one to tell
		return nil, err
	}
	rig.Memory() // the garbage so far is collected here and not while measuring
	return p, nil
}

func (p *pairs) close() error { return p.peer.Close() }

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
	p.cpu.own += after.own - before.own
	p.cpu.server += after.server - before.server
	p.done += n
	return err
}

// cost returns what run has measured so far.
func (p *pairs) cost() pairCost {
	per := 1 / float64(p.done)
	return pairCost{
		micros:   micros(p.elapsed) * per,
		allocs:   float64(p.mallocs) * per,
		commands: float64(p.sent.Commands) * per,
		turns:    float64(p.sent.Turns) * per,
		own:      micros(p.cpu.own) * per,
		server:   micros(p.cpu.server) * per,
	}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
