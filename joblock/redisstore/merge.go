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
	// mergeAbove is how many calls and pipelines are under way before further calls
	// are held back to go together. Low, it saves more; high, calls to a server that
	// is far away wait less: about a round trip divided by this.
	mergeAbove = 4

	// mergeMost bounds a pipeline, so that it is no long pause for the server.
	mergeMost = 100
)

// merger does single calls for many goroutines. While few are under way each is
// sent by its own caller, at once. Above that the next ones wait for one of those
// to be answered and then go in one pipeline: most of what a small call costs both
// sides is its system calls.
//
// go-redis has the like of it (AutoPipeline), through a goroutine for every call
// and experimental.
type merger struct {
	rdb   redis.UniversalClient // that has the connections
	via   sender                // what calls are sent through: rdb, or hooks and then rdb
	above int

	mu       sync.Mutex // guards what follows
	underway int        // calls and pipelines
	waiting  []*pipeline
}

// pipeline is calls that go together. The merger has their commands to itself until
// done is closed.
type pipeline struct {
	cmds  []*redis.Cmd // guarded by the merger's mu until sent
	sent  bool         // it is no longer in waiting
	until time.Time    // when the last of the callers will have gone
	done  chan struct{}
}

// newMerger merges calls to one server only: in a cluster, a node that hangs would
// hold up the calls to all others.
func newMerger(rdb redis.UniversalClient, via sender) *merger {
	if _, one := rdb.(*redis.Client); one {
		return &merger{rdb: rdb, via: via, above: mergeAbove}
	}
	return unmerged(rdb, via)
}

// unmerged sends every call at once.
func unmerged(rdb redis.UniversalClient, via sender) *merger {
	return &merger{rdb: rdb, via: via, above: math.MaxInt}
}

// do makes one call. Its caller must not use cmd any more. When ctx ends before the
// answer, the call may still be applied, but not if it has only been waiting.
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
		return answer{err: ctx.Err()} // not its cause: as from go-redis
	}
	a := answerOf(cmd)
	if a.err != nil {
		// Perhaps another call's fault, and of a pipeline go-redis repeats less than
		// of a call by itself.
		cmd = newCmd(ctx, cmd.Args())
		_ = m.via.Process(ctx, cmd)
		a = answerOf(cmd)
	}
	return a
}

// enter counts a call as under way and returns nil, or puts it into a pipeline.
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

// leave takes a call that nobody waits for any more out of its pipeline, unless that
// is under way. Sent all the same, such calls would add to the load that has made them
// wait for too long.
func (m *merger) leave(p *pipeline, cmd *redis.Cmd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := slices.Index(p.cmds, cmd); i >= 0 && !p.sent {
		p.cmds = slices.Delete(p.cmds, i, i+1)
	}
}

// forever is beyond every deadline; the client's own timeouts end such calls.
var forever = time.Unix(1<<40, 0)

// next is called when what was under way has ended.
func (m *merger) next() {
	if p := m.take(); p != nil {
		go m.send(p)
	}
}

// take returns the pipeline whose turn it is, or counts one less under way.
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

// send has a goroutine of its own, as no caller's context is good for all.
func (m *merger) send(p *pipeline) {
	for ; p != nil; p = m.take() {
		if len(p.cmds) > 0 { // else all callers have gone
			ctx, cancel := context.WithDeadline(context.Background(), p.until)
			exec(ctx, m.via, p.cmds)
			cancel()
		}
		close(p.done)
	}
}
