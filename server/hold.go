package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// What a stream does with its lock when the client has disconnected.
const (
	onRelease = iota
	onLapse
	onPark
)

// drainReserve is how long a lock that Close parks stays reserved for its token, unless reserve_ms says otherwise.
const drainReserve = time.Minute

// minPing is the shortest time between two pings.
const minPing = 10 * time.Millisecond

// A stream that waits for its lock writes its first line after firstWait, and then a line at least every maxWaitPing: a
// client that receives no line for a while tries another replica, and may not know the TTL.
const (
	firstWait   = time.Second
	maxWaitPing = 10 * time.Second
)

// A stream is a hold that is being served.
type stream struct {
	c   *call
	rc  *http.ResponseController
	sse bool

	key          string
	ttl          time.Duration
	maxHold      time.Duration // 0: no bound
	reserve      time.Duration
	onDisconnect int

	ended chan *problem.Problem // gets a value when the rights of the caller end
	until time.Time             // when the stream gives the lock back; zero: never

	// shape returns what to send for a line. Only streams of other lock APIs set it; their clients have no token with
	// which to resume the lock.
	shape func(*line) any

	begun bool // the header of the answer was written
}

// line is a line of a stream.
type line = routes.HoldLine

// hold serves a stream; see Streams in the package comment.
func (s *Server) hold(c *call, req *routes.HoldRequest) (routes.Empty, error) {
	st, take, err := s.newStream(c, req)
	if err != nil {
		return routes.Empty{}, err
	}
	return routes.Empty{}, st.run(take)
}

// run takes the lock and holds it until the stream ends. The error is nil once the answer has begun.
func (st *stream) run(take taker) error {
	leave, ok := st.c.s.quotas.enter(st.c.who.ID)
	if !ok {
		return st.c.tooManyStreams()
	}
	defer leave()
	done, err := st.c.s.begin(true)
	if err != nil {
		return err
	}
	defer done()
	if err := st.c.mayHold(st.key); err != nil {
		return err
	}
	defer st.finish()
	rights := st.c.watch(mayLock(st.key), func(p *problem.Problem) { st.ended <- p })
	defer rights.Stop()
	lock, err := st.wait(take)
	if err == nil {
		rights.Confirm()
		select {
		case p := <-st.ended:
			st.giveBack(lock)
			lock, err = nil, p
		default:
		}
	}
	if err != nil {
		return st.failed(err)
	}
	st.serve(lock)
	return nil
}

// taker takes the lock of a stream, by Acquire or by Resume. It calls waits with each new place in line.
type taker func(ctx context.Context, waits func(ahead int)) (*joblock.Lock, error)

func (s *Server) newStream(c *call, req *routes.HoldRequest) (*stream, taker, error) {
	fail := func(err error) (*stream, taker, error) { return nil, nil, err }
	if c.r.Header.Get(idempotencyHeader) != "" {
		return fail(problem.New(http.StatusBadRequest, problem.Invalid, "%s is not for streams: a stream that ends releases its lock", idempotencyHeader))
	}
	sse, err := c.wantsEvents()
	if err != nil {
		return fail(err)
	}
	settings := s.in.Settings()
	st := &stream{c: c, rc: http.NewResponseController(c.w), sse: sse, ended: make(chan *problem.Problem, 1)}
	if st.onDisconnect, err = oneOf("on_disconnect", req.OnDisconnect, []string{"release", "lapse", "park"}); err != nil {
		return fail(err)
	}
	if st.maxHold, err = millis("max_hold_ms", req.MaxHold, 0, driver.MinPeriod, driver.MaxPeriod); err != nil {
		return fail(err)
	}
	if st.reserve, err = s.reserve(req.Reserve, drainReserve); err != nil {
		return fail(err)
	}
	if st.ttl, err = millis("ttl_ms", req.TTL, settings.TTL, driver.MinPeriod, settings.MaxTTL); err != nil {
		return fail(err)
	}
	if req.Token != "" {
		take, err := st.resumption(req)
		return st, take, err
	}
	key, err := c.keyFrom(req.Key)
	if err != nil {
		return fail(err)
	}
	st.key = key
	n, err := number("limit", req.Limit, 0, 1, limit.Max)
	if err != nil {
		return fail(err)
	}
	opts := []joblock.AcquireOption{joblock.TTL(st.ttl)}
	if req.Holder != "" {
		opts = append(opts, joblock.Holder(req.Holder))
	}
	if req.Wait != nil {
		wait, err := millis("wait_ms", req.Wait, 0, 0, driver.MaxPeriod)
		if err != nil {
			return fail(err)
		}
		opts = append(opts, joblock.MaxWait(wait))
	}
	if req.Job != "" {
		return fail(problem.New(http.StatusBadRequest, problem.Invalid, "job is for a hold with a token"))
	}
	return st, func(ctx context.Context, waits func(int)) (*joblock.Lock, error) {
		if n > 0 {
			return limit.New(s.cfg.Locks, int(n)).Acquire(ctx, key, opts...)
		}
		return s.cfg.Locks.Acquire(ctx, key, append(opts, core.With(func(o *core.Options) { o.Waits = waits }))...)
	}, nil
}

// resumption returns the taker for a hold with a token: the client comes from another replica, or has parked its lock.
func (st *stream) resumption(req *routes.HoldRequest) (taker, error) {
	for _, f := range []struct {
		name string
		set  bool
	}{{"key", req.Key != ""}, {"wait_ms", req.Wait != nil}, {"limit", req.Limit != nil}} {
		if f.set {
			return nil, problem.New(http.StatusBadRequest, problem.Invalid, "%s is not for a hold with a token", f.name)
		}
	}
	token, err := st.c.tokenFrom(req.Token)
	if err != nil {
		return nil, err
	}
	if err := st.c.bindJob(req.Job, token.Key()); err != nil {
		return nil, err
	}
	st.key = token.Key()
	opts := []joblock.ResumeOption{joblock.ForJob(req.Job)}
	if req.Holder != "" {
		opts = append(opts, joblock.Holder(req.Holder))
	}
	if req.TTL != nil {
		opts = append(opts, joblock.TTL(st.ttl))
	} else {
		st.ttl = core.Token(token).TTL()
	}
	return func(ctx context.Context, _ func(int)) (*joblock.Lock, error) {
		return st.c.s.cfg.Locks.Resume(ctx, token, opts...)
	}, nil
}

// wantsEvents reports whether the client accepts server-sent events rather than lines.
func (c *call) wantsEvents() (sse bool, err error) {
	accept := strings.Join(c.r.Header.Values("Accept"), ",")
	if accept == "" {
		return false, nil
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, _, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		switch kind {
		case "application/x-ndjson", "application/json", "application/*", "*/*":
			return false, nil
		case "text/event-stream", "text/*":
			return true, nil
		}
	}
	return false, problem.New(http.StatusNotAcceptable, problem.Accept, "Accept must allow application/x-ndjson or text/event-stream")
}

// wait takes the lock. While it waits, it writes the place in line, at least every third of a TTL and every maxWaitPing.
func (st *stream) wait(take taker) (*joblock.Lock, error) {
	ctx, cancel := st.c.s.untilClosing(st.c.r.Context())
	defer cancel(nil)
	type result struct {
		lock *joblock.Lock
		err  error
	}
	got, places := make(chan result, 1), make(chan int, 1)
	go func() {
		lock, err := take(ctx, func(ahead int) { latest(places, ahead) })
		got <- result{lock, err}
	}()
	ping := time.NewTimer(st.waitPing(firstWait))
	defer ping.Stop()
	ahead, reported := -1, -1
	for {
		var err error
		select {
		case r := <-got:
			if r.err != nil && context.Cause(ctx) == errClosing {
				r.err = problem.Closing()
			}
			return r.lock, r.err
		case p := <-st.ended:
			cancel(errGone)
			if r := <-got; r.lock != nil {
				st.giveBack(r.lock)
			}
			return nil, p
		case ahead = <-places:
			if ahead != reported {
				reported = ahead
				err = st.write(st.waiting(ahead))
			}
		case <-ping.C:
			err = st.write(st.waiting(ahead))
			ping.Reset(st.waitPing(maxWaitPing))
		}
		if err != nil {
			cancel(errGone)
			r := <-got
			if r.lock != nil {
				st.giveBack(r.lock)
			}
			return nil, errGone
		}
	}
}

// latest puts v into c, a channel with room for one value, replacing a value that has not been read.
func latest(c chan int, v int) {
	for {
		select {
		case c <- v:
			return
		default:
		}
		select {
		case <-c:
		default:
		}
	}
}

func (st *stream) waiting(ahead int) *line {
	l := &line{Type: "waiting"}
	if ahead >= 0 {
		l.Ahead = &ahead
	}
	return l
}

// pingEvery returns less than a third of the TTL, so that a ping is in time even if the server is busy.
func (st *stream) pingEvery() time.Duration { return max(minPing, st.ttl/4) }

// waitPing is the longest time between two lines of a waiting stream, at most the parameter most. Other lock APIs have
// rules of their own.
func (st *stream) waitPing(most time.Duration) time.Duration {
	if st.shape != nil {
		return st.pingEvery()
	}
	return min(st.pingEvery(), most)
}

// failed returns err if the answer has not begun. Otherwise it writes err as the last line of the stream.
func (st *stream) failed(err error) error {
	if !st.begun {
		return err
	}
	p := st.c.problemOf(err)
	st.c.code = p.Code
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	_ = st.write(&line{Type: "error", Code: p.Code, Error: text, Retry: p.Retryable})
	return nil
}

// serve sends the client the lock, and holds it until the stream ends.
func (st *stream) serve(lock *joblock.Lock) {
	var over <-chan time.Time
	if st.maxHold > 0 {
		st.until = time.Now().Add(st.maxHold)
		timer := time.NewTimer(st.maxHold)
		defer timer.Stop()
		over = timer.C
	}
	token := lock.Token()
	acquired := st.trust("lock-acquired", lock)
	acquired.Key, acquired.Token, acquired.TTL = lock.Key(), &token, st.ttl.Milliseconds()
	if st.write(acquired) != nil {
		st.giveBack(lock)
		return
	}
	ping := time.NewTicker(st.pingEvery())
	defer ping.Stop()
	ctx := st.c.r.Context()
	for {
		select {
		case <-lock.Done():
			st.lost(lock.Err())
			return
		case <-ctx.Done():
			st.disconnected(lock)
			return
		case <-st.c.s.closing.Done():
			st.drain(lock)
			return
		case p := <-st.ended:
			(*core.Lock)(lock).StopRenewing() // the client may rely on the lease until it has read the line
			st.c.code = p.Code
			_ = st.write(&line{Type: "lock-lost", Code: p.Code, Error: p.Detail})
			return
		case <-over:
			st.giveBack(lock)
			_ = st.write(&line{Type: "released"})
			return
		case <-ping.C:
			if lock.Err() != nil {
				continue // lock.Done reports a loss
			}
			if st.write(st.trust("ping", lock)) != nil {
				st.disconnected(lock)
				return
			}
		}
	}
}

// trust returns a line that says how long the lock can be relied on.
func (st *stream) trust(kind string, lock *joblock.Lock) *line {
	deadline := lock.ExpiresAt()
	if !st.until.IsZero() && st.until.Before(deadline) {
		deadline = st.until
	}
	valid := max(0, time.Until(deadline).Milliseconds())
	expires := ops.Time{Time: deadline}
	return &line{Type: kind, Fence: lock.Fence(), Valid: &valid, Expires: &expires}
}

func (st *stream) lost(err error) {
	l := &line{Type: "lock-lost", Code: joblock.CodeOf(err)}
	var e *joblock.Error
	if errors.As(err, &e) {
		l.Error = e.Detail
	}
	st.c.code = l.Code
	_ = st.write(l)
}

// disconnected does with the lock what the request's on_disconnect says.
func (st *stream) disconnected(lock *joblock.Lock) {
	switch st.onDisconnect {
	case onLapse:
		(*core.Lock)(lock).StopRenewing()
	case onPark:
		if _, err := lock.Park(st.c.lasting(), joblock.Reserve(st.reserve)); err != nil {
			(*core.Lock)(lock).StopRenewing() // parking failed: the lock ends with its lease
			return
		}
		st.c.s.quotas.holds(st.c.who.ID, lock.Key(), time.Now().Add(st.reserve))
	default:
		st.giveBack(lock)
	}
}

func (st *stream) giveBack(lock *joblock.Lock) {
	_ = lock.Release(st.c.lasting(), joblock.Reason("the stream has ended")) // a failed release is repeated in the background
}

// drain parks the lock and sends its token to the client, which resumes it at another replica. A client of another lock
// API has no token: its lock ends with its lease, so that the client has time to stop.
func (st *stream) drain(lock *joblock.Lock) {
	st.c.code = problem.Closed
	if st.shape != nil {
		(*core.Lock)(lock).StopRenewing()
		_ = st.write(&line{Type: "draining"})
		return
	}
	token, err := lock.Park(st.c.lasting(), joblock.Reserve(st.reserve))
	if err != nil {
		(*core.Lock)(lock).StopRenewing()
		st.begun = true
		_ = st.failed(err)
		return
	}
	if st.write(&line{Type: "draining", Key: lock.Key(), Token: &token, Resume: st.reserve.Milliseconds()}) != nil && st.onDisconnect == onRelease {
		// The client has disconnected, and does not have the token.
		_ = st.c.s.cfg.Locks.Release(st.c.lasting(), token, joblock.IfIdle(), joblock.Reason("the stream has ended"))
	}
}

// finish limits how long the client may take to read the end of the stream, which net/http writes. The deadline stays
// set, so an HTTP/1 connection serves no further request after a stream.
func (st *stream) finish() {
	if st.begun {
		_ = st.rc.SetWriteDeadline(time.Now().Add(st.writeTimeout()))
	}
}

// writeTimeout is how long the client may take to read a line: a third of the TTL, at most answerTimeout.
func (st *stream) writeTimeout() time.Duration {
	return min(max(minPing, st.ttl/3), answerTimeout)
}

// closingWriteTimeout bounds writeTimeout while the server closes, so that no client holds up Close.
const closingWriteTimeout = time.Second

// hurry shortens the deadline of a write when Close begins, until stop is called. After stop it does not touch the
// deadline: the handler may have returned, and net/http would panic.
func (c *call) hurry(rc *http.ResponseController, within time.Duration) (stop func()) {
	done := make(chan struct{})
	cancel := context.AfterFunc(c.s.closing, func() {
		defer close(done)
		_ = rc.SetWriteDeadline(time.Now().Add(within))
	})
	return func() {
		if !cancel() {
			<-done
		}
	}
}

// write writes a line, and returns when the kernel has it. A write that takes longer than writeTimeout fails.
func (st *stream) write(l *line) error {
	l.Elapsed = st.c.elapsed().Milliseconds()
	if l.Valid != nil && l.Expires != nil {
		valid := max(0, time.Until(l.Expires.Time).Milliseconds())
		l.Valid = &valid
	}
	var shaped any = l
	if st.shape != nil {
		shaped = st.shape(l)
	}
	text, err := json.Marshal(shaped)
	if err != nil {
		return err
	}
	if !st.begun {
		st.begun = true
		h := st.c.w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Accel-Buffering", "no")
		if st.c.r.ProtoMajor == 1 {
			h.Set("Connection", "close") // see finish
		}
		h.Set("Content-Type", "application/x-ndjson")
		if st.sse {
			h.Set("Content-Type", "text/event-stream")
		}
		st.c.w.WriteHeader(http.StatusOK)
	}
	var out bytes.Buffer
	if st.sse {
		out.WriteString("event: " + l.Type + "\ndata: ")
	}
	out.Write(text)
	out.WriteByte('\n')
	if st.sse {
		out.WriteByte('\n')
	}
	_ = st.rc.SetWriteDeadline(time.Now().Add(st.writeTimeout())) // not every ResponseWriter has deadlines
	defer st.c.hurry(st.rc, min(st.writeTimeout(), closingWriteTimeout))()
	if _, err := st.c.w.Write(out.Bytes()); err != nil {
		return err
	}
	return st.rc.Flush()
}
