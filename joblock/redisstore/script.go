package redisstore

import (
	"context"
	"embed"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

//go:embed scripts
var scripts embed.FS

// stages has the parts of the scripts: "record" is scripts/record.lua up to the first line that begins with "--# ", and
// "record#write" is the part of that file after "--# write".
var stages = readStages()

func readStages() map[string]string {
	files, err := fs.Glob(scripts, "scripts/*.lua")
	if err != nil {
		panic(err) // the pattern is invalid
	}
	all := make(map[string]string)
	for _, file := range files {
		text, err := scripts.ReadFile(file)
		if err != nil {
			panic(err) // Glob has listed the file
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

// The scripts. Each script is a row of stages. The comment at the top of record.lua says what the stages have in
// common.
var (
	acquireScript = newScript("acquire", "record", "record#read", "record#fast grant", "acquire", "record#fields", "record#memo", "record#foreign",
		"acquire#decide", "queue", "queue#place", "queue#serve", "queue#give", "grant", "lease", "record#write", "acquire#answer", "record#state", "answer")
	takeScript = newScript("take", "record", "record#read", "index", "record#fast take", "index#bind", "record#fields", "record#foreign",
		"take", "queue", "queue#place", "queue#serve", "queue#give", "grant", "take#bind", "record#write", "take#answer", "record#state", "answer")
	resumeScript = newScript("resume", "record", "record#read", "record#fast resume", "resume", "record#fields", "record#memo", "record#foreign",
		"index", "index#bind", "resume#decide", "lease", "record#write", "record#state", "answer")
	parkScript = newScript("park", "record", "record#read", "record#fields", "record#foreign",
		"park", "term", "index", "index#bind", "park#decide", "record#write", "record#state", "answer")
	renewScript = newScript("renew", "record", "record#read", "record#fields", "record#foreign",
		"renew", "term", "renew#decide", "lease", "record#write", "record#state", "answer")
	releaseScript = newScript("release", releaseStages...)
	// releaseSlotScript releases a slot other than the first: see slot.lua.
	releaseSlotScript = newScript("release", "record", "record#read", "index", "index#bind", "record#fields", "record#foreign",
		"release", "term", "release#decide", "slot#decide", "slot", "queue", "queue#place", "queue#serve", "slot#serve", "queue#give",
		"release#left", "slot#back", "grant", "record#write", "record#state", "answer")
	reserveScript = newScript("reserve", "record", "record#read", "record#fields", "record#foreign", "index", "index#bind",
		"reserve", "queue", "queue#place", "queue#serve", "queue#give", "grant", "reserve#decide", "record#write", "record#state", "answer")
	inspectScript = newScript("inspect", "record", "record#read", "inspect", "record#fields", "record#memo", "record#foreign",
		"record#state", "inspect#place", "queue#place", "inspect#answer")
	inspectManyScript = newScript("inspect", "record", "inspect#many", "inspect", "record#fields", "record#memo", "record#foreign",
		"record#state", "inspect#place", "queue#place", "inspect#answer", "inspect#all")
	lineScript   = newScript("line", "record", "record#read", "record#fields", "record#foreign", "line#answer")
	bindScript   = newScript("bind", "index", "index#bind", "bind")
	dueScript    = newScript("due", "due")
	settleScript = newScript("settle", "settle")
	sealScript   = newScript("seal keys", "seal")
)

// releaseStages is the row of releaseScript, to which steps.go adds steps.
var releaseStages = []string{
	"record", "record#read", "record#fast end", "record#fast pass", "record#fields", "record#foreign",
	"release", "term", "release#decide", "queue", "queue#place", "queue#serve", "queue#give", "release#left", "grant",
	"record#write", "record#state", "answer",
}

// script is a Lua script and the first arguments of its calls. The arguments are interfaces, so that a call
// does not box each of them again.
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
	return scriptOf(op, src.String())
}

func scriptOf(op, src string) *script {
	return &script{
		op:      op,
		source:  src,
		sha:     redis.NewScript(src).Hash(),
		evalsha: "evalsha",
		eval:    "eval",
	}
}

// withSource returns the EVAL for the EVALSHA in cmd.
func (sc *script) withSource(ctx context.Context, cmd *redis.Cmd) *redis.Cmd {
	args := append([]any(nil), cmd.Args()...)
	args[0], args[1] = sc.eval, sc.source
	return newCmd(ctx, args)
}

// run makes one call. The call takes one round trip, or two if the server does not know the script: after a
// restart, a SCRIPT FLUSH or a fail-over.
func (sc *script) run(ctx context.Context, m *merger, cmd *redis.Cmd) answer {
	a := m.do(ctx, cmd)
	if isNoScript(a.err) {
		a = m.do(ctx, sc.withSource(ctx, cmd))
	}
	return a
}

// answer is the reply to one call, or the error of that call.
type answer struct {
	val any
	err error
}

// runAll makes a batch of calls in one pipeline.
//
// If a server did not know the script, that server's items are sent again in a second pipeline. Only the first item of
// the second pipeline has the source, which is enough for all items of the same node. If several nodes did not know the
// script, a third pipeline has the source in every item. Sending the source in every item of the second pipeline would
// be simpler. But that would send megabytes to a server that has just come up after a fail-over.
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

// exec sends the cmds that are not nil, in one pipeline.
func exec(ctx context.Context, via sender, cmds []*redis.Cmd) {
	pipe := via.Pipeline()
	for _, cmd := range cmds {
		if cmd != nil {
			_ = pipe.Process(ctx, forCluster(via, cmd)) // Process only queues
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		// A hook may fail the pipeline before any command was sent. A command that was not sent must not look like a
		// command with an empty answer.
		for _, cmd := range cmds {
			if cmd != nil && cmd.Err() == nil && cmd.Val() == nil {
				cmd.SetErr(err)
			}
		}
	}
}

// answerOf returns the reply of cmd, or the error if there is no reply. When a connection breaks in the middle of a
// pipeline, go-redis also sets the error on commands whose replies it has read.
func answerOf(cmd *redis.Cmd) answer {
	if val := cmd.Val(); val != nil {
		return answer{val: val}
	}
	return answer{err: refused(withoutArgs(cmd.Err()))}
}

// withoutArgs removes a command's arguments from a server's error. A server that does not know a command repeats the
// command's first arguments. The owner may be among these arguments.
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

// serverError is an error reply of the server. go-redis has a type for error replies, but no constructor.
type serverError string

func (e serverError) Error() string { return string(e) }

// RedisError makes serverError implement redis.Error.
func (e serverError) RedisError() {}

// refusals are the beginnings of the answers with which a server refuses to run a call. A script meets some of these
// conditions only at its first write: OOM, READONLY, MISCONF and NOREPLICAS. Until then the script has changed nothing.
var refusals = []string{
	"OOM ", "READONLY ", "MISCONF ", "NOREPLICAS ", "LOADING ", "MASTERDOWN ", "CLUSTERDOWN ", "BUSY ",
	"TRYAGAIN ", "CROSSSLOT ", "MOVED ", "ASK ", "NOSCRIPT ",
	"NOAUTH ", "WRONGPASS ", "NOPERM ", "unknown command", "max number of clients",
}

// refused returns err. If err says that the server has done nothing, driver.ErrRefused is in the chain of the result. A
// script that lacks the right to one of its commands fails at that command, with NOPERM: it may have written before.
func refused(err error) error {
	begins := func(text string) bool { return redis.HasErrorPrefix(err, text) }
	if err == nil || !slices.ContainsFunc(refusals, begins) || begins("NOPERM") && strings.Contains(err.Error(), " script: ") {
		return err
	}
	return refusal{err}
}

// refusal is an error of a server that has done nothing.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Is makes errors.Is find driver.ErrRefused.
func (r refusal) Is(target error) bool { return target == driver.ErrRefused }

// firstError returns the first error of errs that is not a refusal, or if all are refusals the first of these. A batch has
// one error for all its items without an answer, and a refusal would say that none of them was done.
func firstError(errs ...error) (first error) {
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, driver.ErrRefused) && !errors.Is(err, driver.ErrRefused)) {
			first = err
		}
	}
	return first
}

func isNoScript(err error) bool {
	return err != nil && redis.HasErrorPrefix(err, "NOSCRIPT")
}
