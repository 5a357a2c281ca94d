package joblock_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/memo"
)

// Bad input is refused with a clear error that names the value and the bound, and
// nothing is sent to the store.
func TestBadInputIsRefusedBeforeTheStoreIsAsked(t *testing.T) {
	type call = func(*kit) error
	acquire := func(key string, opts ...joblock.AcquireOption) call {
		return func(k *kit) error {
			lock, err := k.locks.Acquire(k.Context(), key, opts...)
			if lock != nil {
				k.Error("got a lock")
			}
			return err
		}
	}
	type bad struct {
		name string
		call call
		says []string
	}
	due := func(part, limit int, claim time.Duration) call {
		return func(k *kit) error {
			_, err := jobs.Due(k.Context(), k.locks, jobs.DueRequest{Part: part, Limit: limit, Claim: claim})
			return err
		}
	}
	settle := func(job string, again time.Duration) call {
		return func(k *kit) error {
			entry := func(job string, again time.Duration) jobs.Settlement {
				return jobs.Settlement{Entry: jobs.Entry{Key: "key", Job: job}, Again: again}
			}
			return jobs.Settle(k.Context(), k.locks, entry("q/1", 0), entry(job, again))
		}
	}
	reserve := func(job string, hold time.Duration) call {
		return func(k *kit) error {
			return jobs.Reserve(k.Context(), k.locks, jobs.Reservation{Key: "key", Job: job, For: hold})[0]
		}
	}
	cases := []bad{
		{"no jobs due", due(0, 0, time.Second), []string{"limit is 0, must be from 1 to 1000"}},
		{"too many jobs due", due(0, 1001, time.Second), []string{"limit is 1001, must be from 1 to 1000"}},
		{"jobs claimed for no time", due(0, 1, 0), []string{"claim is 0s, must be at least 1ms"}},
		{"jobs claimed for years", due(0, 1, 9000*time.Hour), []string{"claim is 9000h0m0s, must be at most 8784h"}},
		{"jobs of a part below the first", due(-1, 1, time.Second), []string{"part is -1, must be from 0 to 0"}},
		{"jobs of a part beyond the last", due(1, 1, time.Second), []string{"part is 1, must be from 0 to 0"}},
		{"settling no job", settle("", 0), []string{"job is empty"}},
		{"settled for no time", settle("q/1", time.Microsecond), []string{"Settlement.Again is 1µs, must be at least 1ms"}},
		{"settled for years", settle("q/1", 9000*time.Hour), []string{"Settlement.Again is 9000h0m0s, must be at most 8784h"}},
		{"settled for the past", settle("q/1", -time.Second), []string{"Settlement.Again is -1s, must be at least 1ms"}},
		{"reservation for no job", reserve("", 0), []string{"job is empty"}},
		{"reservation for a long job", reserve(strings.Repeat("j", 257), 0), []string{`"key"`, "job has 257 bytes", "at most 256"}},
		{"negative reservation", reserve("q/1", -1), []string{"Reservation.For is -1ns, must be at least 1ms"}},
		{"long reservation", reserve("q/1", 9000*time.Hour), []string{"Reservation.For", "at most 8784h"}},
		{"release for no job", func(k *kit) error {
			return jobs.Free(k.Context(), k.locks, jobs.Release{Key: "key", Job: ""})[0]
		}, []string{"job is empty"}},
		{"long reason for a job", func(k *kit) error {
			return jobs.Free(k.Context(), k.locks, jobs.Release{Key: "key", Job: "q/1", Reason: strings.Repeat("r", 257)})[0]
		}, []string{"reason has 257 bytes", "at most 256"}},
		{"zero TTL", acquire("key", joblock.TTL(0)), []string{`"key"`, "TTL is 0s", "at least 1ms"}},
		{"negative TTL", acquire("key", joblock.TTL(-time.Second)), []string{"TTL is -1s", "at least 1ms"}},
		{"sub-millisecond TTL", acquire("key", joblock.TTL(999*time.Microsecond)), []string{"TTL is 999µs", "at least 1ms"}},
		{"huge TTL", acquire("key", joblock.TTL(1<<62)), []string{"TTL is 1281023h", "at most 24h0m0s"}},
		{"TTL just above the bound", acquire("key", joblock.TTL(24*time.Hour+1)), []string{"at most 24h0m0s"}},
		{"negative MaxWait", acquire("key", joblock.MaxWait(-1)), []string{"MaxWait is -1ns", "not be negative"}},
		{"zero MaxRenew", acquire("key", joblock.MaxRenew(0)), []string{"MaxRenew is 0s", "at least 1ms"}},
		{"MaxRenew of -1ns", acquire("key", joblock.MaxRenew(-1)), []string{"MaxRenew is -1ns", "at least 1ms"}},
		{"huge MaxRenew", acquire("key", joblock.MaxRenew(1<<62)), []string{"MaxRenew", "at most 8784h"}},
		{"zero Retain", acquire("key", joblock.Retain(0)), []string{"Retain is 0s"}},
		{"empty owner", acquire("key", joblock.Owner("")), []string{"owner is empty"}},
		{"long owner", acquire("key", joblock.Owner(strings.Repeat("o", 129))), []string{"owner has 129 bytes", "at most 128"}},
		{"owner with a control character", acquire("key", joblock.Owner("a\x00b")), []string{"owner", "U+0000", "byte 1"}},
		{"long holder", acquire("key", joblock.Holder(strings.Repeat("h", 257))), []string{"holder has 257 bytes", "at most 256"}},
		{"nil option", acquire("key", nil), []string{"an option is nil"}},
		{"nil function", func(k *kit) error { return k.locks.Do(k.Context(), "key", nil) }, []string{"function is nil"}},
		{"no keys", func(k *kit) error { _, err := k.locks.AcquireAll(k.Context(), nil); return err }, []string{"no keys"}},
		{"one bad key of several", func(k *kit) error {
			_, err := k.locks.AcquireAll(k.Context(), []string{"a", "b\n"})
			return err
		}, []string{"U+000A", "byte 1"}},
		{"nil option for several", func(k *kit) error {
			_, err := k.locks.AcquireAll(k.Context(), []string{"a"}, nil)
			return err
		}, []string{"an option is nil"}},
		{"zero token", func(k *kit) error { _, err := k.locks.Resume(k.Context(), joblock.Token{}); return err }, []string{"zero token"}},
		{"idle release of the zero token", func(k *kit) error {
			return k.locks.Release(k.Context(), joblock.Token{}, joblock.IfIdle())
		}, []string{"zero token"}},
		{"a token of no owner", func(k *kit) error { return releaseOf(k.Context(), k.locks, "key", "") }, []string{"owner is empty"}},
		{"long reason", func(k *kit) error {
			return k.locks.ForceRelease(k.Context(), "key", joblock.Reason(strings.Repeat("r", 257)))
		}, []string{"reason has 257 bytes", "at most 256"}},
		{"long prefix", func(k *kit) error {
			for _, err := range k.locks.List(k.Context(), joblock.ListOptions{Prefix: strings.Repeat("p", 513)}) {
				return err
			}
			return nil
		}, []string{"Prefix has 513 bytes", "at most 512"}},
	}
	for _, key := range []struct{ name, key, says string }{
		{"empty key", "", "key is empty"},
		{"key of 513 bytes", strings.Repeat("k", 513), "key has 513 bytes, at most 512 are allowed: replace its long parts by a hash"},
		{"key with a control character", "a\x1fb", "U+001F"},
		{"key with a C1 control character", "a\u0085", "U+0085"},
		{"key that is not UTF-8", "a\xffb", "not valid UTF-8"},
	} {
		for what, c := range map[string]call{
			"Acquire":    acquire(key.key),
			"TryAcquire": func(k *kit) error { _, err := k.locks.TryAcquire(k.Context(), key.key); return err },
			"Do": func(k *kit) error {
				return k.locks.Do(k.Context(), key.key, func(context.Context) error { return nil })
			},
			"AcquireAll":   func(k *kit) error { _, err := k.locks.AcquireAll(k.Context(), []string{key.key}); return err },
			"Status":       func(k *kit) error { _, err := testkit.One(k.locks.Status(k.Context(), key.key)); return err },
			"Release":      func(k *kit) error { return releaseOf(k.Context(), k.locks, key.key, "owner") },
			"ForceRelease": func(k *kit) error { return k.locks.ForceRelease(k.Context(), key.key) },
			"Status of several": func(k *kit) error {
				_, err := k.locks.Status(k.Context(), "key", key.key)
				return err
			},
			"jobs.Reserve": func(k *kit) error {
				return jobs.Reserve(k.Context(), k.locks, jobs.Reservation{Key: key.key, Job: "q/1"})[0]
			},
			"jobs.Free": func(k *kit) error { return jobs.Free(k.Context(), k.locks, jobs.Release{Key: key.key, Job: "q/1"})[0] },
			"jobs.Settle": func(k *kit) error {
				return jobs.Settle(k.Context(), k.locks, jobs.Settlement{Entry: jobs.Entry{Key: key.key, Job: "q/1"}})
			},
		} {
			cases = append(cases, bad{what + " " + key.name, c, []string{key.says}})
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				err := c.call(k)
				wantErr(t, err, joblock.ErrInvalid)
				if joblock.Retryable(err) {
					t.Error("retryable")
				}
				for _, s := range c.says {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("error %q does not say %q", err, s)
					}
				}
				if n := k.store.Calls(""); n != 0 {
					t.Errorf("%d calls to the store", n)
				}
				for st := range k.locks.List(t.Context(), joblock.ListOptions{Ended: true}) {
					t.Errorf("left behind: %+v", st)
				}
			})
		})
	}
}

func TestBoundsAreInclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		k.acquire(strings.Repeat("k", 512), joblock.TTL(24*time.Hour), joblock.Owner(strings.Repeat("o", 128)),
			joblock.Holder(strings.Repeat("h", 256)), joblock.MaxRenew(366*24*time.Hour))
		lock := k.acquire("short", joblock.TTL(1500*time.Microsecond), joblock.NoRenew())
		if lock.TTL() != time.Millisecond {
			t.Errorf("TTL is %s, want whole milliseconds", lock.TTL())
		}
	})
}

func TestBadInputOfALockLeavesItAsItWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		lock := k.acquire("key")
		calls, before := k.store.Calls(""), k.record("key")
		_, negative := lock.Park(t.Context(), joblock.Reserve(-1))
		_, long := lock.Park(t.Context(), joblock.Reserve(367*24*time.Hour))
		_, job := lock.Park(t.Context(), joblock.ForJob("a\nb"))
		for says, err := range map[string]error{
			"Reserve is -1ns, must be at least 1ms": negative,
			"must be at most 8784h0m0s":             long,
			"job has a control character":           job,
			"memo has 65537 bytes, at most 65536":   memo.Write(t.Context(), lock, make([]byte, 65537)),
			"reason has 257 bytes, at most 256":     lock.Release(t.Context(), joblock.Reason(strings.Repeat("r", 257))),
			"not parked by this handle":             lock.Reclaim(t.Context()),
		} {
			wantErr(t, err, joblock.ErrInvalid)
			if !strings.Contains(err.Error(), says) {
				t.Errorf("error %q does not say %q", err, says)
			}
		}
		if k.store.Calls("") != calls || k.record("key").Fence != before.Fence {
			t.Error("the store was asked")
		}
		wantNil(t, "Err", lock.Err())
	})
}

func TestNilLock(t *testing.T) {
	var lock *joblock.Lock
	ctx := context.Background()
	_, park := lock.Park(ctx)
	_, text := lock.MarshalText()
	_, bin := lock.MarshalBinary()
	for what, err := range map[string]error{
		"Renew": lock.Renew(ctx), "memo.Write": memo.Write(ctx, lock, nil), "Release": lock.Release(ctx),
		"Park": park, "Reclaim": lock.Reclaim(ctx), "Err": lock.Err(),
		"MarshalText": text, "MarshalBinary": bin,
		"Locks.Release": joblock.Locks{nil}.Release(ctx), "Locks.Err": joblock.Locks{nil}.Err(),
	} {
		t.Run(what, func(t *testing.T) { wantErr(t, err, joblock.ErrInvalid) })
	}
	lock.StopRenewing()
	select {
	case <-lock.Done():
	default:
		t.Error("Done of a nil lock is open")
	}
	if lock.Key() != "" || lock.Fence() != 0 ||
		!lock.ExpiresAt().IsZero() || lock.Prior() != driver.EndedNone || memo.Of(lock) != nil ||
		!lock.Token().IsZero() || lock.String() != "lock(nil)" || lock.LogValue().String() != "lock(nil)" {
		t.Error("a nil lock has properties")
	}
	if _, ok := (joblock.Locks{nil}).ByKey("key"); ok {
		t.Error("found in nothing")
	}
}

func TestNilLockerAndNilStore(t *testing.T) {
	_, err := joblock.New(nil, nil)
	wantErr(t, err, joblock.ErrInvalid)
	if !strings.Contains(err.Error(), "store is nil") {
		t.Errorf("error is %q", err)
	}
	var token joblock.Token
	if err := token.UnmarshalBinary([]byte(pack(1, "key", "owner", 7, 30000))); err != nil {
		t.Fatal(err)
	}
	var locks *joblock.Locker
	ctx := context.Background()
	_, try := locks.TryAcquire(ctx, "key")
	_, acquire := locks.Acquire(ctx, "key")
	_, all := locks.AcquireAll(ctx, []string{"key"})
	_, resume := locks.Resume(ctx, token)
	_, status := locks.Status(ctx, "key")
	_, due := jobs.Due(ctx, locks, jobs.DueRequest{Limit: 1, Claim: time.Second})
	_, statuses := locks.Status(ctx)
	var list error
	for _, list = range locks.List(ctx, joblock.ListOptions{}) {
	}
	for what, err := range map[string]error{
		"TryAcquire": try, "Acquire": acquire, "AcquireAll": all, "Resume": resume, "Status": status, "List": list,
		"Do":      locks.Do(ctx, "key", func(context.Context) error { return nil }),
		"Release": releaseOf(ctx, locks, "key", "owner"), "Release if idle": locks.Release(ctx, token, joblock.IfIdle()),
		"ForceRelease": locks.ForceRelease(ctx, "key"), "jobs.Due": due, "Status of none": statuses,
		"jobs.Settle":  jobs.Settle(ctx, locks),
		"jobs.Reserve": jobs.Reserve(ctx, locks, jobs.Reservation{Key: "key", Job: "q/1"})[0],
		"jobs.Free":    jobs.Free(ctx, locks, jobs.Release{Key: "key", Job: "q/1"})[0], "Close": locks.Close(ctx),
	} {
		t.Run(what, func(t *testing.T) {
			wantErr(t, err, joblock.ErrInvalid)
			if !strings.Contains(err.Error(), "the Locker is nil") {
				t.Errorf("error is %q", err)
			}
		})
	}
}
