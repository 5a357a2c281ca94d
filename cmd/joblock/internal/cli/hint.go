package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

// likeTime bounds the search for keys similar to a mistyped one.
const likeTime = time.Second

// hint prints help for a user who may have mistyped a key, or named a job instead of a key.
func (s *server) hint(ctx context.Context, d *desk, p *printer, l ops.Lock) {
	if !p.forPeople() || !l.Unknown() {
		return
	}
	p.say("nothing is known of the key %s at %s", safe(l.Key), s.where(d))
	if _, _, err := parseJob(l.Key); err == nil {
		p.say("if that is a job, \"joblock jobs get -- %s\" shows its task and its locks", ops.Shell(l.Key))
	}
	s.like(ctx, d, p, l.Key, false)
}

// hintOf is hint for a command that has not read the lock on key itself.
func (s *server) hintOf(ctx context.Context, d *desk, p *printer, key string) {
	if !p.forPeople() {
		return
	}
	if l, err := d.Lock(ctx, key); err == nil { // otherwise no hint: the answer is printed already
		s.hint(ctx, d, p, l)
	}
}

// where returns where a command has looked for locks.
func (s *server) where(d *desk) string {
	if d.session == nil {
		return d.name // a lock server, which has a prefix of its own
	}
	return fmt.Sprintf("%s, under the prefix %s", d.name, strconv.Quote(s.prefix))
}

// like prints the keys that resemble text or, with prefix, have a similar beginning. The search takes at most likeTime.
func (s *server) like(ctx context.Context, d *desk, p *printer, text string, prefix bool) {
	ctx, cancel := context.WithTimeout(ctx, likeTime)
	defer cancel()
	var done atomic.Int64
	q := ops.SimilarAmong()
	q.Progress = func(part float64) { done.Store(int64(part * 100)) }
	found, err := ops.SimilarTo(text, prefix, d.Locks(ctx, q))
	cut := err != nil && ctx.Err() != nil
	switch {
	case err != nil && !cut:
		return // the answer is printed already; this is only a hint
	case prefix && found.Begin > 0:
		p.say("free keys that begin with it are remembered: \"joblock ls --ended -- %s\" lists them", ops.Shell(text))
	case len(found.Keys) > 0:
		var keys []string
		for _, key := range found.Keys {
			keys = append(keys, safe(key))
		}
		p.say("like it: %s", strings.Join(keys, ", "))
	case found.Looked == 0 && err == nil:
		p.say("there are no locks at all: perhaps the address, the database or the prefix is wrong")
	}
	switch {
	case cut:
		p.say("(after a second, with %d%% of the keys looked at; \"joblock ls --ended\" lists all)", done.Load())
	case len(found.Keys) == 0 && found.Looked > 0 && !(prefix && found.Begin > 0):
		p.say("no key is similar; \"joblock ls --ended\" lists the %s", plural(found.Looked, "key"))
	}
}
