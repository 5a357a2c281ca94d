package redisstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// fastStages names the short stage of each script that has one.
var fastStages = map[*script]string{
	acquireScript: "record#fast grant",
	takeScript:    "record#fast take",
	resumeScript:  "record#fast resume",
	releaseScript: "record#fast end",
}

// withScripts calls f while the scripts that have a short stage are those that the function change returns.
func withScripts(t *testing.T, change func(source, stage string) string, f func()) {
	t.Helper()
	for sc, name := range fastStages {
		whole := *sc
		source, stage := sc.source.(string), stages[name]
		if strings.Count(source, stage) != 1 {
			t.Fatalf("the script %s does not have the stage %s once", sc.op, name)
		}
		source = change(source, stage)
		sc.source, sc.sha = source, redis.NewScript(source).Hash()
		defer func() { *sc = whole }()
	}
	f()
}

func withoutUsualStages(source, stage string) string { return strings.Replace(source, stage, "", 1) }

// onlyFastStages returns a script whose answer is an error to the Store, unless the short stage has answered.
func onlyFastStages(source, stage string) string {
	before, _, _ := strings.Cut(source, stage)
	return before + stage + "return {}\n"
}

// A job's lock is taken, resumed and released the short way, and then taken for the next job or acquired.
func TestFastJobsAreShort(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		withScripts(t, onlyFastStages, func() { fastJobs(t, k) })
	})
}

func fastJobs(t *testing.T, k *kit) {
	ctx := context.Background()
	for life := range 3 {
		take := k.taking("key")
		take.Nonce = fastName(take.Nonce)
		r, err := k.Take(ctx, take)
		if wantOutcome(t, "take", r, err, driver.OutcomeOK); life > 0 && r.Ended != driver.EndedDone {
			t.Errorf("life %d: the last ownership ended as %s, want done", life, r.Ended)
		}
		r, err = k.Resume(ctx, driver.ResumeRequest{
			Key: "key", Owner: take.Owner, Nonce: fastName(k.nonce()), TTL: long, Retain: long, Holder: "a worker", Job: take.Job, Reserve: long,
			Grace: long, Fence: r.Fence,
		})
		wantOutcome(t, "resume", r, err, driver.OutcomeOK)
		rec, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
		if err != nil || rec[0].State != driver.StateHeld || rec[0].Lease < long-time.Second || rec[0].Reserved < 2*long-time.Second {
			t.Errorf("life %d: while the job runs the record is %+v, %v", life, rec, err)
		}
		rs, err := k.Release(ctx, []driver.ReleaseRequest{{
			Term: driver.Term{Key: "key", Owner: take.Owner, Fence: r.Fence}, Nonce: fastName(k.nonce()), Retain: long,
			Reason: "job done", Job: take.Job, Done: true,
		}})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		rec, err = k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
		if err != nil || rec[0].Ended != driver.EndedDone || rec[0].Reason != "job done" || rec[0].Job != "q/1" || rec[0].Holder != "a worker" {
			t.Errorf("life %d: after the job the record is %+v, %v", life, rec, err)
		}
	}
	r, err := k.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "another", Nonce: fastName(k.nonce()), TTL: long, Retain: long})
	if wantOutcome(t, "acquire", r, err, driver.OutcomeOK); r.Ended != driver.EndedDone {
		t.Errorf("acquire: the last ownership ended as %s, want done", r.Ended)
	}
	_, err = k.Release(ctx, []driver.ReleaseRequest{{
		Term: driver.Term{Key: "key", Owner: "another", Fence: r.Fence}, Nonce: fastName(k.nonce()), Kind: driver.ReleaseIdle, Retain: long,
	}})
	if !errors.Is(err, errReply) {
		t.Errorf("a release that is not fast: %v, want %v: the test would see no script", err, errReply)
	}
}

// twin is a Store on a miniredis, and what the test looks at behind the Store.
type twin struct {
	*store
	server *miniredis.Miniredis
}

// sameText replaces what differs between the short stages and the general stages, and means the same: a nonce that
// stands for none, and the letter that says how long the nonces are.
var sameText = strings.NewReplacer(`\n-------------\n`, `\n\n`, `"jobh`, `"jobH`, `"jobr`, `"jobR`, `"jobd`, `"jobD`, `"jobf`, `"jobF`)

// text returns the records and the index. The keys for proofs, which a Store makes in the background, are
// none of both.
func (w twin) text() string {
	var all strings.Builder
	for _, key := range []string{w.index(0), w.prefix + "a", w.prefix + "b"} {
		fmt.Fprintf(&all, "%q, %s to live: ", key, w.server.TTL(key))
		switch w.server.Type(key) {
		case "string":
			text, _ := w.server.Get(key)
			fmt.Fprintf(&all, "%q\n", text)
		case "hash":
			fields, _ := w.server.HKeys(key)
			for _, field := range fields {
				fmt.Fprintf(&all, " %q: %q", field, w.server.HGet(key, field))
			}
			all.WriteByte('\n')
		case "zset":
			set, _ := w.server.SortedSet(key)
			fmt.Fprintf(&all, "%v\n", set)
		}
	}
	return sameText.Replace(all.String())
}

// Each call leaves the same record, index and time to live, and has the same answer, with the short stages and without.
func TestFastStagesDecideAsTheGeneralOnes(t *testing.T) {
	redistest.Ran(t, redistest.MiniBackend())
	var twins [2]twin
	for i := range twins {
		m := redistest.MiniServer(t)
		m.ClockTTL(false)
		rdb := redis.NewClient(&redis.Options{Addr: m.Addr()})
		t.Cleanup(func() { rdb.Close() })
		k := newKit(t, rdb)
		giveTime(t, k.store, rdb)
		sub := rdb.Subscribe(t.Context(), k.channel("inbox"))
		t.Cleanup(func() { sub.Close() })
		if _, err := sub.Receive(t.Context()); err != nil {
			t.Fatal(err)
		}
		twins[i] = twin{k.store, m}
	}
	for seed := range uint64(share(100)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { compareStages(t, twins, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func compareStages(t *testing.T, twins [2]twin, dice *rand.Rand) {
	ctx := context.Background()
	now := time.UnixMicro(1_700_000_000_123_456)
	for _, w := range twins {
		w.server.FlushAll()
		w.server.SetTime(now)
	}
	any := func(texts ...string) string { return texts[dice.IntN(len(texts))] }
	often := func() bool { return dice.IntN(6) > 0 } // what the short stages need
	period := func() time.Duration {
		return []time.Duration{time.Millisecond, 2 * time.Second, 3500 * time.Millisecond, long}[dice.IntN(4)]
	}
	var fences [3]int64
	var nonces []string
	for step := range 80 {
		key := any("a", "b")
		nonce := fmt.Sprintf("%013d", step)
		if !often() {
			nonce = "short"
		}
		if len(nonces) > 0 && !often() {
			nonce = nonces[dice.IntN(len(nonces))]
		}
		nonces = append(nonces, nonce)
		term := driver.Term{Key: key, Owner: any("one", "one", "one", "other"), Fence: fences[dice.IntN(3)]}
		job := any("q/1", "q/1", "q/1", "q/2", "")
		call := dice.IntN(8)
		acquire := driver.AcquireRequest{Key: key, Owner: term.Owner, Nonce: nonce, TTL: period(), Retain: period(), Holder: any("", "host")}
		if !often() {
			acquire.Inbox, acquire.Patience = any("inbox", "unheard"), period()
		}
		take := driver.TakeRequest{
			Key: key, Owner: term.Owner, Nonce: nonce, Holder: any("", "host"), Job: any("q/1", "q/1", "q/2"), Reserve: period(),
			Retain: period(), Grace: period(),
		}
		if dice.IntN(3) == 0 {
			take.Nonce, take.Patience, take.Most = fmt.Sprintf("%013s", take.Job), period(), dice.IntN(3)
		}
		resume := driver.ResumeRequest{
			Key: key, Owner: term.Owner, Nonce: nonce, TTL: period(), Retain: period(), Holder: any("", "host"), Job: job,
			Memo: !often(), Grace: period(), Unpark: !often(), Back: any("q/1", "q/2", ""), Fence: fences[dice.IntN(3)],
		}
		if often() {
			resume.Reserve = period()
		}
		park := driver.ParkRequest{Term: term, Nonce: nonce, Reserve: period(), Retain: period(), Job: job, Grace: period()}
		renew := driver.RenewRequest{Term: term, TTL: period(), Retain: period(), Reserve: period()}
		if !often() {
			renew.Memo = []byte(any("", "memo"))
		}
		release := driver.ReleaseRequest{Term: term, Nonce: nonce, Retain: period(), Reason: any("", "why")}
		if often() {
			release.Job, release.Done = job, job != "" && often()
		} else {
			release.Kind = driver.ReleaseKind(dice.IntN(4))
		}
		if often() {
			release.Brief = time.Second
		}
		if !often() {
			release.Starts = true
		}
		var replies [2]driver.Reply
		var text [2]string
		for i, w := range twins {
			run := func() {
				var err error
				switch call {
				case 0:
					replies[i], err = w.Acquire(ctx, acquire)
				case 1, 2:
					replies[i], err = first(w.Take(ctx, []driver.TakeRequest{take}))
				case 3, 4:
					replies[i], err = first(w.Resume(ctx, []driver.ResumeRequest{resume}))
				case 5:
					replies[i], err = first(w.Park(ctx, []driver.ParkRequest{park}))
				case 6:
					replies[i], err = first(w.Renew(ctx, []driver.RenewRequest{renew}))
				case 7:
					replies[i], err = first(w.Release(ctx, []driver.ReleaseRequest{release}))
				}
				if err != nil {
					t.Fatalf("step %d, call %d: %v", step, call, err)
				}
				replies[i].Hint = "" // only the short stage knows the record so well
			}
			if i == 0 {
				run()
			} else {
				withScripts(t, withoutUsualStages, run)
			}
			text[i] = w.text()
		}
		if !reflect.DeepEqual(replies[0], replies[1]) || text[0] != text[1] {
			t.Fatalf("step %d, call %d: with the short stage\n%+v\n%s\nwithout\n%+v\n%s", step, call, replies[0], text[0], replies[1], text[1])
		}
		if replies[0].Outcome == driver.OutcomeOK && replies[0].Fence != 0 {
			fences[2], fences[1] = replies[0].Fence, replies[0].Fence
		}
		d := []time.Duration{0, time.Microsecond, 700 * time.Microsecond, 300 * time.Millisecond, 2 * time.Second, -time.Second}[dice.IntN(6)]
		now = now.Add(d)
		for _, w := range twins {
			w.server.SetTime(now)
			w.server.FastForward(max(0, d.Truncate(time.Millisecond))) // a time to live is in whole milliseconds
		}
	}
}

// A release that says nothing but that the job is done is recorded as that.
func TestDoneWithoutAJobIsDone(t *testing.T) {
	onBoth(t, func(t *testing.T, k *kit) {
		k.fast = true
		term := k.acquire("key")
		rs, err := k.Release(context.Background(), []driver.ReleaseRequest{{Term: term, Nonce: k.nonce(), Retain: long, Done: true}})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		rec, err := k.Inspect(context.Background(), driver.InspectRequest{Keys: []string{"key"}})
		if err != nil || rec[0].Ended != driver.EndedDone {
			t.Errorf("the lock ended as %s, %v; want done", rec[0].Ended, err)
		}
	})
}
