//go:build linux

package cli

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
)

// place is where the locks of a test are.
type place struct {
	*testing.T
	redis  *redistest.Server
	prefix string
	locks  *joblock.Locker
	api    string // of a lock server, which the commands ask in place of the Redis
}

// newPlace returns a place in the Redis for this test alone.
func newPlace(t *testing.T, redis *redistest.Server) *place {
	t.Helper()
	p := &place{T: t, redis: redis, prefix: (&stage{T: t}).prefix()}
	p.locks = p.locker()
	return p
}

// locker returns another Locker of the place, as another process has it.
func (p *place) locker() *joblock.Locker {
	p.Helper()
	locks, err := joblock.New(testkit.Must(redisstore.New(p.redis.Client(p.T), &redisstore.Config{Prefix: p.prefix})),
		&joblock.Config{CallTimeout: patience, Logger: slog.New(slog.DiscardHandler)}) // so a free key is remembered for long
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = locks.Close(context.Background()) })
	return locks
}

// answer is what a command has said.
type answer struct {
	t         *testing.T
	args      []string
	code      int
	out, talk string
}

// do calls joblock in this process.
func (p *place) do(args ...string) answer {
	p.Helper()
	if p.api != "" {
		return ask(p.T, append([]string{"--server", p.api, patiently}, args...)...)
	}
	return ask(p.T, append([]string{"--redis", "redis://" + p.redis.Addr(), "--prefix", p.prefix, patiently}, args...)...)
}

// patiently is a flag for commands that get an answer: on a busy machine that may take longer than the default.
const patiently = "--timeout=30s"

func ask(t *testing.T, args ...string) answer {
	t.Helper()
	var out, talk bytes.Buffer
	a := answer{t: t, args: args}
	a.code = Main(append([]string{"joblock"}, args...), strings.NewReader(""), &out, &talk)
	a.out, a.talk = out.String(), talk.String()
	if text := a.out + a.talk; strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && invisible(r) }) {
		t.Errorf("%q: what a terminal obeys is in %q", args, text)
	}
	return a
}

// wants checks the exit code, and that the outputs have these texts.
func (a answer) wants(code int, texts ...string) answer {
	a.t.Helper()
	if a.code != code {
		a.t.Errorf("%q ended with %d, want %d:\n%s%s", a.args, a.code, code, a.out, a.talk)
	}
	for _, text := range texts {
		if !strings.Contains(a.out+a.talk, text) {
			a.t.Errorf("%q said, without %q:\n%s%s", a.args, text, a.out, a.talk)
		}
	}
	return a
}

// lacks checks that no output has these texts.
func (a answer) lacks(texts ...string) answer {
	a.t.Helper()
	for _, text := range texts {
		if strings.Contains(a.out+a.talk, text) {
			a.t.Errorf("%q said, with %q:\n%s%s", a.args, text, a.out, a.talk)
		}
	}
	return a
}

// items reads the JSON of a list into out, after a check against the schema.
func (a answer) items(schema string, out any) {
	a.t.Helper()
	list := struct{ Items any }{out}
	wantJSON(a.t, schema, a.out, &list)
}

// fits checks the output against a schema.
func (a answer) fits(schema string) {
	a.t.Helper()
	var v any
	wantJSON(a.t, schema, a.out, &v)
}

// until waits until ok is true.
func (p *place) until(what string, ok func() bool) {
	p.Helper()
	(&stage{T: p.T}).until(what, ok)
}

// node starts a node of the scheduler. The function add registers the jobs. The node stops when stop is called,
// or at the end of the test.
func (p *place) node(scope, name string, add func(s *scheduler.Scheduler)) (stop func()) {
	p.Helper()
	s, err := scheduler.New(p.locker(), &scheduler.Config{Scope: scope, Node: name, Sync: time.Second, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		p.Fatal(err)
	}
	add(s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	stop = func() {
		cancel()
		<-done
	}
	p.Cleanup(stop)
	return stop
}
