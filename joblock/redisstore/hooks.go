package redisstore

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// sender is what scripts are sent through: a client, or the hooks of a client.
type sender interface {
	Process(ctx context.Context, cmd redis.Cmder) error
	Pipeline() redis.Pipeliner
}

// hooked returns a sender that sends through own and runs the hooks of app around each command.
//
// go-redis does not reveal which hooks a client has. But a Conn has the hooks of its client, and a hook that is added
// to the Conn runs innermost. That innermost hook diverts each command to own. So the Conn never takes a connection,
// needs no Close, and may be shared by goroutines. A ClusterClient makes no Conn, so its hooks are out of reach.
func hooked(app, own redis.UniversalClient) sender {
	client, one := app.(*redis.Client)
	if !one {
		return own
	}
	hooks := client.Conn()
	hooks.AddHook(&divert{to: own})
	return guarded{hooks}
}

// guarded is a sender whose hooks may panic. Many calls are made in the background, where the application
// cannot recover: the program would end. So guarded makes a panic the command's error.
type guarded struct{ sender }

func (g guarded) Process(ctx context.Context, cmd redis.Cmder) (err error) {
	defer recovered(&err, cmd)
	return g.sender.Process(ctx, cmd)
}

func (g guarded) Pipeline() redis.Pipeliner { return guardedPipeline{g.sender.Pipeline()} }

type guardedPipeline struct{ redis.Pipeliner }

func (p guardedPipeline) Exec(ctx context.Context) (cmds []redis.Cmder, err error) {
	cmds = p.Cmds()
	defer recovered(&err, cmds...)
	return p.Pipeliner.Exec(ctx)
}

// recovered stops a panic and turns it into an error, which it sets as *err and as the error of each of cmds.
func recovered(err *error, cmds ...redis.Cmder) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("redisstore: a hook of the application's client panicked: %v", p)
		for _, cmd := range cmds {
			cmd.SetErr(*err)
		}
	}
}

// divert is a hook that sends commands through another client.
type divert struct {
	to    redis.UniversalClient
	pipes sync.Pool // of *pipe
}

// pipe is a pipeline that many calls use, one after the other. A new pipeline for each call would be most of what the
// call allocates.
type pipe struct {
	redis.Pipeliner
	cmds []redis.Cmder
}

func (*divert) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *divert) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		b, several := cmd.(*bundle)
		if !several {
			return d.to.Process(ctx, cmd)
		}
		p := d.pipe()
		for _, cmd := range b.cmds {
			p.cmds = append(p.cmds, cmd)
		}
		err := d.send(ctx, p, p.cmds)
		if answer := b.Err(); answer != nil {
			return answer
		}
		if err != nil && b.Val() == nil {
			return err
		}
		return nil
	}
}

func (d *divert) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return d.send(ctx, d.pipe(), cmds) }
}

func (d *divert) pipe() *pipe {
	if p, ok := d.pipes.Get().(*pipe); ok {
		return p
	}
	return &pipe{Pipeliner: d.to.Pipeline()}
}

// send sends cmds through p, and keeps p for another call.
func (d *divert) send(ctx context.Context, p *pipe, cmds []redis.Cmder) error {
	_ = p.BatchProcess(ctx, cmds...) // BatchProcess only queues
	_, err := p.Exec(ctx)            // and empties the queue
	clear(p.cmds)
	p.cmds = p.cmds[:0]
	d.pipes.Put(p)
	return err
}
