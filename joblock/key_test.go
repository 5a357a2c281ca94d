package joblock_test

import (
	"net/url"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/joblock/toolkit/joblock"
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
		{[]string{"", "a", ""}, ":a:"},
		{[]string{"plain"}, "plain"},
		{nil, ""},
	} {
		if got := joblock.Key(c.parts...); got != c.want {
			t.Errorf("Key(%q) is %q, want %q", c.parts, got, c.want)
		}
	}
}

func TestKeyBuilderScopes(t *testing.T) {
	secret := []byte("0123456789abcdef")
	build := func(cfg *joblock.KeyConfig) *joblock.KeyBuilder {
		t.Helper()
		b, err := joblock.NewKeyBuilder(cfg)
		wantNil(t, "NewKeyBuilder", err)
		return b
	}
	if got := build(nil).Key("a", "b:c"); got != "a:b%3Ac" {
		t.Errorf("global key %q", got)
	}
	if got := build(&joblock.KeyConfig{Function: "send:mail"}).Key("user", "1"); got != "send%3Amail:user:1" {
		t.Errorf("function key %q", got)
	}
	hidden := build(&joblock.KeyConfig{Function: "mail", Secret: secret})
	got := hidden.Key("user", "1")
	if !strings.HasPrefix(got, "mail:") || len(got) != len("mail:")+64 || strings.Contains(got, "user") {
		t.Errorf("secret key %q", got)
	}
	all := []string{
		got, hidden.Key("user:1"), hidden.Key("user", "2"),
		build(&joblock.KeyConfig{Function: "sms", Secret: secret}).Key("user", "1")[len("sms:"):],
		build(&joblock.KeyConfig{Function: "mail", Secret: []byte("fedcba9876543210")}).Key("user", "1"),
	}
	all = append(all, got[len("mail:"):])
	if n := len(slices.Compact(slices.Sorted(slices.Values(all)))); n != len(all) {
		t.Errorf("only %d of %d keys differ: %q", n, len(all), all)
	}

	// The builder keeps its own copy of the secret.
	secret[0] = 'X'
	if hidden.Key("user", "1") != got {
		t.Error("the key follows the caller's slice")
	}
	for _, bad := range [][]byte{{}, []byte("0123456789abcde")} {
		_, err := joblock.NewKeyBuilder(&joblock.KeyConfig{Secret: bad})
		wantErr(t, err, joblock.ErrInvalid)
		if !strings.Contains(err.Error(), "at least 16") || strings.Contains(err.Error(), "0123") {
			t.Errorf("error %q", err)
		}
	}
}

// FuzzKey cuts its inputs at '|' into two lists of parts.
func FuzzKey(f *testing.F) {
	f.Add("a:b|c", "a|b:c")
	f.Add("a%3Ab", "a:b")
	f.Add("", "|")
	f.Add("\x00\x7f\u0085|\xff", "ž|日")
	f.Fuzz(func(t *testing.T, a, b string) {
		as, bs := strings.Split(a, "|"), strings.Split(b, "|")
		ka, kb := joblock.Key(as...), joblock.Key(bs...)
		if (ka == kb) != slices.Equal(as, bs) {
			t.Errorf("%q gives %q, %q gives %q", as, ka, bs, kb)
		}
		// It can be taken apart again.
		for i, part := range strings.Split(ka, ":") {
			if got, err := url.PathUnescape(part); err != nil || i >= len(as) || got != as[i] {
				t.Errorf("part %d of %q decodes to %q, %v", i, ka, got, err)
			}
		}
		if ka != "" && len(ka) <= joblock.MaxKeyBytes && utf8.ValidString(a) {
			if err := joblock.CheckKey(ka); err != nil {
				t.Errorf("Key(%q) is refused: %v", as, err)
			}
		}
	})
}
