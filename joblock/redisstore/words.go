package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
)

// headLen is the number of words before the first argument of a script with one
// key: command, script, number of keys, key.
const headLen = 4

// words are one call of a script, in one allocation: go-redis takes pointers to
// strings and integers, which fit into an interface as they are, while each value
// would be boxed.
type words struct {
	call  redis.Cmd
	list  [headLen + 11]any
	texts [10]string
	nums  [5]int64

	n, text, num int // how much of each is used
}

// newWords begins a call of sc for the keys; the first says where in a cluster.
func newWords(sc *script, keys ...string) *words {
	w := &words{}
	w.list[0], w.list[1], w.list[2] = sc.evalsha, sc.sha, len(keys)
	w.n = 3
	for _, key := range keys {
		w.str(key)
	}
	return w
}

func (w *words) str(s string) *words {
	w.texts[w.text] = s
	w.list[w.n] = &w.texts[w.text]
	w.text++
	w.n++
	return w
}

// millis adds a duration in whole milliseconds, rounded up: a lease that is longer
// in the store than its holder believes is safe, the reverse is not. It is never
// below 1, as PEXPIRE with less would delete the record and its fence.
func (w *words) millis(d time.Duration) *words {
	return w.int(max(1, int64((d+time.Millisecond-1)/time.Millisecond)))
}

// hold adds a duration that may be none.
func (w *words) hold(d time.Duration) *words {
	return w.int(max(0, int64((d+time.Millisecond-1)/time.Millisecond)))
}

func (w *words) micros(d time.Duration) *words { return w.int(max(0, d.Microseconds())) }

func (w *words) int(n int64) *words {
	w.nums[w.num] = n
	w.list[w.n] = &w.nums[w.num]
	w.num++
	w.n++
	return w
}

func (w *words) bytes(b []byte) *words {
	w.list[w.n] = b
	w.n++
	return w
}

func (w *words) flag(b bool) *words {
	if b {
		return w.str("1")
	}
	return w.str("0")
}

// cmd makes the command. It is a plain Cmd rather than the result of
// redis.Script.Run, which copies its arguments twice and has no form for pipelines.
func (w *words) cmd(ctx context.Context) *redis.Cmd {
	w.call = *newCmd(ctx, w.list[:w.n])
	return &w.call
}

func newCmd(ctx context.Context, list []any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, list...)
	cmd.SetFirstKeyPos(headLen - 1) // what a ClusterClient finds the node by
	return cmd
}
