package asynqbatch

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// onlyScheduled comes before the text of asynq's own script. KEYS[1] is the task. The answer 0 is asynq's answer for a
// task that does not exist. If a later version of asynq names keys or states otherwise, no task is scheduled here.
const onlyScheduled = `if redis.call("HGET", KEYS[1], "state") ~= "scheduled" then return 0 end
`

// guarded returns the text of asynq's script behind onlyScheduled.
func guarded(text string) string { return onlyScheduled + text }

// guard is a client for an Inspector of which only RunTask is called. guard puts onlyScheduled before the script with which
// asynq runs a task. So the question whether the task is scheduled costs no command of its own, and nobody can archive the
// task between the question and the run. If a later version of asynq runs a task without a script, the guard fails.
type guard struct {
	redis.UniversalClient // closed: fails each call
	to                    *batcher

	mu      sync.Mutex
	scripts map[string]*redis.Script // by the digest of asynq's script
}

func newGuard(b *batcher) *guard {
	closed := redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:1", // a name would be looked up
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	_ = closed.Close()
	return &guard{UniversalClient: closed, to: b, scripts: make(map[string]*redis.Script)}
}

// SIsMember is that of batcher.
func (g *guard) SIsMember(ctx context.Context, key string, member any) *redis.BoolCmd {
	return g.to.SIsMember(ctx, key, member)
}

// EvalSha makes a call of the guarded script in place of asynq's own. If the text of asynq's script is not known yet,
// EvalSha answers as a server that does not know the script, and asynq goes on with Eval.
func (g *guard) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	g.mu.Lock()
	script := g.scripts[sha]
	g.mu.Unlock()
	if script == nil {
		cmd := redis.NewCmd(ctx)
		cmd.SetErr(noScript{})
		return cmd
	}
	return g.to.EvalSha(ctx, script.Hash(), keys, args...)
}

// Eval makes a call of the guarded script in place of asynq's own.
func (g *guard) Eval(ctx context.Context, text string, keys []string, args ...any) *redis.Cmd {
	sum := sha1.Sum([]byte(text)) // as Redis names scripts
	text = guarded(text)
	g.mu.Lock()
	g.scripts[hex.EncodeToString(sum[:])] = redis.NewScript(text)
	g.mu.Unlock()
	return g.to.UniversalClient.Eval(ctx, text, keys, args...)
}

// noScript is the error of a server that does not know a script.
type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT the text of the script is needed" }
func (noScript) RedisError()   {}
