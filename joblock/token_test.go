package joblock_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"runtime/metrics"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// payload is what people put into their tasks.
type payload struct {
	User  int
	Lock  joblock.Token
	Other *joblock.Token
}

// held is the same with the lock itself, which only marshals.
type held struct {
	User  int
	Lock  *joblock.Lock
	Other *joblock.Lock
}

func newToken(t *testing.T) (joblock.Token, *joblock.Lock) {
	t.Helper()
	k := newKit(t, nil)
	lock := k.acquire("export:žlutý", joblock.Owner("owner-1"), joblock.TTL(90*time.Second))
	return lock.Token(), lock
}

func TestTokenRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token, lock := newToken(t)
		if token.Key() != "export:žlutý" || token.Owner() != "owner-1" || token.TTL() != 90*time.Second ||
			token.Fence() != lock.Fence() || token.IsZero() {
			t.Fatalf("token is %v", token)
		}
		same := func(what string, got joblock.Token, err error) {
			t.Helper()
			if err != nil || got != token {
				t.Errorf("%s: %v, %v", what, got, err)
			}
		}
		text, err := token.MarshalText()
		wantNil(t, "MarshalText", err)
		got, err := joblock.ParseToken(string(text))
		same("text", got, err)

		bin, err := token.MarshalBinary()
		wantNil(t, "MarshalBinary", err)
		got = joblock.Token{}
		same("binary", got, func() error { return got.UnmarshalBinary(bin) }())
		if err := got.UnmarshalBinary(bin); err != nil || got != token {
			t.Errorf("binary: %v, %v", got, err)
		}

		for name, codec := range map[string]struct {
			marshal   func(any) ([]byte, error)
			unmarshal func([]byte, any) error
		}{"json": {json.Marshal, json.Unmarshal}, "msgpack": {msgpack.Marshal, msgpack.Unmarshal}} {
			for what, in := range map[string]any{
				"of tokens": payload{7, token, &token}, "of locks": held{7, lock, lock},
				"of a token alone": payload{7, token, nil}, "of a lock alone": held{7, lock, nil},
			} {
				data, err := codec.marshal(in)
				wantNil(t, name, err)
				var out payload
				wantNil(t, name+" "+what, codec.unmarshal(data, &out))
				if out.User != 7 || out.Lock != token || (out.Other != nil) == strings.Contains(what, "alone") ||
					out.Other != nil && *out.Other != token {
					t.Errorf("%s %s: got %+v", name, what, out)
				}
			}
		}
		for what, marshal := range map[string][2]func() ([]byte, error){
			"text":   {token.MarshalText, lock.MarshalText},
			"binary": {token.MarshalBinary, lock.MarshalBinary},
			"JSON": {
				func() ([]byte, error) { return json.Marshal(token) }, func() ([]byte, error) { return json.Marshal(lock) },
			},
			"msgpack": {
				func() ([]byte, error) { return msgpack.Marshal(token) }, func() ([]byte, error) { return msgpack.Marshal(lock) },
			},
		} {
			a, _ := marshal[0]()
			b, err := marshal[1]()
			if err != nil || !bytes.Equal(a, b) {
				t.Errorf("the lock's %s is not its token's: %v", what, err)
			}
		}
	})
}

// NewToken returns the token of a lock that is not taken: it travels like any other, and a
// process that has it takes the lock as its owner.
func TestNewToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKit(t, nil)
		token, err := joblock.NewToken("run", "owner-1", 90*time.Second+time.Microsecond)
		wantNil(t, "NewToken", err)
		if token.Key() != "run" || token.Owner() != "owner-1" || token.TTL() != 90*time.Second {
			t.Errorf("token is %v", token)
		}
		text, err := token.MarshalText()
		wantNil(t, "MarshalText", err)
		if got, err := joblock.ParseToken(string(text)); err != nil || got != token {
			t.Errorf("ParseToken = %v, %v", got, err)
		}
		_, err = k.locks.Resume(t.Context(), token)
		wantErr(t, err, joblock.ErrNotFound)
		lock := k.acquire("run", joblock.Owner(token.Owner()))
		_, err = lock.Park(t.Context())
		wantNil(t, "Park", err)
		_, err = k.locks.Resume(t.Context(), token)
		wantNil(t, "Resume", err)
	})
}

func TestNewTokenOfBadParts(t *testing.T) {
	long := strings.Repeat("x", driver.MaxKeyBytes+1)
	for name, tc := range map[string]struct {
		key, owner string
		ttl        time.Duration
	}{
		"no key":        {"", "o", time.Second},
		"key too long":  {long, "o", time.Second},
		"no owner":      {"k", "", time.Second},
		"owner control": {"k", "a\nb", time.Second},
		"no TTL":        {"k", "o", 0},
		"negative TTL":  {"k", "o", -time.Second},
		"endless TTL":   {"k", "o", driver.MaxPeriod + 1},
	} {
		token, err := joblock.NewToken(tc.key, tc.owner, tc.ttl)
		if !errors.Is(err, joblock.ErrInvalid) || !token.IsZero() {
			t.Errorf("%s: %v, %v; want ErrInvalid and the zero token", name, token, err)
		}
	}
}

func TestZeroTokenDoesNotMarshal(t *testing.T) {
	var zero joblock.Token
	_, text := zero.MarshalText()
	_, bin := zero.MarshalBinary()
	_, js := json.Marshal(zero)
	_, mp := msgpack.Marshal(zero)
	for what, err := range map[string]error{"text": text, "binary": bin, "JSON": js, "msgpack": mp} {
		t.Run(what, func(t *testing.T) { wantErr(t, err, joblock.ErrInvalid) })
	}
	if zero.Owner() != "" || zero.Digest() != "" || !zero.IsZero() || zero.String() != "token(none)" {
		t.Errorf("the zero token is %s", zero)
	}
}

// pack encodes a msgpack array of the given values.
func pack(values ...any) string {
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	enc.UseCompactInts(true)
	_ = enc.EncodeArrayLen(len(values))
	for _, v := range values {
		_ = enc.Encode(v)
	}
	return buf.String()
}

func TestBadTokensAreRefused(t *testing.T) {
	good := pack(1, "key", "owner", 7, 30000)
	b64 := base64.RawURLEncoding.EncodeToString
	var control joblock.Token
	if err := control.UnmarshalBinary([]byte(good)); err != nil {
		t.Fatalf("the control is refused: %v", err)
	}
	for _, c := range []struct{ name, bin, says string }{
		{"empty", "", "empty"},
		{"oversized", strings.Repeat("x", joblock.MaxTokenBytes+1), "at most 2048"},
		{"truncated", good[:len(good)-3], "truncated"},
		{"truncated in the key", good[:4], "truncated"},
		{"trailing bytes", good + "x", "canonical"},
		{"older version", pack(0, "key", "owner", 7, 30000), "version 0 is unknown"},
		{"newer version", pack(2, "key", "owner", 7, 30000, "more"), "version 2 is unknown"},
		{"another count", pack(1, "key", "owner", 7), "4 fields"},
		{"foreign", `{"lock":"key"}`, "not a token"},
		{"a map", "\x81\xa3key\x01", "not a token"},
		{"a huge map inside", "\x95\x01\xdf\xff\xff\xff\xff", "mistyped"},
		{"a huge string", "\x95\x01\xdb\xff\xff\xff\xff", "truncated"},
		{"a number as key", pack(1, 5, "owner", 7, 30000), "mistyped"},
		{"no key", pack(1, "", "owner", 7, 30000), "key is empty"},
		{"a control character in the key", pack(1, "a\nb", "owner", 7, 30000), "U+000A"},
		{"bad UTF-8 in the key", pack(1, "a\xff", "owner", 7, 30000), "UTF-8"},
		{"no owner", pack(1, "key", "", 7, 30000), "owner is empty"},
		{"a long owner", pack(1, "key", strings.Repeat("o", 129), 7, 30000), "at most 128"},
		{"a negative fence", pack(1, "key", "owner", -7, 30000), "fence -7"},
		{"a fence beyond 2^53", pack(1, "key", "owner", 1<<53, 30000), "fence 9007199254740992"},
		{"no TTL", pack(1, "key", "owner", 7, 0), "TTL of 0 ms"},
		{"a wide integer", "\x95\x01\xa3key\xa5owner\xd3\x00\x00\x00\x00\x00\x00\x00\x07\xcd\x75\x30", "canonical"},
		{"a huge TTL", pack(1, "key", "owner", 7, int64(1)<<62), "ms, must be from 1 to"},
		{"a float", pack(1, "key", "owner", 7.0, 30000), "mistyped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			keep := control
			var viaMsgpack, _ = msgpack.Marshal([]byte(c.bin))
			var viaJSON, _ = json.Marshal(b64([]byte(c.bin)))
			for what, decode := range map[string]func(*joblock.Token) error{
				"binary":  func(t *joblock.Token) error { return t.UnmarshalBinary([]byte(c.bin)) },
				"text":    func(t *joblock.Token) error { return t.UnmarshalText([]byte(b64([]byte(c.bin)))) },
				"JSON":    func(t *joblock.Token) error { return json.Unmarshal(viaJSON, t) },
				"msgpack": func(t *joblock.Token) error { return msgpack.Unmarshal(viaMsgpack, t) },
			} {
				err := decode(&keep)
				wantErr(t, err, joblock.ErrInvalid)
				if !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: error %q does not say %q", what, err, c.says)
				}
				if keep != control {
					t.Errorf("%s: the token was changed on error", what)
				}
			}
		})
	}
}

func TestTextIsCanonical(t *testing.T) {
	good := base64.RawURLEncoding.EncodeToString([]byte(pack(1, "key", "owner", 7, 30000)))
	for name, text := range map[string]string{
		"padded": good + "=", "broken": good[:4] + "\n" + good[4:], "not base64": "!!!!",
		"a space": " " + good, "trailing bits": good[:len(good)-1] + "B",
	} {
		if _, err := joblock.ParseToken(text); err == nil && text != good {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, js := range map[string]string{"a number": "5", "an object": `{"a":1}`, "an array": "[1]"} {
		var token joblock.Token
		if err := json.Unmarshal([]byte(js), &token); err == nil {
			t.Errorf("JSON of %s: accepted", name)
		}
	}
	var token joblock.Token
	wantNil(t, "null", json.Unmarshal([]byte("null"), &token))
}

// allocated is how much this process has allocated so far, other goroutines' share
// included.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func FuzzTokenDecode(f *testing.F) {
	good := pack(1, "key", "owner", 7, 30000)
	f.Add([]byte(good))
	f.Add([]byte(base64.RawURLEncoding.EncodeToString([]byte(good))))
	f.Add([]byte(`"` + base64.RawURLEncoding.EncodeToString([]byte(good)) + `"`))
	f.Add([]byte("\xc4\x13" + good))
	f.Add([]byte("\x95\x01\xdb\xff\xff\xff\xff"))
	f.Add([]byte("\xc6\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		before := allocated()
		for name, codec := range map[string]struct {
			decode func(*joblock.Token) error
			encode func(joblock.Token) ([]byte, error)
		}{
			"binary": {func(t *joblock.Token) error { return t.UnmarshalBinary(data) }, joblock.Token.MarshalBinary},
			"text":   {func(t *joblock.Token) error { return t.UnmarshalText(data) }, joblock.Token.MarshalText},
			"JSON":   {func(t *joblock.Token) error { return json.Unmarshal(data, t) }, nil},
			"msgpack": {func(t *joblock.Token) error {
				return t.DecodeMsgpack(msgpack.NewDecoder(bytes.NewReader(data)))
			}, nil},
		} {
			var token joblock.Token
			if err := codec.decode(&token); err != nil {
				if !token.IsZero() {
					t.Errorf("%s: changed on error", name)
				}
				notAString := name == "JSON" && json.Unmarshal(data, new(string)) != nil // encoding/json says so itself
				if !notAString && joblock.CodeOf(err) != joblock.CodeOf(joblock.ErrInvalid) {
					t.Errorf("%s: error %v is not ErrInvalid", name, err)
				}
				continue
			}
			if token.IsZero() {
				continue // null and nil
			}
			// What was accepted encodes; where the form is one only, to the same bytes.
			bin, err := token.MarshalBinary()
			if err != nil {
				t.Errorf("%s: accepted %v does not encode: %v", name, token, err)
			}
			var again joblock.Token
			if err := again.UnmarshalBinary(bin); err != nil || again != token {
				t.Errorf("%s: %v came back as %v, %v", name, token, again, err)
			}
			if codec.encode != nil {
				if out, err := codec.encode(token); err != nil || !bytes.Equal(out, data) {
					t.Errorf("%s: %x encodes to %x, %v", name, data, out, err)
				}
			}
		}
		if d := allocated() - before; d > 16<<20 {
			t.Errorf("%d bytes allocated for %d of input", d, len(data))
		}
	})
}
