package joblock_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/joblock/toolkit/internal/faultstore"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// The owner is a capability. It must not come out of anything that people print:
// not out of a token or a lock under any verb, nor out of one inside a struct of
// theirs, exported or not, nor out of errors, status, events and logs.
func TestOwnersDoNotLeak(t *testing.T) {
	for name, owner := range map[string]string{"text": "S3CRET-owner", "UUID": "5c3e7a11-0b1d-4e2f-9a77-d00dfeedc0de"} {
		t.Run(name, func(t *testing.T) { ownerDoesNotLeak(t, owner) })
	}
}

func ownerDoesNotLeak(t *testing.T, owner string) {
	synctest.Test(t, func(t *testing.T) {
		var out []string
		rec := new(recorder)
		k := newKit(t, &joblock.Config{Observer: rec.observe})
		log := slog.New(slog.NewJSONHandler(k.logs, nil))
		note := func(values ...any) {
			for _, v := range values {
				for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%o", "%c", "%e", "%U", "%40v"} {
					out = append(out, fmt.Sprintf(verb, v))
				}
				log.Info("value", "v", v, "any", slog.AnyValue(v))
				slog.New(slog.NewTextHandler(k.logs, nil)).Info("value", "v", v)
			}
		}
		lock := k.acquire("key", joblock.Owner(owner))
		token := lock.Token()
		type public struct {
			Token joblock.Token
			Lock  *joblock.Lock
			More  []joblock.Token
		}
		type private struct {
			token joblock.Token
			lock  *joblock.Lock
			more  map[string]joblock.Token
		}
		for _, verb := range []string{"%v", "%#v", "%d"} {
			if got := fmt.Sprintf(verb, token); got != token.String() {
				t.Errorf("%s of a token is %s", verb, got)
			}
			if got := fmt.Sprintf(verb, lock); got != lock.String() {
				t.Errorf("%s of a lock is %s", verb, got)
			}
		}
		note(lock, token, &token, lock.Digest(), joblock.Locks{lock})
		for _, verb := range []string{"%v", "%+v", "%#v", "%d", "%s", "%q"} {
			out = append(out, fmt.Sprintf(verb, public{token, lock, []joblock.Token{token}}),
				fmt.Sprintf(verb, private{token, lock, map[string]joblock.Token{"a": token}}))
		}
		st, err := testkit.One(k.locks.Status(t.Context(), "key"))
		wantNil(t, "Status", err)
		note(st)

		_, err = k.peer().TryAcquire(t.Context(), "key", joblock.Owner(owner))
		note(err)
		note(releaseOf(t.Context(), k.locks, "key", owner+"-2"))
		k.store.Set(faultstore.Fault{Mode: faultstore.Refuse}, faultstore.Renew, faultstore.Park, faultstore.Resume, faultstore.Release)
		note(lock.Renew(t.Context()))
		_, err = lock.Park(t.Context())
		note(err)
		<-lock.Done()
		note(lock.Err(), lock.Release(t.Context()))
		time.Sleep(10 * time.Second)
		_, err = k.locks.Resume(t.Context(), token)
		note(err)
		k.store.Clear()
		_, err = k.locks.Resume(t.Context(), token, joblock.ForJob("q/1"))
		note(err)
		_, err = k.locks.TryAcquire(t.Context(), "key", joblock.Owner(owner+"\x00"))
		note(err)
		_, err = k.locks.TryAcquire(t.Context(), "key", joblock.Owner(strings.Repeat(owner, 20)))
		note(err)
		text, err := token.MarshalText()
		wantNil(t, "MarshalText", err)
		_, err = joblock.ParseToken(string(text[:len(text)-4]))
		note(err)
		_, err = joblock.ParseToken(string(text) + "AAAA")
		note(err)
		wantNil(t, "Close", k.locks.Close(context.Background()))
		note(lock.Renew(t.Context()))

		for _, e := range rec.take() {
			note(e)
			if e.Err != nil {
				note(e.Err)
			}
		}
		out = append(out, k.logs.String())
		if !strings.Contains(k.logs.String(), "lock lost") || !strings.Contains(k.logs.String(), token.Digest()) {
			t.Errorf("the loss was not logged, or not under its digest: %s", k.logs)
		}
		secrets := []string{owner, fmt.Sprintf("%x", owner), fmt.Sprintf("%X", owner), string(text)}
		if id, err := uuid.Parse(owner); err == nil {
			bytes := [16]byte(id)
			secrets = append(secrets, fmt.Sprintf("%x", bytes), fmt.Sprintf("%X", bytes), fmt.Sprint(bytes), fmt.Sprintf("%#v", bytes))
		}
		for _, s := range out {
			for _, secret := range secrets {
				if i := strings.Index(s, secret); i >= 0 {
					t.Errorf("the owner is in %q", s[max(0, i-80):min(len(s), i+80)])
				}
			}
		}
	})
}
