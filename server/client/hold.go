package client

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/server/internal/routes"
)

// HoldRequest says which lock Hold takes. Key or Token is required.
type HoldRequest struct {
	Key   string
	Token joblock.Token // instead of Key: the token of a parked lock, which Hold resumes without a wait
	Job   string        // with Token: the job that the lock is parked for, if any

	TTL         time.Duration // how long the lock outlives this process; 0 means the server's default
	MaxWait     time.Duration // how long to wait for the lock; 0 means not at all
	WaitForever bool          // instead of MaxWait: wait until the context of the call ends
	Holder      string        // a label for display; "" means the server's
	Limit       int           // 0, or the number of permits of Key; see package limit

	// OnEvent is called with each event, by one goroutine at a time. It must not block.
	OnEvent func(HoldEvent)
}

// HoldEvent is something that happens to a Hold.
type HoldEvent struct {
	Kind  string // HoldWaits, HoldDrains, HoldMoved or HoldLost
	Ahead int    // HoldWaits: how many waiters are ahead; -1 if not known
	Fence int64  // HoldMoved: the fence from now on
	Err   error  // HoldDrains: why the stream ended, nil if the server is closing; HoldLost: Hold.Err
}

// The kinds of a HoldEvent.
const (
	HoldWaits  = "waits"  // the place in line has changed
	HoldDrains = "drains" // the stream has ended, and the Hold looks for another replica
	HoldMoved  = "moved"  // the Hold continues at another replica
	HoldLost   = "lost"
)

// Hold is a lock that a server renews for this process while the stream between the two is open. If the stream ends,
// because the server is closing, has died or cannot be reached, the Hold renews the lock itself, at any replica. A server
// that closes parks the lock; then the Hold first resumes it, under a new fence. No other holder gets the lock in
// between. If no replica answers before ExpiresAt, the lock is lost. Make a Hold with Client.Hold, and Release it.
//
// With a stream, a loss is noticed at once. Without one, it is noticed within a third of the TTL.
//
// If this process dies, its lock ends with the lease: it is free one TTL later.
type Hold struct {
	c     *Client
	req   HoldRequest
	key   string
	done  chan struct{}      // closed when the lock is lost
	stop  context.CancelFunc // ends the stream
	ended chan struct{}      // closed when live has returned

	mu     sync.Mutex
	moving *ResumeRequest // not nil: the server has parked the lock, and this request may have resumed it
	token  joblock.Token
	fence  int64
	until  time.Time
	err    error                             // why the Hold has ended
	watch  map[*context.CancelCauseFunc]bool // the contexts to cancel when the lock is lost

	ttl time.Duration // set before live begins
}

// line is a line of a stream.
type line struct {
	granted
	Type      string `json:"type"`
	Ahead     *int   `json:"ahead"`
	Code      string `json:"code"`
	Detail    string `json:"error"`
	Retryable bool   `json:"retryable"`

	err error // why the stream ended without a last line
}

type holdBody struct {
	Key          string         `json:"key,omitempty"`
	Token        *joblock.Token `json:"token,omitempty"`
	Job          string         `json:"job,omitempty"`
	TTL          int64          `json:"ttl_ms,omitempty"`
	Wait         *int64         `json:"wait_ms,omitempty"`
	Holder       string         `json:"holder,omitempty"`
	Limit        int            `json:"limit,omitempty"`
	OnDisconnect string         `json:"on_disconnect"`
	Reserve      int64          `json:"reserve_ms"`
}

// A stream that waits has a line after a second, and then at least every ten seconds. A replica must send its first line
// within firstLine, or within its share of Config.Timeout if that is longer, and each further line within silence.
const (
	firstLine = 3 * time.Second
	silence   = 30 * time.Second
)

// Hold takes a lock, and waits for it as the request says. If ctx ends, the wait ends; a Hold that was returned does not
// depend on ctx. Errors are those of Acquire and, for a Token, of Resume.
func (c *Client) Hold(ctx context.Context, req HoldRequest) (*Hold, error) {
	switch {
	case req.MaxWait < 0:
		return nil, core.Invalid("hold", req.Key, "MaxWait is %s, must not be negative", req.MaxWait)
	case req.MaxWait > 0 && req.WaitForever:
		return nil, core.Invalid("hold", req.Key, "MaxWait is %s, must be 0 with WaitForever", req.MaxWait)
	case (req.MaxWait > 0 || req.WaitForever) && !req.Token.IsZero():
		return nil, core.Invalid("hold", req.Token.Key(), "MaxWait and WaitForever are not for a hold with a Token, which does not wait")
	}
	h := &Hold{c: c, req: req, key: req.Key, done: make(chan struct{}), ended: make(chan struct{}), watch: make(map[*context.CancelCauseFunc]bool)}
	body := holdBody{Key: req.Key, Job: req.Job, TTL: ms(req.TTL), Holder: req.Holder, Limit: req.Limit, OnDisconnect: "lapse", Reserve: ms(max(time.Minute, 2*req.TTL))}
	if !req.Token.IsZero() {
		body.Token, h.key = &req.Token, req.Token.Key()
	}
	if !req.WaitForever && req.Token.IsZero() {
		body.Wait = new(int64) // set for each request
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	h.stop = stop
	s, err := h.begin(ctx, life, body)
	if err != nil {
		stop()
		return nil, err
	}
	go h.live(life, s)
	return h, nil
}

// Key returns the key of the lock; if the request had a Limit, the key of the permit.
func (h *Hold) Key() string { return h.Token().Key() }

// Token returns the token of the lock, which changes when the Hold resumes the lock.
func (h *Hold) Token() joblock.Token {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.token
}

// Fence returns the fence of the lock. It grows when the Hold resumes the lock; earlier fences stay valid until another
// holder gets the lock.
func (h *Hold) Fence() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fence
}

// ExpiresAt returns how long the lock can be relied on if no further line of the server comes. It is an instant of the
// monotonic clock; see the package comment.
func (h *Hold) ExpiresAt() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

// Done returns a channel that is closed when the lock is lost, no later than at ExpiresAt. After Release, Park and Detach
// the channel stays open, because the lock is not lost.
func (h *Hold) Done() <-chan struct{} { return h.done }

// Err returns nil while the Hold has the lock, and then why it ended. For a lost lock the error matches joblock.ErrLost,
// or is a server's error. After Release it matches joblock.ErrAlreadyReleased, after Park and Detach joblock.ErrNotOwner.
func (h *Hold) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

// Context returns a child of parent that is cancelled when the lock is lost, with Err as its cause, but not by Release,
// Park and Detach. If the Hold has already ended, the context is cancelled at once. Call stop when the work is done.
func (h *Hold) Context(parent context.Context) (ctx context.Context, stop context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	h.mu.Lock()
	err := h.err
	if err == nil {
		h.watch[&cancel] = true
	}
	h.mu.Unlock()
	if err != nil {
		cancel(err)
	}
	return ctx, func() {
		h.mu.Lock()
		delete(h.watch, &cancel)
		h.mu.Unlock()
		cancel(nil)
	}
}

// Release gives the lock back. The reason may be "". Errors are those of Client.Release, or Err if the Hold has ended.
// After an error the lock may last until its lease ends or, if a closing server had parked the lock, until its reservation
// ends. To try again, call Client.Release with Token.
func (h *Hold) Release(ctx context.Context, reason string) error {
	token, err := h.giveUp(ctx, errReleased)
	if err != nil {
		return err
	}
	return h.c.Release(ctx, token, reason)
}

// Park ends the Hold, and reserves the key for the bearer of the token that Park returns; see Client.Park. After an error
// the lock may last as long as after a failed Release. To try again, call Client.Park with Token.
func (h *Hold) Park(ctx context.Context, job string, reserve time.Duration) (joblock.Token, error) {
	token, err := h.giveUp(ctx, errHandedOver)
	if err != nil {
		return joblock.Token{}, err
	}
	return h.c.Park(ctx, ParkRequest{Token: token, Job: job, Reserve: reserve})
}

// Detach ends the Hold, and leaves the lock in place for the rest of its lease. From then on only Client.Renew renews it.
// The Grant has no Prior.
func (h *Hold) Detach() (Grant, error) {
	token, err := h.giveUp(context.Background(), errHandedOver) // Config.Timeout bounds the call, if one is needed
	if err != nil {
		return Grant{}, err
	}
	return Grant{Key: token.Key(), Token: token, Fence: h.Fence(), TTL: h.ttl, ExpiresAt: h.ExpiresAt()}, nil
}

// The errors of a Hold that has ended without losing its lock.
var (
	errReleased   = &Problem{Code: joblock.CodeOf(joblock.ErrAlreadyReleased), op: "hold", Detail: "the Hold was released"}
	errHandedOver = &Problem{Code: joblock.CodeOf(joblock.ErrNotOwner), op: "hold", Detail: "the Hold was parked or detached"}
)

// giveUp ends the stream, and returns the token of the lock, or Err if the Hold has already ended. If the server has
// parked the lock, giveUp resumes the lock first, because it is unknown whether an earlier Resume has succeeded.
func (h *Hold) giveUp(ctx context.Context, why error) (joblock.Token, error) {
	h.stop()
	<-h.ended
	h.mu.Lock()
	if h.err != nil {
		defer h.mu.Unlock()
		return joblock.Token{}, h.err
	}
	h.err = why
	token, moving := h.token, h.moving
	h.mu.Unlock()
	if moving == nil {
		return token, nil
	}
	err := h.resume(ctx, *moving)
	return h.Token(), err
}

// resume sends a Resume, with the same Idempotency-Key each time, and records the result.
func (h *Hold) resume(ctx context.Context, req ResumeRequest) error {
	g, err := h.c.Resume(ctx, req)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.token, h.fence, h.until, h.moving = g.Token, g.Fence, g.ExpiresAt, nil
	return nil
}

func (h *Hold) tell(e HoldEvent) {
	if h.req.OnEvent != nil {
		h.req.OnEvent(e)
	}
}

// lose ends the Hold.
func (h *Hold) lose(err error) {
	h.mu.Lock()
	h.err = err
	close(h.done)
	for cancel := range h.watch {
		(*cancel)(err)
	}
	h.mu.Unlock()
	h.stop()
	h.tell(HoldEvent{Kind: HoldLost, Err: err})
}

// lostError returns the error for a lock that can no longer be relied on.
func (h *Hold) lostError(detail string, cause error) error {
	return &Problem{Code: joblock.CodeOf(joblock.ErrLost), Key: h.key, op: "hold", Detail: detail, err: cause}
}

// live follows the stream, and renews the lock after the stream has ended, until the lock is lost or given up.
func (h *Hold) live(life context.Context, s *stream) {
	defer close(h.ended)
	defer func() { s.close() }()
	for {
		over := time.NewTimer(time.Until(h.ExpiresAt()))
		var l line
		select {
		case <-life.Done():
			over.Stop()
			return
		case <-over.C:
			h.lose(h.lostError("the server did not answer in time", nil))
			return
		case l = <-s.lines:
			over.Stop()
		}
		switch l.Type {
		case "ping":
			h.trust(l.granted.until(s.sent))
			continue
		case "lock-lost":
			h.lose(&Problem{Status: http.StatusOK, Code: l.Code, Detail: l.Detail, Key: h.key, op: "hold"})
			return
		case "draining", "":
			s.close()
			h.tell(HoldEvent{Kind: HoldDrains, Err: l.err})
			if err := h.goOn(life, &l); life.Err() == nil {
				h.lose(err)
			}
			return
		case "released":
			h.lose(h.lostError("the server has ended the hold", nil))
			return
		default: // a line of a later server: the end of the stream, or ExpiresAt, decides
		}
	}
}

// goOn keeps the lock without a stream: it resumes the lock if the server has parked it, and then renews it by token,
// through any replica. It returns why the lock is lost. Meanwhile the lock can be relied on until the last known
// ExpiresAt: no caller ends the lease, the reservation is longer, and a repeated Resume with the same Idempotency-Key
// continues the lease of the first one.
func (h *Hold) goOn(life context.Context, l *line) error {
	moved := false
	if l.Token != nil {
		req := ResumeRequest{Token: *l.Token, TTL: h.req.TTL, Holder: h.req.Holder, IdempotencyKey: rand.Text()}
		h.mu.Lock()
		h.token, h.moving = *l.Token, &req // the previous token no longer has a lock
		h.mu.Unlock()
		err := h.patiently(life, func(ctx context.Context) error { return h.resume(ctx, req) })
		if err != nil {
			return err
		}
		moved = true
		h.tell(HoldEvent{Kind: HoldMoved, Fence: h.Fence()})
		pause(life, h.ttl/3)
	}
	for life.Err() == nil {
		err := h.patiently(life, func(ctx context.Context) error {
			g, err := h.c.Renew(ctx, RenewRequest{Token: h.Token()})
			if err == nil {
				h.trust(g.ExpiresAt)
			}
			return err
		})
		if err != nil {
			return err
		}
		if !moved {
			moved = true
			h.tell(HoldEvent{Kind: HoldMoved, Fence: h.Fence()})
		}
		pause(life, h.ttl/3)
	}
	return life.Err()
}

// patiently repeats a call until it is answered, or until the lock can no longer be relied on.
func (h *Hold) patiently(life context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithDeadline(life, h.ExpiresAt())
	defer cancel()
	for n := 1; ; n++ {
		err := do(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return h.lostError("no server answered in time", err)
		case !next(err, true) && !rateLimited(err):
			return err
		}
		pause(ctx, min(time.Duration(n)*50*time.Millisecond, h.ttl/10))
	}
}

func rateLimited(err error) bool {
	var p *Problem
	return errors.As(err, &p) && p.Status == http.StatusTooManyRequests
}

// begin opens a stream at a replica, and follows it until the lock is taken. It waits while a replica answers. After
// Config.Timeout without an answer it gives up, but not before it has tried each replica.
func (h *Hold) begin(ctx, life context.Context, body holdBody) (*stream, error) {
	began, silent, asked := time.Now(), time.Now(), int64(0) // since when no replica has answered, and how many were tried
	all := int64(len(h.c.urls))
	for n := int64(0); ; n++ {
		i := h.c.at.Load() % all
		if body.Wait != nil {
			left := max(0, ms(h.req.MaxWait-time.Since(began)))
			body.Wait = &left
		}
		s, err := h.open(ctx, life, h.c.urls[i], body)
		if err == nil {
			var heard bool
			if heard, err = h.queue(ctx, s); err == nil {
				return s, nil
			}
			s.close()
			if heard {
				silent, asked = time.Now(), 0
			}
		}
		asked++
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !next(err, true), asked >= all && time.Since(silent) > h.c.cfg.Timeout:
			return nil, err
		}
		h.c.at.CompareAndSwap(i, (i+1)%all)
		if n%all == all-1 {
			pause(ctx, 100*time.Millisecond)
		}
	}
}

// queue follows a stream until the lock is taken. heard reports whether the server has said that the call waits.
func (h *Hold) queue(ctx context.Context, s *stream) (heard bool, err error) {
	for {
		quiet := time.NewTimer(silence)
		select {
		case <-ctx.Done():
			quiet.Stop()
			return heard, context.Cause(ctx)
		case <-quiet.C:
			return heard, unanswered(s.op, s.base, errors.New("the stream is silent"))
		case l := <-s.lines:
			quiet.Stop()
			switch l.Type {
			case "waiting":
				heard = true
				ahead := -1
				if l.Ahead != nil {
					ahead = *l.Ahead
				}
				h.tell(HoldEvent{Kind: HoldWaits, Ahead: ahead})
			case "lock-acquired":
				if l.Token == nil {
					return heard, h.lostError("the line lock-acquired has no token", nil)
				}
				h.mu.Lock()
				h.token, h.fence, h.until, h.ttl = *l.Token, l.Fence, l.granted.until(s.sent), l.TTL.Duration()
				h.mu.Unlock()
				return heard, nil
			case "error", "lock-lost":
				return heard, &Problem{Status: http.StatusOK, Code: l.Code, Detail: l.Detail, Retryable: l.Retryable, Key: h.key, op: "hold"}
			case "draining", "released":
				return heard, unanswered(s.op, s.base, errors.New("the stream has ended before the lock was taken"))
			case "":
				return heard, unanswered(s.op, s.base, l.err)
			default: // a line of a later server
				heard = true
			}
		}
	}
}

// trust records how long the lock can be relied on. ExpiresAt never moves back.
func (h *Hold) trust(until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if until.After(h.until) {
		h.until = until
	}
}

// A stream is the answer to a hold.
type stream struct {
	op    call
	base  string
	sent  time.Time
	lines chan line
	close func()
}

// open sends a hold to a replica. The stream ends when life ends or, until the lock is taken, when ctx ends.
func (h *Hold) open(ctx, life context.Context, base string, body holdBody) (*stream, error) {
	op := call{op: "hold", key: h.key, method: http.MethodPost, path: routes.Hold.Path, header: http.Header{"Accept": {"application/x-ndjson"}}}
	op.body = body
	text, err := op.text()
	if err != nil {
		return nil, err
	}
	own, cancel := context.WithCancel(life)
	stop := context.AfterFunc(ctx, cancel)
	quiet := time.AfterFunc(max(firstLine, h.c.cfg.Timeout/time.Duration(len(h.c.urls))), cancel)
	s := &stream{op: op, base: base, sent: time.Now(), lines: make(chan line)}
	res, err := h.c.send(own, base, op, text)
	quiet.Stop()
	if err == nil && res.StatusCode != http.StatusOK {
		err = op.read(res)
		_ = res.Body.Close()
	}
	if err == nil && !stop() {
		_ = res.Body.Close()
		err = context.Cause(ctx)
	}
	if err != nil {
		stop()
		cancel()
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.pump(own, res.Body)
	}()
	s.close = func() {
		cancel()
		_ = res.Body.Close()
		<-ended
	}
	return s, nil
}

// pump reads lines until the stream or ctx ends.
func (s *stream) pump(ctx context.Context, from io.Reader) {
	lines := bufio.NewReader(from)
	for {
		text, err := lines.ReadBytes('\n')
		var l line
		if err == nil {
			if err = json.Unmarshal(text, &l); err == nil && l.Type == "" {
				err = errors.New("a line has no type")
			}
		}
		if err != nil {
			l = line{err: err}
		}
		select {
		case s.lines <- l:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}
