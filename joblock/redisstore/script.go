package redisstore

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"path"
	"strings"

	"github.com/redis/go-redis/v9"
)

//go:embed scripts
var scripts embed.FS

// stages are the parts of the scripts: "record" is the beginning of scripts/record.lua,
// "record#write" the part of that file which begins with the line "--# write".
var stages = readStages()

func readStages() map[string]string {
	files, err := fs.Glob(scripts, "scripts/*.lua")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	all := make(map[string]string)
	for _, file := range files {
		text, err := scripts.ReadFile(file)
		if err != nil {
			panic(err) // it was listed
		}
		name := strings.TrimSuffix(path.Base(file), ".lua")
		first, others, _ := strings.Cut(string(text), "\n--# ")
		all[name] = first + "\n"
		for others != "" {
			var part, stage string
			part, others, _ = strings.Cut(others, "\n--# ")
			stage, part, _ = strings.Cut(part, "\n")
			all[name+"#"+stage] = part + "\n"
		}
	}
	return all
}

// The scripts, each a row of stages.
var (
	acquireScript = newScript("acquire", "record", "record#memo", "record#foreign", "acquire", "queue", "grant", "record#write", "acquire#answer", "record#state", "answer")
	resumeScript  = newScript("resume", "record", "record#memo", "record#foreign", "resume", "record#write", "record#state", "answer")
	parkScript    = newScript("park", "record", "record#foreign", "term", "index", "park", "record#write", "record#state", "answer")
	renewScript   = newScript("renew", "record", "record#foreign", "term", "renew", "record#write", "record#state", "answer")
	releaseScript = newScript("release", "record", "record#foreign", "term", "release", "queue", "grant", "record#write", "record#state", "answer")
	reserveScript = newScript("reserve", "record", "record#foreign", "reserve", "record#write", "record#state", "answer")
	inspectScript = newScript("inspect", "record", "record#memo", "record#foreign", "record#state", "inspect")
	bindScript    = newScript("bind", "index", "bind")
	dueScript     = newScript("due", "due")
	forgetScript  = newScript("forget", "forget")
	sealScript    = newScript("seal keys", "seal")
)

// script is a Lua script, with the arguments that its calls begin with. They are kept as
// interfaces, so that no call has to box them.
type script struct {
	op      string
	source  any
	sha     any
	evalsha any
	eval    any
}

func newScript(op string, row ...string) *script {
	var src strings.Builder
	for _, name := range row {
		text, ok := stages[name]
		if !ok {
			panic("redisstore: there is no stage " + name + " among the scripts")
		}
		src.WriteString(text)
	}
	return &script{
		op:      op,
		source:  src.String(),
		sha:     redis.NewScript(src.String()).Hash(),
		evalsha: "evalsha",
		eval:    "eval",
	}
}

// withSource makes the EVAL that does the same as an EVALSHA from call.
func (sc *script) withSource(ctx context.Context, cmd *redis.Cmd) *redis.Cmd {
	args := append([]any(nil), cmd.Args()...)
	args[0], args[1] = sc.eval, sc.source
	return newCmd(ctx, args)
}

// run does one call in one round trip, or two where the server does not know
// the script: after a restart, a SCRIPT FLUSH or a fail-over.
func (sc *script) run(ctx context.Context, m *merger, cmd *redis.Cmd) answer {
	a := m.do(ctx, cmd)
	if isNoScript(a.err) {
		a = m.do(ctx, sc.withSource(ctx, cmd))
	}
	return a
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
func (sc *script) runAll(ctx context.Context, m *merger, cmds []*redis.Cmd) []answer {
	if len(cmds) == 1 {
		return []answer{sc.run(ctx, m, cmds[0])}
	}
	out := make([]answer, len(cmds))
	for pass := 1; ; pass++ {
		exec(ctx, m.via, cmds)
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
func exec(ctx context.Context, via sender, cmds []*redis.Cmd) {
	pipe := via.Pipeline()
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
	return answer{err: withoutArgs(cmd.Err())}
}

// withoutArgs cuts the arguments off an error of the server. Of a command that it does
// not know a server repeats the first ones, and the owner's token is among them.
func withoutArgs(err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return err
	}
	if text, _, cut := strings.Cut(reply.Error(), ", with args beginning with"); cut {
		return serverError(text)
	}
	return err
}

// serverError is an error reply, as go-redis' own are, which have no constructor.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError makes it one for go-redis.
func (e serverError) RedisError() {}

func isNoScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}
