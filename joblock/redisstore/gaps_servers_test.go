//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"

	"github.com/joblock/toolkit/joblock/driver"
)

// work is what the server does for a call: scripts, the commands in them, and µs.
func (k *kit) work(call func()) (scripts, commands, micros int) {
	k.t.Helper()
	ctx := context.Background()
	if err := k.rdb.ConfigResetStat(ctx).Err(); err != nil {
		k.t.Fatal(err)
	}
	call()
	info, err := k.rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		k.t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`cmdstat_(\S+):calls=(\d+),usec=(\d+)`).FindAllStringSubmatch(info, -1) {
		calls, _ := strconv.Atoi(m[2])
		used, _ := strconv.Atoi(m[3])
		switch {
		case m[1] == "evalsha" || m[1] == "eval":
			scripts, micros = scripts+calls, micros+used
		case m[1] == "config|resetstat" || m[1] == "info":
		default:
			commands += calls
		}
	}
	return scripts, commands, micros
}

// The server does nothing else during a script, so none may go through all who wait.
func TestNoScriptGoesThroughTheWholeQueue(t *testing.T) {
	ctx := context.Background()
	k := newOwnKit(t)
	// bounded checks what one call may cost: a few commands, and two for each place that
	// it drops.
	bounded := func(what string, scripts, commands, micros, each int) {
		t.Helper()
		t.Logf("%s: %d scripts, %d commands, %d µs of the server's time, %d µs a script", what, scripts, commands, micros, micros/max(scripts, 1))
		if commands > each*scripts {
			t.Errorf("%s: %d commands in %d scripts, want %d in each at most", what, commands, scripts, each)
		}
	}
	state := func(key string, owner string, waiters int) {
		t.Helper()
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
		if err != nil || recs[0].Owner != owner || recs[0].State != driver.StateHeld || recs[0].Waiters != waiters {
			t.Errorf("%s: %s by %q with %d waiters, %v; want it held by %q with %d", key, recs[0].State, recs[0].Owner, recs[0].Waiters, err, owner, waiters)
		}
	}
	const few, steps = 20, 20 + 2*100
	wait := func(key string) driver.AcquireRequest {
		return driver.AcquireRequest{Key: key, Owner: "newcomer", Nonce: "newcomer", TTL: long, Retain: long, Inbox: "inbox", Patience: long}
	}

	// All but the last have died.
	term := k.stage("dead", crowd-1)
	scripts, commands, micros := k.work(func() {
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	})
	bounded("release over the dead", scripts, commands, micros, steps)
	state("dead", fmt.Sprintf("owner of call %d", crowd-1), 0)

	// The same where the process that frees the key dies in the middle. The next caller goes on:
	// one that waits gets the key if no other waiter is left, and one that does not wait gets the name of its holder.
	for _, newcomers := range []bool{true, false} {
		key := fmt.Sprintf("dead releaser, newcomers %t", newcomers)
		dead := crowd - 1
		if newcomers {
			dead = crowd
		}
		term = k.stage(key, dead)
		w := k.releaseCall(&driver.ReleaseRequest{Term: term, Nonce: "end", Retain: long}, "")
		scripts, commands, micros = k.work(func() {
			a := releaseScript.run(ctx, k.store.calls, w.cmd(ctx))
			if _, err := parseReply(releaseScript, a.val); a.err != nil || err != errMore {
				t.Fatalf("release: %v, %v; want it to leave off", a.val, a.err)
			}
		})
		bounded("a release that leaves off", scripts, commands, micros, steps)
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{key}})
		if err != nil || recs[0].State != driver.StateFree || recs[0].Waiters < crowd-200 {
			t.Errorf("%s with %d waiters, %v; want it free, with those who are left", recs[0].State, recs[0].Waiters, err)
		}
		req := wait(key)
		if !newcomers {
			req.Inbox = ""
		}
		want, owner := driver.OutcomeOK, req.Owner
		if !newcomers {
			want, owner = driver.OutcomeHeld, fmt.Sprintf("owner of call %d", crowd-1)
		}
		scripts, commands, micros = k.work(func() {
			r, err := k.Acquire(ctx, req)
			wantOutcome(t, "acquire", r, err, want)
		})
		bounded("an acquire that goes on", scripts, commands, micros, steps)
		state(key, owner, 0)
	}

	// All are alive: joining, asking, leaving at either end and in the middle, one place
	// after the other.
	term = k.stage("alive", 0)
	leave := func(n int) {
		t.Helper()
		call := fmt.Sprintf("call %d", n)
		scripts, commands, micros := k.work(func() {
			rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(driver.Term{Key: "alive", Owner: "owner of " + call, Grant: call})})
			wantOutcomes(t, "leave", rs, err, 1, driver.OutcomeNotOwner)
		})
		bounded("leave "+call, scripts, commands, micros, few)
	}
	left := 0
	for _, n := range []int{1, 2, 3, crowd / 2, crowd/2 + 2, crowd/2 + 1, crowd - 2, crowd - 1, 0} {
		leave(n)
		left++
	}
	scripts, commands, micros = k.work(func() {
		for range 2 {
			r, err := k.Acquire(ctx, wait("alive"))
			wantOutcome(t, "join", r, err, driver.OutcomeHeld)
		}
	})
	bounded("join and ask", scripts, commands, micros, few)
	state("alive", term.Owner, crowd-left+1)
	scripts, commands, micros = k.work(func() {
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(term)})
		wantOutcomes(t, "release", rs, err, 1, driver.OutcomeOK)
	})
	bounded("release to the first", scripts, commands, micros, few)
	state("alive", "owner of call 4", crowd-left)

	// Everybody leaves, from the end to the begin but for the first: one gap.
	term = k.stage("one gap", 0)
	var most int
	reqs := make([]driver.ReleaseRequest, 0, 1000)
	for n := 1; n < crowd-1; n++ {
		call := fmt.Sprintf("call %d", n)
		reqs = append(reqs, k.release(driver.Term{Key: "one gap", Owner: "owner of " + call, Grant: call}))
		if len(reqs) == cap(reqs) || n == crowd-2 {
			scripts, commands, _ := k.work(func() {
				if _, err := k.Release(ctx, reqs); err != nil {
					t.Fatal(err)
				}
			})
			most = max(most, commands/scripts)
			reqs = reqs[:0]
		}
	}
	if most > few {
		t.Errorf("leaving took %d commands", most)
	}
	state("one gap", term.Owner, 2)
	first := driver.Term{Key: "one gap", Owner: "owner of call 0", Grant: "call 0"}
	scripts, commands, micros = k.work(func() {
		rs, err := k.Release(ctx, []driver.ReleaseRequest{k.release(first)})
		wantOutcomes(t, "leave before the gap", rs, err, 1, driver.OutcomeNotOwner)
	})
	bounded("leave before a gap", scripts, commands, micros, few)
	state("one gap", term.Owner, 1)
}
