//go:build unix

package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/history"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// What the clients of TestReplicasUnderFaults do goes by these.
const (
	faultTTL     = 500 * time.Millisecond
	faultReserve = 800 * time.Millisecond
	faultClients = 24
	faultKeys    = 6
)

// Clients use two replicas at random, while the replicas are killed, stopped and deployed, and their connections to Redis
// are cut, refused, swallowed and delayed. A ledger outside of the locks' Redis says that no two had a key at a time, that
// every fence was larger than those before it, and that nothing is left in the end.
//
//	JOBLOCK_TORTURE=5m JOBLOCK_SEED=7 go test -v -run ReplicasUnderFaults .
func TestReplicasUnderFaults(t *testing.T) {
	t.Parallel()
	length := 3 * time.Second
	if text := os.Getenv("JOBLOCK_TORTURE"); text != "" {
		var err error
		length, err = time.ParseDuration(text)
		testkit.WantNil(t, "JOBLOCK_TORTURE", err)
	}
	f := newFleet(t, "", testkit.EnvSeed(t))
	begun := time.Now()
	f.run(length, true, func() bool { return false })
	for _, v := range f.violations() {
		t.Error(v)
	}
	f.report()
	step := (time.Now().Round(0).Sub(begun.Round(0)) - time.Since(begun)).Abs()
	if step > 5*time.Millisecond+time.Since(begun)/1000 {
		t.Errorf("the clock of this machine was set by %v: the ledger proves nothing", step)
	}
	f.checkLeaks()
}

// The ledger finds out a server that breaks a rule.
func TestLedgerFindsBrokenRules(t *testing.T) {
	t.Parallel()
	for _, broken := range []string{brokenRelease, brokenValid} {
		t.Run(broken, func(t *testing.T) {
			t.Parallel()
			f := newFleet(t, broken, testkit.EnvSeed(t))
			f.run(time.Minute, false, func() bool { return len(f.violations()) > 0 })
			found := f.violations()
			if len(found) == 0 {
				t.Fatalf("no violation; %v", &f.done)
			}
			t.Logf("%d violations, such as %s", len(found), found[0])
		})
	}
}

// A fleet is two replicas, their clients and the ledger.
type fleet struct {
	t        *testing.T
	seed     uint64
	replicas []*process
	proxies  []*redistest.Proxy // before the Redis of each replica
	redis    *redistest.Server
	ledger   *redis.Client
	client   *http.Client
	done     tally // what clients have done
	faults   tally

	mu     sync.Mutex // guards what follows
	events []history.Event
	parked []parked
	n      int
}

// parked is a token that waits for a client to resume it.
type parked struct{ token, job string }

func newFleet(t *testing.T, broken string, seed uint64) *fleet {
	t.Helper()
	f := &fleet{t: t, seed: seed, redis: redistest.Start(t), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: faultClients}}}
	f.ledger = redistest.Start(t).Client(t)
	for range 2 {
		proxy := redistest.NewProxy(t, f.redis.Addr())
		f.proxies = append(f.proxies, proxy)
		f.replicas = append(f.replicas, startProcess(t, plan{
			Redis: proxy.Addr(), CallTimeout: faultTTL, Reserve: faultReserve, Poll: faultTTL / 2, Broken: broken,
		}))
	}
	t.Cleanup(f.client.CloseIdleConnections)
	return f
}

// run has the clients do what they do for so long, or until enough says so.
func (f *fleet) run(length time.Duration, faults bool, enough func() bool) {
	ctx, stop := context.WithTimeout(f.t.Context(), length)
	defer stop()
	var group sync.WaitGroup
	for i := range faultClients {
		group.Go(func() {
			c := &fleetClient{fleet: f, dice: rand.New(rand.NewPCG(f.seed, uint64(i)))}
			for ctx.Err() == nil {
				c.once(ctx)
			}
		})
	}
	for i := range f.replicas {
		if faults {
			group.Go(func() { f.torment(ctx, i, rand.New(rand.NewPCG(f.seed, uint64(1000+i)))) })
		}
	}
	for ctx.Err() == nil && !enough() {
		pause(ctx, 200*time.Millisecond)
	}
	stop()
	group.Wait()
}

// torment breaks one replica, again and again.
func (f *fleet) torment(ctx context.Context, i int, dice *rand.Rand) {
	r, proxy := f.replicas[i], f.proxies[i]
	between := func(from, to time.Duration) time.Duration { return from + time.Duration(dice.Int64N(int64(to-from))) }
	strike := func(act func(time.Duration) redistest.Action) {
		d := between(0, faultTTL/2)
		if dice.IntN(5) == 0 {
			d *= 4
		}
		proxy.Times(1+dice.IntN(8), redistest.Named("evalsha"), act(d))
	}
	at := func(a redistest.Action) func(time.Duration) redistest.Action {
		return func(time.Duration) redistest.Action { return a }
	}
	for pause(ctx, between(0, faultTTL)); ctx.Err() == nil; pause(ctx, between(0, faultTTL)) {
		name := ""
		switch dice.IntN(12) {
		case 0:
			name = "killed"
			r.kill()
			pause(ctx, between(0, faultTTL))
			r.start()
		case 1:
			name = "deployed"
			r.drain()
			r.start()
		case 2, 3:
			name = "stopped"
			if pid := r.pid(); pid > 0 {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
				pause(ctx, between(faultTTL/4, 2*faultTTL))
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
		case 4, 5:
			name = "cut from Redis"
			proxy.Cut()
		case 6:
			name = "refused by Redis"
			// Not Proxy.Refuse: another process may take the port meanwhile.
			proxy.Always(redistest.Any, redistest.DropRequest())
			proxy.Cut()
			pause(ctx, between(faultTTL/4, 3*faultTTL/2))
			proxy.Heal()
		case 7:
			name = "before a black hole"
			proxy.BlackHole()
			pause(ctx, between(faultTTL/4, 3*faultTTL/2))
			proxy.Heal()
		case 8:
			name = "without replies"
			strike(at(redistest.DropReply()))
		case 9:
			name = "without requests"
			strike(at(redistest.DropRequest()))
		case 10:
			name = "with slow replies"
			strike(redistest.DelayReply)
		case 11:
			name = "with slow requests"
			strike(redistest.DelayRequest)
		}
		f.faults.add(name)
	}
	proxy.Heal()
}

func (f *fleet) record(e history.Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
}

func (f *fleet) newID() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.n++
	return fmt.Sprint("h", f.n)
}

func (f *fleet) pass(p parked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.parked = append(f.parked, p)
}

// anyParked takes one of the tokens, any.
func (f *fleet) anyParked(dice *rand.Rand) (p parked, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.parked) == 0 {
		return parked{}, false
	}
	i := dice.IntN(len(f.parked))
	p = f.parked[i]
	f.parked = slices.Delete(f.parked, i, i+1)
	return p, true
}

// violations returns what the ledger says, so far.
func (f *fleet) violations() []history.Violation {
	f.mu.Lock()
	events := slices.Clone(f.events)
	f.mu.Unlock()
	found := history.Check(events)
	for i := range faultKeys {
		lines, err := f.ledger.LRange(context.Background(), guardLog+fleetKey(i), 0, -1).Result()
		testkit.WantNil(f.t, "the ledger", err)
		var writes []history.Write
		for _, line := range lines {
			var w history.Write
			_, err := fmt.Sscanf(line, "%d %s", &w.Fence, &w.Holding)
			testkit.WantNil(f.t, line, err)
			writes = append(writes, w)
		}
		found = append(found, history.CheckGuard(fleetKey(i), writes)...)
	}
	return found
}

func (f *fleet) report() {
	granted := make(map[string]int)
	for _, e := range f.events {
		if e.Kind == history.Acquired || e.Kind == history.Resumed {
			granted[e.Key]++
		}
	}
	handOvers := 0
	for _, n := range granted {
		handOvers += n - 1
	}
	refused, _ := f.ledger.Get(context.Background(), "refused").Int()
	f.t.Logf("seed %d: %d events, %d hand-overs of %d keys, %d writes of former holders refused", f.seed, len(f.events), handOvers, len(granted), refused)
	f.t.Logf("clients: %v", &f.done)
	f.t.Logf("faults: %v", &f.faults)
	if handOvers == 0 {
		f.t.Error("no lock went from one holder to another: this proves nothing")
	}
}

// checkLeaks wants every key to be free for the next caller once leases, reservations and places in line are over. The
// places of a server that was killed count as waiters of a free key until a client asks for the key.
func (f *fleet) checkLeaks() {
	for i := range f.proxies {
		f.proxies[i].Heal()
	}
	rdb := f.redis.Client(f.t)
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{CallTimeout: hang})
	testkit.WantNil(f.t, "New", err)
	defer func() { testkit.WantNil(f.t, "Close", locks.Close(context.Background())) }()
	var keys []string
	for i := range faultKeys {
		keys = append(keys, fleetKey(i))
	}
	for end := time.Now().Add(hang); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		keys = slices.DeleteFunc(keys, func(key string) bool {
			lock, err := locks.TryAcquire(context.Background(), key)
			if err == nil {
				err = lock.Release(context.Background())
			}
			return err == nil
		})
		if len(keys) == 0 {
			return
		}
	}
	sts, err := locks.Status(context.Background(), keys...)
	testkit.WantNil(f.t, "Status", err)
	f.t.Errorf("left behind: %+v", sts)
}

func fleetKey(i int) string { return fmt.Sprint("fleet:", i) }

// A fleetClient does one thing after the other.
type fleetClient struct {
	*fleet
	dice *rand.Rand
}

func (c *fleetClient) upTo(d time.Duration) time.Duration {
	return time.Duration(c.dice.Int64N(int64(d) + 1))
}
func (c *fleetClient) oneIn(n int) bool { return c.dice.IntN(n) == 0 }

// call sends a request to either replica. sent is when.
func (c *fleetClient) call(ctx context.Context, path string, body object, header ...string) (status int, o object, sent time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*faultTTL)
	defer cancel()
	sent = time.Now()
	url := c.replicas[c.dice.IntN(len(c.replicas))].url()
	status, o, err := ask(ctx, c.client, url+path, body, header...)
	if err != nil {
		status = 0 // whatever happened to the request
	}
	c.done.add(fmt.Sprint(strings.TrimPrefix(path, "/v1/"), " ", status))
	return status, o, sent
}

// certain is call, repeated at either replica until there is an answer that says what happened to the request.
func (c *fleetClient) certain(ctx context.Context, path string, body object, header ...string) (status int, o object, sent time.Time) {
	for range 6 {
		if status, o, sent = c.call(ctx, path, body, header...); status != 0 && status < 500 {
			break
		}
		pause(ctx, c.upTo(faultTTL/4))
	}
	return status, o, sent
}

// A holding is what a client believes.
type holding struct {
	c     *fleetClient
	id    string
	key   string
	token string
	fence int64
	trust time.Time
	lost  bool
}

func (c *fleetClient) once(ctx context.Context) {
	switch c.dice.IntN(5) {
	case 0:
		c.hold(ctx)
		return
	case 1:
		if h := c.resume(ctx); h != nil {
			h.use(ctx)
		}
	default:
		if h := c.acquire(ctx); h != nil {
			h.use(ctx)
		}
	}
	pause(ctx, c.upTo(faultTTL/50))
}

func (c *fleetClient) acquire(ctx context.Context) *holding {
	body := object{"key": fleetKey(c.dice.IntN(faultKeys)), "ttl_ms": faultTTL.Milliseconds()}
	if !c.oneIn(3) {
		body["wait_ms"] = c.upTo(2 * faultTTL).Milliseconds()
	}
	began := time.Now()
	if c.oneIn(2) {
		status, o, sent := c.certain(ctx, "/v1/acquire", body, "Idempotency-Key", c.newID())
		return c.granted(history.Acquired, began, sent, status, o)
	}
	status, o, sent := c.call(ctx, "/v1/acquire", body)
	return c.granted(history.Acquired, began, sent, status, o)
}

func (c *fleetClient) resume(ctx context.Context) *holding {
	p, ok := c.anyParked(c.dice)
	if !ok {
		return nil
	}
	body := object{"token": p.token, "ttl_ms": faultTTL.Milliseconds()}
	if p.job != "" {
		body["job"] = p.job
	}
	began := time.Now()
	status, o, sent := c.certain(ctx, "/v1/resume", body, "Idempotency-Key", c.newID())
	return c.granted(history.Resumed, began, sent, status, o)
}

// granted returns the holding that an answer tells of, or nil.
func (c *fleetClient) granted(kind history.Kind, began, sent time.Time, status int, o object) *holding {
	if status != http.StatusOK {
		return nil
	}
	now := time.Now()
	h := &holding{c: c, id: c.newID(), key: o.text("key"), token: o.text("token"), fence: o.number("fence"), trust: trusted(sent, o)}
	c.record(history.Event{
		Kind: kind, Key: h.key, Holding: h.id, Call: began.UnixNano(), At: now.UnixNano(), Fence: h.fence, Trust: h.trust.UnixNano(), TTL: faultTTL,
	})
	return h
}

// trusted returns until when the client can rely on what an answer, or a line, tells.
func trusted(sent time.Time, o object) time.Time {
	return sent.Add(time.Duration(o.number("elapsed_ms")+o.number("valid_ms")) * time.Millisecond)
}

// look reports whether the client may go on.
func (h *holding) look() bool {
	if !h.lost && !time.Now().Before(h.trust) {
		h.lose()
	}
	return !h.lost
}

func (h *holding) lose() {
	h.lost = true
	now := time.Now().UnixNano()
	h.record(history.Lost, now, now, 0)
}

func (h *holding) record(kind history.Kind, call, at, fence int64) {
	h.c.record(history.Event{Kind: kind, Key: h.key, Holding: h.id, Call: call, At: at, Fence: fence})
}

// trustUntil notes that the client can rely on its lock for longer.
func (h *holding) trustUntil(t time.Time) {
	now := time.Now()
	if now.Before(t) {
		h.trust = t
		h.c.record(history.Event{Kind: history.Trusted, Key: h.key, Holding: h.id, Call: now.UnixNano(), At: now.UnixNano(), Trust: t.UnixNano()})
	}
}

// guard is a resource that refuses small fences. Of those that it accepts it notes whose turn it is.
var guard = redis.NewScript(`
local seen = tonumber(redis.call('GET', KEYS[1]) or '0')
if tonumber(ARGV[1]) < seen then return redis.call('INCR', KEYS[3]) end
redis.call('SET', KEYS[1], ARGV[1])
local line = ARGV[1] .. ' ' .. ARGV[2]
if redis.call('LINDEX', KEYS[2], -1) ~= line then redis.call('RPUSH', KEYS[2], line) end
return 0`)

const guardLog = "guard-log:"

func (h *holding) write() {
	err := guard.Run(context.Background(), h.c.ledger, []string{"guard:" + h.key, guardLog + h.key, "refused"}, h.fence, h.id).Err()
	if err != nil {
		h.c.t.Errorf("the ledger: %v", err)
	}
}

// use works under a lock, and then gives it up in one way or another.
func (h *holding) use(ctx context.Context) {
	c := h.c
	stay := c.upTo(faultTTL / 10)
	if c.oneIn(5) {
		stay = c.upTo(2 * faultTTL)
	}
	for end := time.Now().Add(stay); time.Now().Before(end) && h.look() && ctx.Err() == nil; pause(ctx, c.upTo(faultTTL/10)) {
		h.write()
		if c.oneIn(3) {
			h.renew(ctx)
		}
	}
	switch fate := c.dice.IntN(10); {
	case fate == 0: // forgets the lock
		h.waitForTheEnd(ctx)
	case fate < 3: // a former holder that does not know
		h.waitForTheEnd(ctx)
		pause(ctx, c.upTo(faultTTL))
		h.write()
		_, _, _ = c.call(ctx, "/v1/renew", object{"token": h.token})
		_, _, _ = c.call(ctx, "/v1/release", object{"token": h.token})
	case fate < 6:
		h.park(ctx)
	default:
		h.release(ctx)
	}
}

// waitForTheEnd goes on until the lock cannot be relied on any more.
func (h *holding) waitForTheEnd(ctx context.Context) {
	for h.look() {
		h.write()
		pause(ctx, min(faultTTL/10, max(time.Millisecond, time.Until(h.trust))))
		if ctx.Err() != nil {
			time.Sleep(time.Millisecond)
		}
	}
}

func (h *holding) renew(ctx context.Context) {
	body := object{"token": h.token}
	if h.c.oneIn(2) {
		body["ttl_ms"] = faultTTL.Milliseconds()
	}
	status, o, sent := h.c.call(ctx, "/v1/renew", body)
	switch {
	case status == http.StatusOK:
		h.trustUntil(trusted(sent, o))
	case status >= 400 && status < 500:
		h.lose()
	}
}

func (h *holding) release(ctx context.Context) {
	call := time.Now().UnixNano()
	h.record(history.ReleaseBegun, call, 0, 0)
	status, _, _ := h.c.certain(ctx, "/v1/release", object{"token": h.token})
	now := time.Now().UnixNano()
	switch {
	case status == http.StatusOK:
		h.record(history.Released, call, now, 0)
	case status >= 400 && status < 500:
		h.record(history.Refused, call, now, 0)
	}
	if h.c.oneIn(4) { // a copy comes late, when another client has the lock
		pause(ctx, h.c.upTo(faultTTL/5))
		_, _, _ = h.c.call(ctx, "/v1/release", object{"token": h.token})
	}
}

func (h *holding) park(ctx context.Context) {
	p := parked{}
	body := object{"token": h.token, "reserve_ms": faultReserve.Milliseconds()}
	if h.c.oneIn(2) {
		p.job = "default/" + h.id
		body["job"] = p.job
	}
	call := time.Now().UnixNano()
	h.record(history.ParkBegun, call, 0, 0)
	status, o, _ := h.c.certain(ctx, "/v1/park", body)
	if status != http.StatusOK {
		return // the reservation, if there is one, ends by itself
	}
	h.record(history.Parked, call, time.Now().UnixNano(), o.number("fence"))
	p.token = o.text("token")
	h.c.pass(p)
	if h.c.oneIn(4) {
		h.c.pass(p) // a queue that delivers twice
	}
	if h.c.oneIn(4) { // the old token names nothing any more
		_, _, _ = h.c.call(ctx, "/v1/release", object{"token": h.token})
	}
}

// hold has a lock by a stream, and follows the stream to another replica.
func (c *fleetClient) hold(ctx context.Context) {
	body := object{"key": fleetKey(c.dice.IntN(faultKeys)), "ttl_ms": faultTTL.Milliseconds(), "wait_ms": (2 * faultTTL).Milliseconds(), "reserve_ms": faultReserve.Milliseconds()}
	if c.oneIn(3) {
		body["on_disconnect"] = []string{"lapse", "park"}[c.dice.IntN(2)]
	}
	for range 3 {
		token := c.stream(ctx, body)
		if token == "" {
			return
		}
		c.done.add("moved")
		body = object{"token": token, "ttl_ms": faultTTL.Milliseconds(), "reserve_ms": faultReserve.Milliseconds()}
	}
}

// stream follows one stream to its end. The token is that of a line draining.
func (c *fleetClient) stream(ctx context.Context, body object) (token string) {
	stay := time.Now().Add(c.upTo(3 * faultTTL))
	ctx, hangUp := context.WithDeadline(context.WithoutCancel(ctx), stay.Add(4*faultTTL))
	defer hangUp()
	text, err := json.Marshal(body)
	testkit.WantNil(c.t, "Marshal", err)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.replicas[c.dice.IntN(len(c.replicas))].url()+"/v1/hold", strings.NewReader(string(text)))
	testkit.WantNil(c.t, "NewRequest", err)
	r.Header.Set("Content-Type", "application/json")
	sent := time.Now()
	res, err := c.client.Do(r)
	if err != nil {
		c.done.add("hold 0")
		return ""
	}
	defer res.Body.Close()
	c.done.add(fmt.Sprint("hold ", res.StatusCode))
	if res.StatusCode != http.StatusOK {
		return ""
	}
	var h *holding
	lines := make(chan object)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(res.Body); in.Scan(); {
			var o object
			if json.Unmarshal(in.Bytes(), &o) == nil {
				select {
				case lines <- o:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	for {
		next := time.Now().Add(c.upTo(faultTTL / 10))
		select {
		case o, ok := <-lines:
			switch kind := o.text("type"); {
			case !ok:
				c.done.add("streams broken")
				if h != nil {
					h.waitForTheEnd(ctx) // the client relies on the last line
				}
				return ""
			case kind == "lock-acquired":
				h = c.granted(history.Acquired, sent, sent, http.StatusOK, o)
			case kind == "ping" && h != nil && h.look():
				h.trustUntil(trusted(sent, o))
			case kind == "lock-lost" && h != nil:
				h.lose()
				return ""
			case kind == "error":
				return ""
			case kind == "draining":
				if h != nil {
					now := time.Now().UnixNano()
					h.record(history.ParkBegun, now, 0, 0)
				}
				return o.text("token")
			}
		case <-time.After(time.Until(next)):
			if h != nil && h.look() {
				h.write()
			}
		}
		if h != nil && !h.look() || time.Now().After(stay) {
			if h != nil && !h.lost {
				h.lose() // and only then hangs up
			}
			return ""
		}
	}
}

// tally counts by name.
type tally struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *tally) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = make(map[string]int)
	}
	c.n[name]++
}

// String lists the names, the most frequent first.
func (c *tally) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	for _, name := range slices.SortedFunc(maps.Keys(c.n), func(a, b string) int { return cmp.Or(c.n[b]-c.n[a], cmp.Compare(a, b)) }) {
		parts = append(parts, fmt.Sprintf("%d %s", c.n[name], name))
	}
	return strings.Join(parts, ", ")
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
