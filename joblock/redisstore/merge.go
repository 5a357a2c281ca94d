package redisstore

import (
	"context"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// mergeAbove is how many calls and pipelines may be under way before further calls
	// wait to go together. A smaller number saves more. A larger one makes calls to a
	// distant server wait less: about a round trip divided by this number.
	mergeAbove = 4

	// mergeMost is how many calls a pipeline has at most, so that it does not block the
	// server for long.
	mergeMost = 100
)

// merger makes single calls for many goroutines. While few are under way, each caller sends
// its own at once. Further calls wait until one of those is answered, and then go in one
// pipeline. That is cheaper: most of the cost of a small call is system calls, on both sides.
//
// go-redis has AutoPipeline for this. It is experimental, and takes a goroutine per call.
type merger struct {
	rdb   redis.UniversalClient // that has the connections
	via   sender                // what calls are sent through: rdb, or hooks and then rdb
	above int

	mu       sync.Mutex // guards what follows
	underway int        // calls and pipelines
	waiting  []*pipeline
}

// pipeline is calls that go together. Until done is closed only the merger may use their
// commands.
type pipeline struct {
	cmds  []*redis.Cmd // guarded by the merger's mu until sent
	sent  bool         // it is no longer in waiting
	until time.Time    // the latest deadline of its callers
	done  chan struct{}
}

// newMerger returns a merger. It merges calls to one server only: in a cluster a node that
// hangs would hold up the calls to all others.
func newMerger(rdb redis.UniversalClient, via sender) *merger {
	if _, one := rdb.(*redis.Client); one {
		return &merger{rdb: rdb, via: via, above: mergeAbove}
	}
	return unmerged(rdb, via)
}

// unmerged returns a merger that sends every call at once.
func unmerged(rdb redis.UniversalClient, via sender) *merger {
	return &merger{rdb: rdb, via: via, above: math.MaxInt}
}

// do makes one call. The caller must not use cmd afterwards. If ctx ends before the answer,
// the call may still be applied, unless it was waiting to be sent.
func (m *merger) do(ctx context.Context, cmd *redis.Cmd) answer {
	p := m.enter(ctx, cmd)
	if p == nil {
		defer m.next()
		_ = m.via.Process(ctx, cmd) // cmd has the error
		return answerOf(cmd)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		m.leave(p, cmd)
		return answer{err: ctx.Err()} // go-redis does not return the cause either
	}
	a := answerOf(cmd)
	if a.err != nil {
		// Another call may be at fault, and go-redis retries pipelines less than calls.
		cmd = newCmd(ctx, cmd.Args())
		_ = m.via.Process(ctx, cmd)
		a = answerOf(cmd)
	}
	return a
}

// enter counts a call as under way and returns nil, or adds it to a pipeline and returns the
// pipeline.
func (m *merger) enter(ctx context.Context, cmd *redis.Cmd) *pipeline {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.underway < m.above {
		m.underway++
		return nil
	}
	n := len(m.waiting)
	if n == 0 || len(m.waiting[n-1].cmds) == mergeMost {
		m.waiting = append(m.waiting, &pipeline{done: make(chan struct{})})
		n++
	}
	p := m.waiting[n-1]
	p.cmds = append(p.cmds, cmd)
	if until, ends := ctx.Deadline(); !ends {
		p.until = forever
	} else if until.After(p.until) {
		p.until = until
	}
	return p
}

// leave takes a call out of its pipeline when its caller has gone, unless the pipeline has
// been sent. Otherwise such calls would add to the load that made them wait too long.
func (m *merger) leave(p *pipeline, cmd *redis.Cmd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(p.cmds, cmd); i >= 0 && !p.sent {
		p.cmds = slices.Delete(p.cmds, i, i+1)
	}
}

// forever is beyond every deadline; the client's own timeouts end such calls.
var forever = time.Unix(1<<40, 0)

// next is called when a call has ended, and sends the next pipeline.
func (m *merger) next() {
	if p := m.take(); p != nil {
		go m.send(p)
	}
}

// take returns the next pipeline, or nil and counts one less under way.
func (m *merger) take() *pipeline {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 {
		m.underway--
		return nil
	}
	p := m.waiting[0]
	m.waiting = m.waiting[1:]
	p.sent = true
	return p
}

// send sends p and the pipelines after it. It runs in a goroutine of its own: the context
// of one caller must not end the calls of others.
func (m *merger) send(p *pipeline) {
	for ; p != nil; p = m.take() {
		if len(p.cmds) > 0 { // somebody still waits for it
			ctx, cancel := context.WithDeadline(context.Background(), p.until)
			exec(ctx, m.via, p.cmds)
			cancel()
		}
		close(p.done)
	}
}
