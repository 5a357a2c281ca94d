package redisstore

import (
	"context"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// Whatever stands in a record, every call about it is answered and no two get the lock.
// The texts take the places of the fields of a lock that is held; an empty one leaves
// its field as it is.
func FuzzRecord(f *testing.F) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.MiniServer(f).Addr()})
	f.Cleanup(func() { rdb.Close() })
	store := must(newStore(rdb, nil))
	f.Cleanup(func() { _ = store.Close() })
	const state = "jobH1795307164008897\nowner of key\na host\nq/1\n\n1795307164008897\n\nnonce\n\n1795307164008897--1795307164008897999999999999999999999999"
	const place = "99999999999999\n120001\n       60000\nsomebody\na host\n\n\nnonce-0000000\njoblock:inbox:one\n1795307164008897"
	f.Add("", "", "0 2 2", place, "", true)
	f.Add("", "", "0 1 1", place, "", true)
	f.Add(state, "memo", "0 1 1", place, "0", false)
	const job = "99999999999999\n120001\n       60000\na job\na host\nq/1\n\n0000000000000\njoblock:jobs\n1795307164008897"
	f.Add("", "", "0 1 1", job, "", true)
	f.Add("", "", "0 2 2", job, "1", false)
	f.Add(state[:40], "", "0 20000000000 7", "", "7", false)
	f.Add("", "", "5 9007199254740990 1", "-1\n-1\n-1\n\n\n\n", "-1", true)
	f.Fuzz(func(t *testing.T, state, memo, queue, place, number string, fast bool) {
		ctx := context.Background()
		k := &kit{store: store, t: t, rdb: rdb, fast: fast}
		term := k.acquire("key")
		defer k.rdb.Del(ctx, k.name("key"), k.index(0))
		if state == "" {
			state = recordText(k.readRecord(k.name("key")))
		}
		var fields []any
		for field, text := range map[string]string{"memo": memo, "q": queue, "q0": place, "wcall": number, "w0000000000000": number} {
			if text != "" {
				fields = append(fields, field, text)
			}
		}
		k.writeRecord(k.name("key"), state, fields...)
		k.calls(t, "key", term)
	})
}

// What anybody publishes names a term or a job that may be, or none.
func FuzzPush(f *testing.F) {
	f.Add("7\njoblock:key")
	f.Add("q/1\njoblock:key")
	s := &store{prefix: keyspace.DefaultPrefix, places: []string{keyspace.DefaultPrefix}}
	f.Fuzz(func(t *testing.T, text string) {
		if p, ok := s.parseForced(text); ok && (p.Fence < 1 || p.Key == "") {
			t.Errorf("%q is the push %+v", text, p)
		}
		if p, ok := s.parseJob(text); ok && (p.Job == "" || len(p.Job) > driver.MaxLabelBytes || p.Key == "" || p.Fence != 0) {
			t.Errorf("%q is the push %+v", text, p)
		}
	})
}
