package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// keyAt is the index of the first key among the arguments of a call. Before the first key are the command, the script
// and the number of keys.
const keyAt = 3

// scriptCall is a call of a script, in one allocation unless the call has many arguments. The elements of args are
// pointers into texts and nums, which go-redis accepts. Plain values would each be boxed in an interface.
type scriptCall struct {
	made  redis.Cmd
	args  []any // in the field room while they fit
	room  [keyAt + 10]any
	texts [8]string
	nums  [2]int64

	text, num int // how many elements of texts and nums are used
}

// newCall begins a call of sc for keys. In a cluster the first key decides which node gets the call.
func newCall(sc *script, keys ...string) *scriptCall {
	c := &scriptCall{}
	c.args = append(c.room[:0], sc.evalsha, sc.sha, len(keys))
	for _, key := range keys {
		c.str(key)
	}
	return c
}

// add adds an argument as go-redis takes it.
func (c *scriptCall) add(arg any) *scriptCall {
	c.args = append(c.args, arg)
	return c
}

func (c *scriptCall) str(s string) *scriptCall {
	if c.text == len(c.texts) {
		return c.add(s)
	}
	c.texts[c.text] = s
	c.text++
	return c.add(&c.texts[c.text-1])
}

// millis adds a duration in milliseconds, at least 1: a PEXPIRE with less would delete the record and its
// fence.
func (c *scriptCall) millis(d time.Duration) *scriptCall { return c.int(max(1, millis(d))) }

// millisOrZero adds a duration that may be 0.
func (c *scriptCall) millisOrZero(d time.Duration) *scriptCall { return c.int(millis(d)) }

// millis returns d in milliseconds, rounded up: a lease may be longer in the store than its holder
// believes, but not shorter. For a negative d the result is 0.
func millis(d time.Duration) int64 { return max(0, int64((d+time.Millisecond-1)/time.Millisecond)) }

// wide formats a period as in a record: in milliseconds, at least 1, and 12 bytes wide.
func wide(d time.Duration) string {
	var text [periodBytes]byte
	fill(text[:], max(1, millis(d)))
	return string(text[:])
}

const (
	periodBytes = 12 // width of a period in a record
	fenceBytes  = 16 // width of a fence
)

// fill writes n in decimal to the end of text, and fills the rest of text with spaces.
func fill(text []byte, n int64) {
	i := len(text) - 1
	for ; i == len(text)-1 || n > 0; i-- {
		text[i] = byte('0' + n%10)
		n /= 10
	}
	for ; i >= 0; i-- {
		text[i] = ' '
	}
}

// term adds the term that a call names, as two arguments: the beginning of the record, and the grant.
func (c *scriptCall) term(t *driver.Term) *scriptCall {
	return c.str(recordHead(t, false)).str(t.Grant)
}

// recordHead returns the beginning of the record of t, up to the owner. If any is true, "any" stands in
// the place of the fence: scripts then accept any term of the owner.
func recordHead(t *driver.Term, any bool) string {
	if any {
		return "jobHany\n" + t.Owner + "\n"
	}
	var fence [fenceBytes]byte
	fill(fence[:], t.Fence)
	return "jobH" + string(fence[:]) + "\n" + t.Owner + "\n"
}

func (c *scriptCall) micros(d time.Duration) *scriptCall { return c.int(max(0, d.Microseconds())) }

func (c *scriptCall) int(n int64) *scriptCall {
	if c.num == len(c.nums) {
		return c.add(n)
	}
	c.nums[c.num] = n
	c.num++
	return c.add(&c.nums[c.num-1])
}

func (c *scriptCall) flag(b bool) *scriptCall {
	if b {
		return c.str("1")
	}
	return c.str("0")
}

// cmd makes the command. The alternative redis.Script.Run copies the arguments twice, and has no form for
// pipelines.
func (c *scriptCall) cmd(ctx context.Context) *redis.Cmd {
	c.made = *newCmd(ctx, c.args)
	return &c.made
}

func newCmd(ctx context.Context, args []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(keyAt) // a ClusterClient finds the node by the first key
	return cmd
}

// manyKeys reports whether cmd is a call of a script with more than one key.
func manyKeys(cmd *redis.Cmd) bool { return cmd.Args()[keyAt-1] != 1 }

// jointCall is a call with more than one key in a cluster. While the keys' slot migrates, such a call may get TRYAGAIN
// again and again. So go-redis must not send the call again.
type jointCall struct{ *redis.Cmd }

// NoRetry is for go-redis.
func (c jointCall) NoRetry() bool { return redis.IsTryAgainError(c.Err()) }

// forCluster returns what to hand to go-redis for cmd.
func forCluster(via sender, cmd *redis.Cmd) redis.Cmder {
	if _, many := via.(*redis.ClusterClient); many && len(cmd.Args()) > keyAt && manyKeys(cmd) {
		return jointCall{cmd}
	}
	return cmd
}

// one makes a single call, about one key.
func (s *store) one(ctx context.Context, sc *script, c *scriptCall) (driver.Reply, error) {
	var a answer
	if s.replicas > 0 {
		a = s.acknowledged(ctx, s.calls, sc, []*redis.Cmd{c.cmd(ctx)})[0]
	} else {
		a = sc.run(ctx, s.calls, c.cmd(ctx))
	}
	if a.err != nil {
		return driver.Reply{}, a.err
	}
	return parseReply(sc, a.val)
}

// batch makes one call per request. An item without an answer stays OutcomeUnknown. err is the error of one such item,
// which firstError chooses: a thousand equal errors, joined, would not help. unfinished has the indexes of the releases
// whose answer was errMore.
func batch[R any](ctx context.Context, s *store, m *merger, sc *script, reqs []R, call func(*R) *scriptCall) (replies []driver.Reply, unfinished []int, err error) {
	replies = make([]driver.Reply, len(reqs))
	var few [1]int // on the stack, because most batches have one item
	items := few[:0]
	for i := range reqs {
		items = append(items, i)
	}
	unfinished, _, err = some(ctx, s, m, sc, reqs, items, replies, call)
	return replies, unfinished, err
}

// some makes the calls for the given items of a batch, and sets the replies to these items. The result
// left has the items whose answer was errMore or errUnlisted. apart has the items with two keys that the
// server refused because of their slots. None of these is an error of the batch.
func some[R any](
	ctx context.Context, s *store, m *merger, sc *script, reqs []R, items []int, replies []driver.Reply, call func(*R) *scriptCall,
) (left, apart []int, err error) {
	if len(items) == 0 {
		return nil, nil, nil
	}
	answered := func(i int, a answer) {
		if a.err == nil {
			parsed := sc
			if sc == releaseScript || sc == releaseSlotScript {
				a.val, parsed = s.handOver(a.val), releaseScript
			}
			replies[i], a.err = parseReply(parsed, a.val)
		}
		switch {
		case a.err == errMore, a.err == errUnlisted:
			left = append(left, i)
		case sc != releaseSlotScript && s.apart(a.err) && manyKeys(call(&reqs[i]).cmd(ctx)):
			apart = append(apart, i)
		default:
			err = firstError(err, a.err)
		}
	}
	if len(items) == 1 && s.replicas == 0 { // what s.send would do, with fewer allocations
		answered(items[0], sc.run(ctx, m, call(&reqs[items[0]]).cmd(ctx)))
		return left, apart, err
	}
	cmds := make([]*redis.Cmd, len(items))
	for n, i := range items {
		cmds[n] = call(&reqs[i]).cmd(ctx)
	}
	for n, a := range s.send(ctx, m, sc, cmds) {
		answered(items[n], a)
	}
	return left, apart, err
}

// together reports whether a script may have several keys of one part.
func (s *store) together() bool { return s.joint && !s.crossed.Load() }

// apart reports whether the server has refused a script because of its keys' slots. A script with one key may
// succeed then.
func (s *store) apart(err error) bool {
	if err != nil && redis.HasErrorPrefix(err, "CROSSSLOT") {
		s.crossed.Store(true)
		return true
	}
	return redis.IsTryAgainError(err)
}

// send makes a batch of calls in one pipeline. With Config.Replicas, a script that grants, binds or prolongs
// a lock goes through acknowledged.
func (s *store) send(ctx context.Context, m *merger, sc *script, cmds []*redis.Cmd) []answer {
	if s.replicas > 0 && sc != releaseScript && sc != releaseSlotScript && sc != reserveScript {
		return s.acknowledged(ctx, m, sc, cmds)
	}
	return sc.runAll(ctx, m, cmds)
}
