package joblock_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/limit"
	"github.com/joblock/toolkit/joblock/singleflight"
)

func TestKeyKeepsPartsApartAndReadable(t *testing.T) {
	for _, c := range []struct {
		parts []string
		want  string
	}{
		{[]string{"export", "acct-7"}, "export:acct-7"},
		{[]string{"a:b", "c"}, "a%3Ab:c"},
		{[]string{"a", "b:c"}, "a:b%3Ac"},
		{[]string{"a:b:c"}, "a%3Ab%3Ac"},
		{[]string{"a%3Ab"}, "a%253Ab"},
		{[]string{"žluť", "日本"}, "žluť:日本"},
		{[]string{"a\nb\x00\x7f"}, "a%0Ab%00%7F"},
		{[]string{"a\u0085b"}, "a%C2%85b"},
		{[]string{"a\u200bb\u202ec\u00ad\u2028"}, "a%E2%80%8Bb%E2%80%AEc%C2%AD%E2%80%A8"},
		{[]string{"plain"}, "plain"},
		{nil, ""},
	} {
		if got := joblock.Key(c.parts...); got != c.want {
			t.Errorf("Key(%q) is %q, want %q", c.parts, got, c.want)
		}
	}
}

func TestSecretKeys(t *testing.T) {
	const secret joblock.Secret = "0123456789abcdef"
	got := secret.Key("mail", "user", "1")
	if !strings.HasPrefix(got, "mail::") || len(got) != len("mail::")+64 || strings.Contains(got, "user") {
		t.Errorf("secret key %q", got)
	}
	wantNil(t, "CheckTaken", joblock.CheckTaken(got))
	all := []string{
		got, secret.Key("mail", "user:1"), secret.Key("mail", "user", "2"),
		secret.Key("sms", "user", "1")[len("sms::"):],
		joblock.Secret("fedcba9876543210").Key("mail", "user", "1"),
	}
	all = append(all, got[len("mail::"):])
	if n := len(slices.Compact(slices.Sorted(slices.Values(all)))); n != len(all) {
		t.Errorf("only %d of %d keys differ: %q", n, len(all), all)
	}
	if got := secret.Key("send:mail", "1"); !strings.HasPrefix(got, "send%3Amail::") {
		t.Errorf("key %q", got)
	}

	for _, bad := range []joblock.Secret{"", "0123456789abcde", joblock.Secret(strings.Repeat("0123", 257)), joblock.SecretOfStore} {
		for _, check := range []func(string) error{joblock.CheckKey, joblock.CheckTaken} {
			err := check(bad.Key("mail", "user", "1"))
			wantErr(t, err, joblock.ErrInvalid)
			if !strings.Contains(err.Error(), "from 16 to 1024") || strings.Contains(err.Error(), "0123") || strings.Contains(err.Error(), "user") {
				t.Errorf("error %q", err)
			}
		}
	}
}

// An empty part is mostly a parameter that was not there: it must not make one key of
// all requests.
func TestEmptyPartIsRefused(t *testing.T) {
	const secret joblock.Secret = "0123456789abcdef"
	for key, part := range map[string]string{
		joblock.Key(""):              "part 1",
		joblock.Key("export", ""):    "part 2",
		joblock.Key("", "7"):         "part 1",
		joblock.Key("a", "", "b"):    "part 2",
		secret.Key("", "7"):          "part 1",
		secret.Key("f", ""):          "part 1",
		secret.Key("f", "a", "", ""): "part 2",
	} {
		for _, err := range []error{joblock.CheckKey(key), joblock.CheckTaken(key)} {
			wantErr(t, err, joblock.ErrInvalid)
			if !strings.Contains(err.Error(), part+" of the key is empty") {
				t.Errorf("%q: %v, want it to name %s", key, err, part)
			}
		}
	}
}

// A key that was joined by hand may lack a part, and no call can see that. The Locker takes the key, and logs it once.
func TestDoubtfulKeysAreLogged(t *testing.T) {
	take := func(k *kit, key string) error {
		taken := (*core.Locker)(k.locks).Take(k.Context(), "enqueue", []core.Take{{Key: key, Job: "q/1", Reserve: time.Minute}})
		return taken[0].Err
	}
	for name, call := range map[string]func(k *kit, key string) error{
		"Acquire":    func(k *kit, key string) error { return second(k.locks.Acquire(k.Context(), key, joblock.MaxWait(0))) },
		"TryAcquire": func(k *kit, key string) error { return second(k.locks.TryAcquire(k.Context(), key)) },
		"AcquireAll": func(k *kit, key string) error {
			return second(k.locks.AcquireAll(k.Context(), []string{key}, joblock.MaxWait(0)))
		},
		"limit":       func(k *kit, key string) error { return second(limit.New(k.locks, 2).TryAcquire(k.Context(), key)) },
		"enqueue":     take,
		"of KeepLast": func(k *kit, key string) error { return take(k, keyspace.Next(key)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := newKit(t, nil)
				for key, says := range map[string]string{
					"export:": "ends in a separator", "shop/": "ends in a separator", "a|b|": "ends in a separator", "a#": "ends in a separator",
					" ": "is blank", "\u00a0\u3000": "is blank", "shop: ": "ends in a blank part", joblock.Key("shop", "\u3000"): "ends in a blank part",
					":7": "begins with a separator", " :7": "begins with a separator",
					"arn:aws:s3:::exports": "", "host:fe80::1": "", "::1": "", "App::Export": "",
					"export:7": "", "std-7": "", "a b": "", " a": "", "a ": "", "a-": "", "a_": "", "A.": "", "é": "", joblock.Key("export:"): "",
				} {
					for range 3 {
						if err := call(k, key); err != nil && !errors.Is(err, joblock.ErrHeld) {
							t.Errorf("%q: %v", key, err)
						}
					}
					log := k.logs.String()
					if mark := fmt.Sprintf("key=%q", key); says != "" && strings.Count(log, mark+" op=")+strings.Count(log, "key="+key+" op=") != 1 || says == "" && strings.Contains(log, mark) {
						t.Errorf("%q is not logged as wanted:\n%s", key, log)
					}
					if !strings.Contains(log, says) {
						t.Errorf("%q: the log does not say %q", key, says)
					}
				}
				if n := strings.Count(k.logs.String(), "level=WARN"); n != 10 {
					t.Errorf("%d warnings, want 10:\n%s", n, k.logs)
				}
				for i := range 1000 {
					wantNil(t, "TryAcquire", second(k.locks.TryAcquire(t.Context(), fmt.Sprint(i, ":"))))
				}
				if n := strings.Count(k.logs.String(), "level=WARN"); n != 16 {
					t.Errorf("%d warnings about a thousand keys, want 16", n)
				}
			})
		})
	}
}

// What an application's users typed never becomes one of the toolkit's own keys.
// Calls that look at locks, and ForceRelease, take any.
func TestKeysOfTheToolkitAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		ctx := t.Context()
		own := []string{"x%#3", "x%#gate", "x%next", "%keeper", "%cron:cron:job", "%", "100%", "a%zz", "a%3", "a%3a", "a%F"}
		for _, key := range own {
			for call, err := range map[string]error{
				"TryAcquire": second(k.locks.TryAcquire(ctx, key)),
				"Acquire":    second(k.locks.Acquire(ctx, key)),
				"a permit":   second(limit.New(k.locks, 2).TryAcquire(ctx, key)),
				"AcquireAll": second(k.locks.AcquireAll(ctx, []string{"fine", key})),
				"Do":         k.locks.Do(ctx, key, func(context.Context) error { return nil }),
				"Singleton":  k.locks.Singleton(ctx, key, func(context.Context) error { return nil }),
				"NewToken":   second(joblock.NewToken(key, "owner", time.Minute)),
				"singleflight.Do": second(singleflight.Do(ctx, k.locks, key, time.Minute,
					func(context.Context) (int, error) { return 1, nil })),
			} {
				if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), "'%' at byte") {
					t.Errorf("%s of %q: %v, want ErrInvalid that tells where the %% is", call, key, err)
				}
			}
			lock, err := k.locks.TryAcquire(ctx, key, core.OwnKey)
			wantNil(t, "TryAcquire by the toolkit of "+key, err)
			st, err := testkit.One(k.locks.Status(ctx, key))
			wantNil(t, "Status of "+key, err)
			if !st.Locked() {
				t.Errorf("Status of %q is %s", key, st.State)
			}
			lock, err = k.locks.Resume(ctx, k.park(lock))
			wantNil(t, "Resume of "+key, err)
			wantNil(t, "ForceRelease of "+key, k.locks.ForceRelease(ctx, key, joblock.Reason("test")))
			wantErr(t, lock.Renew(ctx), joblock.ErrLost)
		}
		for _, key := range []string{"a%3A", "%25", "%00%FF"} {
			k.acquire(key)
		}
	})
}

// Two keys that look alike would be two locks, and the reason could not be seen.
func TestInvisibleCharactersAreRefused(t *testing.T) {
	for _, c := range []string{"\u200b", "\u200d", "\ufeff", "\u202e", "\u00ad", "\u2028", "\u2029", "\U000e0041"} {
		err := joblock.CheckKey("a" + c + "b")
		wantErr(t, err, joblock.ErrInvalid)
		if !strings.Contains(err.Error(), "invisible character (U+") || !strings.Contains(err.Error(), "at byte 1") {
			t.Errorf("%+q: %v", c, err)
		}
		wantNil(t, "CheckTaken", joblock.CheckTaken(joblock.Key("a"+c+"b")))
		if joblock.Key("a"+c+"b") == joblock.Key("ab") {
			t.Errorf("%+q is lost", c)
		}
	}
	for _, key := range []string{"žluť", "e\u0301", "日本", "🔒", "a\u00a0b", " "} {
		wantNil(t, "CheckTaken", joblock.CheckTaken(key))
	}
}

func second[T any](_ T, err error) error { return err }

// FuzzKey cuts its inputs at '|' into two lists of parts.
func FuzzKey(f *testing.F) {
	const secret joblock.Secret = "0123456789abcdef"
	f.Add("a:b|c", "a|b:c")
	f.Add("a%3Ab", "a:b")
	f.Add("", "|")
	f.Add("\x00\x7f\u0085|\xff", "ž|日")
	f.Add("a|b", "a||b")
	f.Add("%!1", "|%!2")
	f.Fuzz(func(t *testing.T, a, b string) {
		as, bs := strings.Split(a, "|"), strings.Split(b, "|")
		ka, kb := joblock.Key(as...), joblock.Key(bs...)
		if (ka == kb) != slices.Equal(as, bs) {
			t.Errorf("%q gives %q, %q gives %q", as, ka, bs, kb)
		}
		if secret.Key(as[0], as[1:]...) == kb {
			t.Errorf("%q gives %q, and so does the secret with %q", bs, kb, as)
		}
		if slices.Contains(as, "") {
			wantErr(t, joblock.CheckKey(ka), joblock.ErrInvalid)
			return
		}
		// It can be taken apart again.
		for i, part := range strings.Split(ka, ":") {
			if got, err := url.PathUnescape(part); err != nil || i >= len(as) || got != as[i] {
				t.Errorf("part %d of %q decodes to %q, %v", i, ka, got, err)
			}
		}
		if len(ka) <= driver.MaxKeyBytes && utf8.ValidString(a) {
			if err := joblock.CheckTaken(ka); err != nil {
				t.Errorf("Key(%q) is refused: %v", as, err)
			}
		}
	})
}
