package redisstore

import (
	"context"
	_ "embed"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed scripts/record.lua
	recordLua string
	//go:embed scripts/acquire.lua
	acquireLua string
	//go:embed scripts/resume.lua
	resumeLua string
	//go:embed scripts/park.lua
	parkLua string
	//go:embed scripts/renew.lua
	renewLua string
	//go:embed scripts/release.lua
	releaseLua string
	//go:embed scripts/inspect.lua
	inspectLua string
)

var (
	acquireScript = newScript(acquireLua)
	resumeScript  = newScript(resumeLua)
	parkScript    = newScript(parkLua)
	renewScript   = newScript(renewLua)
	releaseScript = newScript(releaseLua)
	inspectScript = newScript(inspectLua)
)

// script is a Lua script together with the words that every call of it begins
// with. They are kept as interfaces, so that a call does not box them again.
type script struct {
	source  any
	sha     any
	evalsha any
	eval    any
	numKeys any
}

func newScript(body string) *script {
	src := recordLua + body
	return &script{
		source:  src,
		sha:     redis.NewScript(src).Hash(),
		evalsha: "evalsha",
		eval:    "eval",
		numKeys: 1,
	}
}

// headLen is the number of words before the first argument of a script:
// command, script, number of keys, key.
const headLen = 4

// call makes the EVALSHA of a script. It is a plain Cmd rather than the result
// of redis.Script.Run, which copies its arguments twice and has no form for
// pipelines.
func (sc *script) call(ctx context.Context, key string, args ...any) *redis.Cmd {
	words := make([]any, headLen, headLen+len(args))
	words[0], words[1], words[2], words[3] = sc.evalsha, sc.sha, sc.numKeys, key
	return newCmd(ctx, append(words, args...))
}

// withSource makes the EVAL that does the same as an EVALSHA from call.
func (sc *script) withSource(ctx context.Context, cmd *redis.Cmd) *redis.Cmd {
	words := append([]any(nil), cmd.Args()...)
	words[0], words[1] = sc.eval, sc.source
	return newCmd(ctx, words)
}

func newCmd(ctx context.Context, words []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, words...)
	cmd.SetFirstKeyPos(headLen - 1) // what a ClusterClient finds the node by
	return cmd
}

// run does one call in one round trip, or two where the server does not know
// the script: after a restart, a SCRIPT FLUSH or a fail-over.
func (sc *script) run(ctx context.Context, rdb redis.UniversalClient, cmd *redis.Cmd) (any, error) {
	err := rdb.Process(ctx, cmd)
	if isNoScript(err) {
		cmd = sc.withSource(ctx, cmd)
		err = rdb.Process(ctx, cmd)
	}
	return cmd.Val(), err
}

// answer is what came back for one item of a batch.
type answer struct {
	val any
	err error
}

// runAll does a batch in one pipeline. go-redis has no fall-back for unknown
// scripts in pipelines, so those items go again: in a second pipeline that
// brings the script along with its first item, which serves all the others of
// the same node, and where several nodes did not know it, in a third that brings
// it with every item. Always the latter would be simpler, and after a fail-over
// send megabytes to a server that has just come up.
func (sc *script) runAll(ctx context.Context, rdb redis.UniversalClient, cmds []*redis.Cmd) []answer {
	out := make([]answer, len(cmds))
	if len(cmds) == 1 {
		out[0].val, out[0].err = sc.run(ctx, rdb, cmds[0])
		return out
	}
	for pass := 1; ; pass++ {
		exec(ctx, rdb, cmds)
		unknown := 0
		for i, cmd := range cmds {
			if cmd == nil {
				continue
			}
			out[i], cmds[i] = answerOf(cmd), nil
			if pass == 3 || !isNoScript(out[i].err) {
				continue
			}
			if unknown++; unknown == 1 || pass == 2 {
				cmds[i] = sc.withSource(ctx, cmd)
			} else {
				cmds[i] = newCmd(ctx, cmd.Args())
			}
		}
		if unknown == 0 {
			return out
		}
	}
}

// exec sends those of cmds that are not nil.
func exec(ctx context.Context, rdb redis.UniversalClient, cmds []*redis.Cmd) {
	pipe := rdb.Pipeline()
	for _, cmd := range cmds {
		if cmd != nil {
			_ = pipe.Process(ctx, cmd) // only queues
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		// A hook may have failed the pipeline before any command was touched;
		// without this such a command would look like an empty answer.
		for _, cmd := range cmds {
			if cmd != nil && cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(err)
			}
		}
	}
}

// answerOf prefers a reply to an error: when a connection breaks in the middle
// of a pipeline, go-redis puts the error on the items before the break as well,
// but an answer that has been read is an answer.
func answerOf(cmd *redis.Cmd) answer {
	if val := cmd.Val(); val != nil {
		return answer{val: val}
	}
	return answer{err: cmd.Err()}
}

func isNoScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}

// millis converts to whole milliseconds, rounded up: a lease that is longer in
// the store than its holder believes is safe, the reverse is not. It is never
// below 1, as PEXPIRE with less would delete the record and its fence.
func millis(d time.Duration) int64 {
	return max(1, int64((d+time.Millisecond-1)/time.Millisecond))
}

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
