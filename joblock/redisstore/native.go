package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// Calls without Lua. Redis from 8.4 on and Valkey from 8.1 on have SET key new IFEQ old: where this Store knows the
// record byte for byte, one command does what the script would do. The record that it writes contains no time, because
// only the server knows the server's clock. Its times follow from the expiry of the key: see record.lua. Unless the
// command succeeds, the script decides, under the same nonce.
//
// The expiry is always given as PX. A server replicates such a SET as SET with PXAT, which every version understands.
// With PXAT or without an expiry, a server would replicate a SET with IFEQ word for word.

const (
	// nativeAfter is how many of the calls that could be native a Store first makes by script. Only then does it ask what
	// the server can do. A process that ends after a few calls never asks.
	nativeAfter = 16
	// nativeAgain is how long a Store waits before it again asks a server that has refused.
	nativeAgain = time.Minute
	// contendedFor is how long calls for a key go by script after the key had waiters or was used by another process.
	contendedFor = 10 * time.Second
	// refusedPause is how many Acquires go by script after an Acquire without a script did not succeed.
	refusedPause = 4
	// lateMargin is how much of the reservation must be left at a native END. With less, the script finds out from
	// the record whether the END was in time.
	lateMargin = 100 * time.Millisecond
	// endedMost bounds the ended records that a Store remembers.
	endedMost = 4096
)

// native is what a Store knows about calls without Lua.
type native struct {
	off     bool // all calls go by script
	able    atomic.Bool
	skipped atomic.Int64 // calls since New that might have been native
	askAt   atomic.Int64 // Unix ns; before that the Store does not ask the server

	pause     atomic.Int64      // Acquires that go by script
	contended [256]atomic.Int64 // Unix ns until which keys with this hash go by script

	made, refused atomic.Int64

	mu    sync.Mutex
	ended map[string]endedRecord // by key
}

// endedRecord is a record that an END of this Store has written. If text is "", a script wrote it, and nothing else is
// known about it.
type endedRecord struct {
	text  string
	fence int64
	last  string
	ended byte
	until time.Time // when the server forgets it, or earlier
}

// NativeCalls returns how many calls went without Lua, and how many were tried that way but then needed a script, because
// the record was not the one that this process knew. Both count from New on, and are for tests, of other packages too.
func (s *store) NativeCalls() (made, refused int64) {
	return s.native.made.Load(), s.native.refused.Load()
}

// ready reports whether a call for key may go without Lua.
func (n *native) ready(ctx context.Context, s *store, key string) bool {
	if n.off {
		return false
	}
	if !n.able.Load() && !n.ask(ctx, s, key) {
		return false
	}
	until := n.mark(key).Load()
	return until == 0 || until < time.Now().UnixNano()
}

// ask asks the server whether it has IFEQ, with a command that changes nothing.
func (n *native) ask(ctx context.Context, s *store, key string) bool {
	if n.skipped.Add(1) <= nativeAfter {
		return false
	}
	now, at := time.Now(), n.askAt.Load()
	if now.UnixNano() < at || !n.askAt.CompareAndSwap(at, now.Add(nativeAgain).UnixNano()) {
		return false
	}
	cmd := redis.NewCmd(ctx, "set", s.name(key), "", "ifeq", "no record", "px", 1)
	a := s.calls.do(ctx, cmd)
	if a.err == redis.Nil || a.err != nil && redis.HasErrorPrefix(a.err, "WRONGTYPE") {
		n.able.Store(true)
		return true
	}
	return false
}

// failed notes what err, an answer of the server, says about native calls. It returns false for an error of the
// connection, after which the outcome of the call is unknown.
func (n *native) failed(key string, err error) bool {
	switch {
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // a hash: the key has waiters, or a memo
		n.wait(key)
	case strings.HasPrefix(err.Error(), "ERR "), redis.HasErrorPrefix(err, "NOPERM"):
		n.able.Store(false)
		n.askAt.Store(time.Now().Add(nativeAgain).UnixNano())
	default:
		var reply redis.Error
		return errors.As(err, &reply)
	}
	return true
}

func (n *native) mark(key string) *atomic.Int64 {
	h := uint32(2166136261)
	for i := range len(key) {
		h = (h ^ uint32(key[i])) * 16777619
	}
	return &n.contended[h%uint32(len(n.contended))]
}

// wait notes that callers wait for key, or that other processes use it.
func (n *native) wait(key string) {
	if !n.off {
		n.mark(key).Store(time.Now().Add(contendedFor).UnixNano())
	}
}

// remember keeps e for the next Acquire of key, until life has passed.
func (n *native) remember(key string, e endedRecord, life time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ended == nil || len(n.ended) >= endedMost {
		n.ended = make(map[string]endedRecord)
	}
	e.until = time.Now().Add(life)
	n.ended[key] = e
}

// forget returns what remember has kept for key, and drops it. ok is false if there is nothing, or if the server has
// forgotten the record too, by this process's clock.
func (n *native) forget(key string) (e endedRecord, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok = n.ended[key]
	delete(n.ended, key)
	if !ok || !time.Now().Before(e.until) {
		return endedRecord{}, false
	}
	return e, true
}

// releasedByScript notes that a script has ended a record. Then the next Acquire goes by script at once, and the Hint
// in its reply lets the Release do without. Otherwise a key whose calls went by script once would stay with scripts as
// long as it is in use.
func (n *native) releasedByScript(req *driver.ReleaseRequest, reply *driver.Reply) {
	if n.off || !n.able.Load() && n.skipped.Load() > nativeAfter || reply.Outcome != driver.OutcomeOK || reply.Next != "" {
		return
	}
	life := req.Retain
	if req.Brief > 0 {
		life = req.Brief
	}
	n.remember(req.Key, endedRecord{}, life)
}

// nativeCall is one or several commands about one key, in two allocations: this struct, and all of its texts.
type nativeCall struct {
	bundle
	texts           strings.Builder // name, text and what hint adds
	name, text, old string
	px, from, to    int64
	args            [3][7]any
	made            [3]redis.Cmd
	room            [3]*redis.Cmd
}

// newNativeCall returns a call about key, without commands yet, that is to write rec with an expiry of px ms.
func (s *store) newNativeCall(key string, rec *record, px int64) *nativeCall {
	c := &nativeCall{px: px}
	place := s.index(s.part(key))
	c.texts.Grow(len(place) + len(key) + rec.size() + fenceBytes + periodBytes)
	c.texts.WriteString(place)
	c.texts.WriteString(key)
	c.name = c.texts.String()
	rec.write(&c.texts)
	c.text = c.texts.String()[len(c.name):]
	c.cmds = c.room[:0]
	return c
}

// add adds a command that has the first n of args. The elements of args are pointers, as in scriptCall.
func (c *nativeCall) add(ctx context.Context, n int, args [7]any) *redis.Cmd {
	i := len(c.cmds)
	c.args[i] = args
	c.made[i] = *redis.NewCmd(ctx, c.args[i][:n]...)
	c.cmds = append(c.cmds, &c.made[i])
	return &c.made[i]
}

// set adds the SET of the record, which takes effect only if the present value is c.old or, if c.old is "", only if
// there is none. Hooks see this command.
func (c *nativeCall) set(ctx context.Context) {
	if c.old == "" {
		c.Cmd = c.add(ctx, 6, [7]any{"set", &c.name, &c.text, "nx", "px", &c.px})
	} else {
		c.Cmd = c.add(ctx, 7, [7]any{"set", &c.name, &c.text, "ifeq", &c.old, "px", &c.px})
	}
}

// hint returns the Reply.Hint of a term with the record in c.text. The record was written at written, in µs, with an
// expiry of life, in ms. Use hint once per call: it appends to c.texts.
func (c *nativeCall) hint(written, life int64) string {
	writeTimes(&c.texts, written, life)
	return c.texts.String()[len(c.name):]
}

func writeTimes(b *strings.Builder, written, life int64) {
	writeWide(b, written, fenceBytes)
	writeWide(b, life, periodBytes)
}

// acquireNative makes an Acquire without Lua. done is false if the script has to follow.
//
// Three commands in one pipeline: SET takes the key; PEXPIRETIME gives the time of the SET; GETRANGE shows that the
// record, and so its expiry, has not been changed in between.
func (s *store) acquireNative(ctx context.Context, req *driver.AcquireRequest) (reply driver.Reply, done bool, err error) {
	n := &s.native
	if req.Memo || req.Inbox != "" || !fastNonce(req.Nonce) || n.pause.Load() > 0 && n.pause.Add(-1) >= 0 || !n.ready(ctx, s, req.Key) {
		return reply, false, nil
	}
	rec := record{
		kind: nativeKind, owner: req.Owner, holder: req.Holder, nonce: req.Nonce, memo: '-', ttl: max(1, millis(req.TTL)),
	}
	rec.reserve = rec.ttl
	rec.at = rec.ttl + 1 + millis(req.Retain) // the lease is rounded up by 1 ms
	rec.fence, rec.last, rec.prior = 1, noLast, '-'
	before, ended := n.forget(req.Key)
	if ended && before.text == "" {
		return reply, false, nil
	}
	if ended {
		rec.fence, rec.last, rec.prior = before.fence+1, before.last, before.ended
	}
	rec.first = rec.fence
	c := s.newNativeCall(req.Key, &rec, rec.at)
	c.old = before.text
	end := len(c.text) - ownedTail - len(rec.last) - len("\n\n") // of the nonce
	c.from, c.to = int64(end-nonceBytes), int64(end-1)
	c.set(ctx)
	c.add(ctx, 2, [7]any{"pexpiretime", &c.name})
	c.add(ctx, 4, [7]any{"getrange", &c.name, &c.from, &c.to})
	s.calls.together(ctx, &c.bundle)
	if err := c.cmds[0].Err(); err != nil && err != redis.Nil {
		n.refused.Add(1)
		if n.failed(req.Key, err) {
			return reply, false, nil
		}
		return reply, true, refused(withoutArgs(err))
	}
	expires, _ := c.cmds[1].Val().(int64)
	nonce, _ := c.cmds[2].Val().(string)
	if c.cmds[0].Err() == redis.Nil || nonce != req.Nonce || expires <= rec.at {
		// Another process has the key, or had it. Or this call has got it, and another caller already waits: then the
		// script recognises this call.
		n.refused.Add(1)
		n.pause.Store(refusedPause)
		n.wait(req.Key)
		return reply, false, nil
	}
	n.made.Add(1)
	start := (expires - rec.at) * 1000
	reply.Outcome, reply.Fence, reply.Ended = driver.OutcomeOK, max(rec.fence, start), endings[string(rec.prior)]
	reply.Lease = req.TTL + time.Millisecond
	reply.Hint = c.hint(start, rec.at)
	return reply, true, nil
}

// hint is nativeCall.hint for a term that a script has begun.
func hint(rec *record, written, life int64) string {
	var b strings.Builder
	b.Grow(rec.size() + fenceBytes + periodBytes)
	rec.write(&b)
	writeTimes(&b, written, life)
	return b.String()
}

// acquireHint returns the Hint of the reply to an Acquire by script. After the stage fast grant, reply.Hint has those
// parts of the record that the request lacks.
func (s *store) acquireHint(req *driver.AcquireRequest, reply *driver.Reply) string {
	known := reply.Hint
	if !s.native.able.Load() || len(known) != 1+fenceBytes+nonceBytes {
		return ""
	}
	ttl := max(1, millis(req.TTL))
	rec := record{
		kind: ownedKind, fence: reply.Fence, owner: req.Owner, holder: req.Holder, first: reply.Fence,
		nonce: req.Nonce, last: known[1+fenceBytes:], changed: reply.Fence, prior: known[0], memo: '-',
		at: reply.Fence, ttl: ttl, reserve: ttl,
	}
	return hint(&rec, reply.Fence, ttl+1+millis(req.Retain))
}

// resumeHint is acquireHint for a Resume and the stage fast resume.
func (s *store) resumeHint(req *driver.ResumeRequest, reply *driver.Reply) string {
	known := reply.Hint
	if !s.native.able.Load() || len(known) != fenceBytes+nonceBytes+1 {
		return ""
	}
	first, err := strconv.ParseInt(strings.TrimLeft(known[:fenceBytes], " "), 10, 64)
	if err != nil {
		return ""
	}
	ttl := max(1, millis(req.TTL))
	rec := record{
		kind: ownedKind, fence: reply.Fence, owner: req.Owner, holder: req.Holder, job: req.Job, first: first,
		nonce: req.Nonce, last: known[fenceBytes : fenceBytes+nonceBytes], changed: reply.Fence, prior: known[len(known)-1], memo: '-',
		at: reply.Fence, ttl: ttl, reserve: ttl + millis(req.Reserve),
	}
	return hint(&rec, reply.Fence, rec.reserve+1+max(1, millis(req.Retain)))
}

func readHint(hint string) (text string, rec record, written, life int64, ok bool) {
	at := len(hint) - fenceBytes - periodBytes
	if at < 0 {
		return
	}
	text = hint[:at]
	if rec, ok = readRecord(text); !ok {
		return
	}
	written, err1 := strconv.ParseInt(strings.TrimLeft(hint[at:at+fenceBytes], " "), 10, 64)
	life, err2 := strconv.ParseInt(strings.TrimLeft(hint[at+fenceBytes:], " "), 10, 64)
	return text, rec, written, life, err1 == nil && err2 == nil
}

// releaseNative makes a Release without Lua. done is false if the script has to follow.
//
// Two commands in one pipeline: PTTL returns how much of the reservation is left, by the clock of the server, and SET ends
// it if the record is the one in the Hint.
func (s *store) releaseNative(ctx context.Context, req *driver.ReleaseRequest) (reply driver.Reply, done bool, err error) {
	n := &s.native
	// ready comes before the Hint: there is no Hint before the server was asked, and in a process that only runs jobs
	// no Acquire would ask.
	if req.Kind != driver.ReleaseOwn || !fastNonce(req.Nonce) || !n.ready(ctx, s, req.Key) || req.Hint == "" {
		return reply, false, nil
	}
	if _, slot := driver.LineOf(req.Key); slot {
		return reply, false, nil
	}
	old, rec, written, life, ok := readHint(req.Hint)
	fence := rec.fence
	if rec.kind == nativeKind {
		fence = max(fence, written)
	}
	if !ok || fence != req.Fence || rec.owner != req.Owner || req.Job != "" && rec.job != req.Job {
		return reply, false, nil
	}
	if rec.kind == nativeKind {
		rec.fence, rec.first, rec.since = fence, fence, written
		if rec.since == rec.first {
			rec.since = 0
		}
	}
	rec.kind, rec.reason, rec.last, rec.prior = endedKind, req.Reason, req.Nonce, '-'
	if req.Done {
		rec.kind = doneKind
	}
	var nonce [2 * nonceBytes]byte // on the stack
	begun := written/1000 + 1      // rounded up, as in record.lua
	rec.nonce = string(strconv.AppendInt(nonce[:0], begun+rec.reserve, 10))
	retain := max(1, millis(req.Retain))
	rec.changed = retain
	if req.Brief > 0 {
		rec.changed = millis(req.Brief)
	}
	if !fastNonce(rec.nonce) { // the clock is not in this century
		return reply, false, nil
	}
	c := s.newNativeCall(req.Key, &rec, rec.changed)
	c.old = old
	c.add(ctx, 2, [7]any{"pttl", &c.name})
	c.set(ctx)
	sent := time.Now()
	s.calls.together(ctx, &c.bundle)
	if err := c.cmds[1].Err(); err != nil {
		n.refused.Add(1)
		if err == redis.Nil || n.failed(req.Key, err) {
			return reply, false, nil
		}
		return reply, true, refused(withoutArgs(err))
	}
	rest, _ := c.cmds[0].Val().(int64) // ms until the key of the old record would have expired
	left := rest - (life - rec.reserve - 1)
	if now := (begun - 1 + life - rest) * 1000; rec.changed != retain && now < fence {
		s.remain(ctx, req.Key, &rec, c.text, now, retain)
		return reply, false, nil
	}
	if left < lateMargin.Milliseconds() || time.Since(sent) > lateMargin {
		return reply, false, nil // the row "again" of the script says whether it was in time
	}
	n.made.Add(1)
	n.remember(req.Key, endedRecord{text: c.text, fence: fence, last: req.Nonce, ended: rec.kind[3]}, time.Duration(rec.changed)*time.Millisecond)
	reply.Outcome = driver.OutcomeOK
	return reply, true, nil
}

// remain makes the server remember rec, whose text is old, for retain ms, because the server's clock was set back to
// before the fence. now is that clock, in µs. See Retention in package driver. If this process dies before, the record
// is remembered for Brief only.
func (s *store) remain(ctx context.Context, key string, rec *record, old string, now, retain int64) {
	kept := *rec
	kept.changed, kept.nonce = max(now, 1), "" // as the script writes it: the clock is behind, so the END was in time
	late := s.newNativeCall(key, &kept, retain)
	late.old = old
	late.set(ctx)
	s.calls.together(ctx, &late.bundle)
}
