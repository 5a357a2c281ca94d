//go:build servers

package redisstore

import (
	"bytes"
	"context"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// commandCalls is how often the server has done a command, scripts included.
func commandCalls(t testing.TB, rdb redis.UniversalClient, command string) int {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`cmdstat_` + command + `:calls=(\d+)`).FindStringSubmatch(info)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A memo may have 64 KiB, and nothing else is done by the server while a script reads it.
func TestMemosAreReadForThoseWhoAskOnly(t *testing.T) {
	k := newOwnKit(t)
	ctx := context.Background()
	term := k.acquire("key")
	first := k.renewal(term)
	first.Memo = bytes.Repeat([]byte("m"), driver.MaxMemoBytes)
	rs, err := k.Renew(ctx, []driver.RenewRequest{first})
	wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
	pushes := k.rdb.Subscribe(ctx, k.channel("inbox"))
	defer pushes.Close()
	if _, err := pushes.Receive(ctx); err != nil {
		t.Fatal(err)
	}

	round := func(memo bool) {
		t.Helper()
		want := 0
		if memo {
			want = driver.MaxMemoBytes
		}
		rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(term)})
		wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
		r, err := k.Park(ctx, k.park(term))
		wantOutcome(t, "park", r, err, driver.OutcomeOK)
		rs, err = k.Reserve(ctx, []driver.ReserveRequest{{Key: "key", Job: "q/1", Reserve: long, Retain: long}})
		wantOutcomes(t, "reserve", rs, err, 1, driver.OutcomeOK)
		r, err = k.Resume(ctx, driver.ResumeRequest{Key: "key", Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1", Grace: long, Memo: memo})
		wantOutcome(t, "resume", r, err, driver.OutcomeOK)
		if len(r.Memo) != want {
			t.Errorf("resume: a memo of %d bytes, want %d", len(r.Memo), want)
		}
		if page, err := k.List(ctx, driver.ListRequest{}); err != nil || len(page.Records) != 1 || len(page.Records[0].Memo) != 0 {
			t.Errorf("list: %d records, %v; want one without its memo", len(page.Records), err)
		}
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}, Memo: memo})
		if err != nil || len(recs[0].Memo) != want {
			t.Errorf("inspect: a memo of %d bytes, %v; want %d", len(recs[0].Memo), err, want)
		}
		rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(driver.Term{Key: "key", Owner: term.Owner})})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
		req := driver.AcquireRequest{Key: "key", Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Memo: memo}
		for range 2 { // the second time it finds its grant
			r, err = k.Acquire(ctx, req)
			wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
			if len(r.Memo) != want {
				t.Errorf("acquire: a memo of %d bytes, want %d", len(r.Memo), want)
			}
		}
		term.Fence = r.Fence
	}
	before := commandCalls(t, k.rdb, "hget")
	round(false)
	if n := commandCalls(t, k.rdb, "hget") - before; n != 0 {
		t.Errorf("%d fields other than the state were read by a call that did not ask for the memo", n)
	}
	before = commandCalls(t, k.rdb, "hget")
	round(true)
	if n := commandCalls(t, k.rdb, "hget") - before; n != 4 {
		t.Errorf("the memo was read %d times, want once for each of four calls", n)
	}

	// What is pushed is the call, and no more.
	r, err := k.Acquire(ctx, driver.AcquireRequest{Key: "key", Owner: "next", Nonce: "waits", TTL: long, Retain: long, Inbox: "inbox", Patience: long, Memo: true})
	wantOutcome(t, "wait", r, err, driver.OutcomeHeld)
	rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
	wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	if m, err := pushes.ReceiveMessage(ctx); err != nil || m.Payload != "waits" {
		t.Errorf("pushed %q, %v", m.Payload, err)
	}
}
