package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
)

// traffic holds single calls back until it is opened, and notes down pipelines.
type traffic struct {
	gate chan struct{}
	fail error // of pipelines

	mu        sync.Mutex
	pipelines []int // their lengths
	until     time.Time
}

func (h *traffic) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (h *traffic) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		<-h.gate
		return next(ctx, cmd)
	}
}

func (h *traffic) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if cmds[0].Name() != "echo" { // go-redis says hello in a pipeline, too
			return next(ctx, cmds)
		}
		h.mu.Lock()
		h.pipelines = append(h.pipelines, len(cmds))
		h.until, _ = ctx.Deadline()
		h.mu.Unlock()
		if h.fail != nil {
			return h.fail
		}
		return next(ctx, cmds)
	}
}

// mergeKit is a merger with as many calls under way as are sent at once.
type mergeKit struct {
	t *testing.T
	*merger
	traffic *traffic
	calls   sync.WaitGroup
}

func newMergeKit(t *testing.T) *mergeKit {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(t).Addr(), MaxRetries: -1})
	t.Cleanup(func() { rdb.Close() })
	k := &mergeKit{t: t, merger: newMerger(rdb, rdb), traffic: &traffic{gate: make(chan struct{})}}
	rdb.AddHook(k.traffic)
	k.start(t.Context(), mergeAbove)
	return k
}

// start makes n calls and waits until they are under way, or wait for that.
func (k *mergeKit) start(ctx context.Context, n int) {
	k.t.Helper()
	before := k.entered()
	for i := range n {
		k.calls.Go(func() {
			word := fmt.Sprint("word ", i)
			if a := k.do(ctx, redis.NewCmd(ctx, "echo", word)); a.err != nil || a.val != word {
				k.t.Errorf("call %d was answered %v, %v", i, a.val, a.err)
			}
		})
	}
	for k.entered() < before+n {
		time.Sleep(time.Millisecond)
	}
}

func (k *mergeKit) entered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.underway
	for _, p := range k.waiting {
		n += len(p.cmds)
	}
	return n
}

// finish lets all calls go and checks that none is left.
func (k *mergeKit) finish() {
	k.t.Helper()
	close(k.traffic.gate)
	k.calls.Wait()
	for k.entered() != 0 {
		time.Sleep(time.Millisecond)
	}
}

func TestCallsAboveTheLimitGoTogether(t *testing.T) {
	k := newMergeKit(t)
	k.start(t.Context(), mergeMost+20)
	if n := len(k.traffic.pipelines); n != 0 {
		t.Errorf("%d pipelines before a call was answered", n)
	}
	k.finish()
	slices.Sort(k.traffic.pipelines)
	if want := []int{20, mergeMost}; !slices.Equal(k.traffic.pipelines, want) {
		t.Errorf("pipelines of %v calls, want %v", k.traffic.pipelines, want)
	}
}

func TestMergedCallEndsWithItsContext(t *testing.T) {
	k := newMergeKit(t)
	k.start(t.Context(), 3)
	// A Locker tells a time that is up from a server that is away by the error that
	// go-redis would give, which is not the cause.
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Millisecond, errors.New("MaxWait is over"))
	defer cancel()
	if a := k.do(ctx, redis.NewCmd(ctx, "echo", "unheard")); !errors.Is(a.err, context.DeadlineExceeded) {
		t.Errorf("answered %v, %v, want context.DeadlineExceeded", a.val, a.err)
	}
	k.finish()
}

// Under more load than the server takes, it would mostly serve calls that no caller waits
// for any more, and the more so the longer it goes on.
func TestAbandonedCallIsNotSent(t *testing.T) {
	k := newMergeKit(t)
	k.start(t.Context(), 2)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range 3 {
		if a := k.do(gone, redis.NewCmd(gone, "echo", "unheard")); !errors.Is(a.err, context.Canceled) {
			t.Errorf("answered %v, %v, want context.Canceled", a.val, a.err)
		}
	}
	k.start(t.Context(), 3)
	k.finish()
	if !slices.Equal(k.traffic.pipelines, []int{5}) {
		t.Errorf("pipelines of %v calls, want the 5 that callers waited for", k.traffic.pipelines)
	}
	alone := newMergeKit(t)
	if a := alone.do(gone, redis.NewCmd(gone, "echo", "unheard")); !errors.Is(a.err, context.Canceled) {
		t.Errorf("answered %v, %v, want context.Canceled", a.val, a.err)
	}
	alone.finish()
	if len(alone.traffic.pipelines) != 0 {
		t.Errorf("pipelines of %v calls, want none", alone.traffic.pipelines)
	}
}

func TestPipelineLastsAsLongAsTheMostPatientOfItsCallers(t *testing.T) {
	k := newMergeKit(t)
	for _, d := range []time.Duration{time.Minute, time.Hour, 30 * time.Minute} {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		k.start(ctx, 1)
	}
	k.finish()
	if left := time.Until(k.traffic.until); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the pipeline had %v left, want the hour of one of its calls", left)
	}
	patient := newMergeKit(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	patient.start(context.Background(), 1)
	patient.start(ctx, 1)
	patient.finish()
	if left := time.Until(patient.traffic.until); left < time.Hour {
		t.Errorf("the pipeline had %v left, though one of its calls has no deadline", left)
	}
}

func TestCallOfAFailedPipelineIsRepeatedByItself(t *testing.T) {
	k := newMergeKit(t)
	k.traffic.fail = errors.New("READONLY You can't write against a read only replica.")
	k.start(t.Context(), 5)
	k.finish() // the calls check their answers
	if len(k.traffic.pipelines) == 0 {
		t.Error("no pipeline has failed")
	}
}

// shownCmds is a sender that notes which command of a bundle the hooks see.
type shownCmds struct {
	sender
	seen []*redis.Cmd
}

func (s *shownCmds) Process(_ context.Context, cmd redis.Cmder) error {
	b := cmd.(*bundle)
	s.seen = append(s.seen, b.Cmd)
	for _, cmd := range b.cmds {
		cmd.SetVal("answer")
	}
	return nil
}

// Calls that belong together are in a pipeline that has been sent when the caller gives up, or that fails. The pipeline may
// still write to its commands, so the caller gets others, and hooks see the command that is sent again.
func TestCallsTogetherInASentPipeline(t *testing.T) {
	for name, tt := range map[string]struct {
		end  func(cancel func(), p *pipeline)
		err  error
		seen int
	}{
		"given up": {func(cancel func(), _ *pipeline) { cancel() }, context.Canceled, 0},
		"failed": {func(_ func(), p *pipeline) {
			for _, cmd := range p.cmds {
				cmd.SetErr(net.ErrClosed)
			}
			close(p.done)
		}, nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				via := new(shownCmds)
				m := &merger{via: via, above: 1, underway: 1}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				first := []*redis.Cmd{redis.NewCmd(ctx, "get", "a"), redis.NewCmd(ctx, "get", "b")}
				b := &bundle{first[1], slices.Clone(first)}
				go m.together(ctx, b)
				synctest.Wait()
				p := m.take()
				tt.end(cancel, p)
				synctest.Wait()
				for i, cmd := range b.cmds {
					if cmd == first[i] || !errors.Is(cmd.Err(), tt.err) {
						t.Errorf("command %d: the pipeline's own: %t, error %v, want %v", i, cmd == first[i], cmd.Err(), tt.err)
					}
				}
				if len(via.seen) != tt.seen || tt.seen > 0 && via.seen[0] != b.cmds[1] {
					t.Errorf("hooks saw %v, want %d of %v", via.seen, tt.seen, b.cmds[1])
				}
			})
		})
	}
}

func TestOnlyCallsToOneServerAreMerged(t *testing.T) {
	many := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})
	defer many.Close()
	if m := newMerger(many, many); m.above != math.MaxInt {
		t.Errorf("a cluster's calls are merged above %d", m.above)
	}
	one := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer one.Close()
	s := must(newStore(one, nil))
	defer s.Close()
	if s.calls.above != mergeAbove || s.calls.rdb != s.ops {
		t.Errorf("one server's calls are merged above %d", s.calls.above)
	}
	if s.renewals.above != math.MaxInt || s.renewals.rdb != s.renew {
		t.Errorf("renewals, which come in batches of their own, are merged above %d", s.renewals.above)
	}
}
