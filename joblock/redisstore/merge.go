package redisstore

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// mergeAbove is how many calls and pipelines may be under way before further calls wait to go together. A smaller
	// number saves more system calls. A larger number shortens the waits before calls to a distant server. Such a wait
	// is about a round trip divided by mergeAbove.
	mergeAbove = 4

	// mergeMost is how many calls a pipeline has at most. A longer pipeline would keep the server from its other work
	// for too long.
	mergeMost = 100
)

// merger makes single calls for many goroutines. While few calls are under way, each caller sends its own call
// at once. Further calls wait until a call under way is answered, and then go in one pipeline. A pipeline is cheaper
// than single calls: most of the cost of a small call is system calls, on both sides.
//
// go-redis has AutoPipeline for the same purpose. AutoPipeline is experimental, and takes a goroutine per call.
type merger struct {
	rdb   redis.UniversalClient // the client that has the connections
	via   sender                // calls are sent through via: rdb, or hooks and then rdb
	above int                   // mergeAbove, or the largest int to send every call at once

	mu       sync.Mutex // guards the fields below
	underway int        // calls and pipelines
	waiting  []*pipeline
}

// pipeline is a number of calls that go together. Until the channel done is closed, only the merger may use
// the cmds.
type pipeline struct {
	cmds  []*redis.Cmd // guarded by the merger's mu until sent
	sent  bool         // the pipeline is no longer in merger.waiting
	until time.Time    // the latest deadline of the callers
	done  chan struct{}
}

// newMerger returns a merger that merges calls if rdb is a client of one server. Calls to a cluster are not merged: a
// node that hangs would hold up the calls to all other nodes.
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

// do makes one call. The caller must not use cmd afterwards. If ctx ends before the answer, the server may
// still run the call, unless the call was still waiting to be sent.
func (m *merger) do(ctx context.Context, cmd *redis.Cmd) answer {
	p := m.enter(ctx, cmd)
	if p == nil {
		defer m.next()
		_ = m.via.Process(ctx, forCluster(m.via, cmd)) // answerOf reads the error from cmd
		return answerOf(cmd)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		m.leave(p, cmd)
		return answer{err: ctx.Err()} // not context.Cause: go-redis returns ctx.Err() too
	}
	a := answerOf(cmd)
	if a.err != nil {
		// The error may come from another call of the pipeline. And go-redis retries pipelines less than single calls.
		// So send this call alone.
		cmd = newCmd(ctx, cmd.Args())
		_ = m.via.Process(ctx, forCluster(m.via, cmd))
		a = answerOf(cmd)
	}
	return a
}

// together makes the calls of b, in their order and on one connection. The answers are in b.cmds. Each of these calls may
// have been made although it has an error.
func (m *merger) together(ctx context.Context, b *bundle) {
	cmds := b.cmds
	p := m.enter(ctx, cmds...)
	if p == nil {
		defer m.next()
		m.alone(ctx, b)
		return
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		if !m.leave(p, cmds...) { // the pipeline still writes to cmds
			for i := range cmds {
				cmds[i] = &redis.Cmd{}
			}
		}
		for _, cmd := range cmds {
			cmd.SetErr(ctx.Err())
		}
		return
	}
	for _, cmd := range cmds {
		var reply redis.Error
		if err := cmd.Err(); err != nil && !errors.As(err, &reply) {
			// As in do.
			shown := slices.Index(cmds, b.Cmd)
			for i, cmd := range cmds {
				cmds[i] = redis.NewCmd(ctx, cmd.Args()...)
			}
			b.Cmd = cmds[shown]
			m.alone(ctx, b)
			return
		}
	}
}

// alone sends the calls of b in a pipeline of their own.
func (m *merger) alone(ctx context.Context, b *bundle) {
	if err := m.via.Process(ctx, b); err != nil {
		for _, cmd := range b.cmds { // a hook may have failed the call before anything was sent
			if cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(err)
			}
		}
	}
}

// bundle is several commands for one pipeline. The hooks of the application's client see one of them only, unless the
// merger has merged them with other calls.
type bundle struct {
	*redis.Cmd // the one that hooks see
	cmds       []*redis.Cmd
}

// enter counts a call as under way and returns nil, or adds its commands to a pipeline and returns the pipeline.
func (m *merger) enter(ctx context.Context, cmds ...*redis.Cmd) *pipeline {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.underway < m.above {
		m.underway++
		return nil
	}
	n := len(m.waiting)
	if n == 0 || len(m.waiting[n-1].cmds) >= mergeMost {
		m.waiting = append(m.waiting, &pipeline{done: make(chan struct{})})
		n++
	}
	p := m.waiting[n-1]
	p.cmds = append(p.cmds, cmds...)
	if until, ends := ctx.Deadline(); !ends {
		p.until = forever
	} else if until.After(p.until) {
		p.until = until
	}
	return p
}

// leave removes the call from pipeline p after its caller has given up: otherwise such calls would add to the load that
// made the caller wait too long. leave returns false if p was sent already.
func (m *merger) leave(p *pipeline, cmds ...*redis.Cmd) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.sent {
		return false
	}
	if i := slices.Index(p.cmds, cmds[0]); i >= 0 {
		p.cmds = slices.Delete(p.cmds, i, i+len(cmds))
	}
	return true
}

// forever is a time beyond every deadline. The client's own timeouts end a call without a deadline.
var forever = time.Unix(1<<40, 0)

// next sends the next pipeline. A caller calls next when its call has ended.
func (m *merger) next() {
	if p := m.take(); p != nil {
		go m.send(p)
	}
}

// take returns the next pipeline. If there is none, take returns nil and subtracts one from underway.
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

// send sends p and then the further pipelines. It runs in its own goroutine: the context of one caller must not end the
// calls of other callers.
func (m *merger) send(p *pipeline) {
	for ; p != nil; p = m.take() {
		if len(p.cmds) > 0 { // some caller still waits
			ctx, cancel := context.WithDeadline(context.Background(), p.until)
			exec(ctx, m.via, p.cmds)
			cancel()
		}
		close(p.done)
	}
}
