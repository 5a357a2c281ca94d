package joblock

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unique"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/joblock/toolkit/joblock/driver"
)

// maxTokenBytes bounds every form of a token. Longer input is refused before a
// byte of it is decoded.
const maxTokenBytes = 2048

const (
	tokenVersion = 1
	tokenFields  = 5
	maxFence     = 1<<53 - 1 // what Lua, JSON and JavaScript keep exactly
)

// Token is the transferable form of a lock: its key, the owner, the fence under which
// it was made, and the lease's TTL. A Token is a capability: treat its marshalled forms
// as secrets.
//
// Tokens are made by Lock.Park, Lock.Token and NewToken, and read with ParseToken or by
// unmarshalling. Text is base64url; JSON is that text in quotes; binary and msgpack are
// a msgpack array. Decoding is strict: version, field types, bounds and canonical form
// are all checked, and errors are ErrInvalid.
type Token struct {
	key   string
	owner secret
	fence int64
	ttl   time.Duration
}

// secret is an owner that fmt cannot print. For a struct with a Token in an unexported
// field fmt prints the Token's fields and does not call its methods. Of a handle it
// prints only the address. A *string would do that too, but then equal Tokens would not
// be ==.
type secret struct{ h unique.Handle[string] }

func newSecret(s string) secret { return secret{unique.Make(s)} }

func (s secret) reveal() string {
	if s == (secret{}) {
		return ""
	}
	return s.h.Value()
}

// NewToken returns a token for the lock of owner on key, whether or not it was taken
// yet. A job can carry it and take the lock when it runs, with the option Owner. Until
// then Resume returns ErrNotFound, or ErrNotOwner while another has the key.
// Locker.Release accepts such a token too.
//
// owner has 1 to 128 bytes, ttl is from a millisecond to 366 days; else ErrInvalid.
func NewToken(key, owner string, ttl time.Duration) (Token, error) {
	const op = "new token"
	if err := checkDurations(op, key, duration{"TTL", ttl, driver.MinPeriod, driver.MaxPeriod}); err != nil {
		return Token{}, err
	}
	t := Token{key: key, owner: newSecret(owner), ttl: ttl.Truncate(time.Millisecond)}
	if err := checkTaken(op, key, false); err != nil {
		return Token{}, err
	}
	if err := t.check(); err != nil {
		return Token{}, err
	}
	return t, nil
}

// ParseToken reads the text form. Errors are ErrInvalid.
func ParseToken(text string) (Token, error) {
	var t Token
	err := t.UnmarshalText([]byte(text))
	return t, err
}

// Key returns the key of the lock.
func (t Token) Key() string { return t.key }

// IsZero reports whether t is the zero Token, which names no lock.
func (t Token) IsZero() bool { return t == Token{} }

// Digest returns a short digest of the owner, as Status shows it. It may be logged.
func (t Token) Digest() string { return digest(t.owner.reveal()) }

// String describes the token without the owner. It is not the text form.
func (t Token) String() string {
	if t.IsZero() {
		return "token(none)"
	}
	return fmt.Sprintf("token(%q fence %d owner %s)", t.key, t.fence, t.Digest())
}

// Format writes String for every verb, %#v and %d included.
func (t Token) Format(f fmt.State, _ rune) { fmt.Fprintf(f, fmt.FormatString(f, 's'), t.String()) }

// LogValue keeps slog from marshalling the token.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText returns the text form, which encoding/json uses too. The zero Token is an ErrInvalid.
func (t Token) MarshalText() ([]byte, error) {
	bin, err := t.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return base64.RawURLEncoding.AppendEncode(nil, bin), nil
}

// UnmarshalText reads the text form. On error t is left as it was.
func (t *Token) UnmarshalText(text []byte) error {
	if err := checkTokenSize(len(text)); err != nil {
		return err
	}
	// Strict refuses non-zero trailing bits; the decoder also skips line breaks,
	// which the canonical form does not have.
	if bytes.ContainsAny(text, "\r\n") {
		return tokenError("a line break in the text")
	}
	bin, err := base64.RawURLEncoding.Strict().AppendDecode(nil, text)
	if err != nil {
		return tokenError("not base64url")
	}
	return t.UnmarshalBinary(bin)
}

// MarshalBinary returns the msgpack array [version, key, owner, fence, TTL in
// ms], which msgpack writes as a byte string. The zero Token is an ErrInvalid.
func (t Token) MarshalBinary() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	if err := errors.Join(
		enc.EncodeArrayLen(tokenFields),
		enc.EncodeInt(tokenVersion),
		enc.EncodeString(t.key),
		enc.EncodeString(t.owner.reveal()),
		enc.EncodeInt(t.fence),
		enc.EncodeInt(t.ttl.Milliseconds()),
	); err != nil {
		return nil, fmt.Errorf("joblock: encode token: %w", err)
	}
	return buf.Bytes(), nil
}

// UnmarshalBinary reads the binary form. On error t is left as it was.
//
// It decodes only five scalars, from at most 2048 bytes. A few bytes can make msgpack
// v5 allocate gigabytes when it decodes maps, slices or interfaces.
func (t *Token) UnmarshalBinary(data []byte) error {
	if err := checkTokenSize(len(data)); err != nil {
		return err
	}
	r := bytes.NewReader(data)
	dec := msgpack.NewDecoder(r)
	n, notArray := dec.DecodeArrayLen()
	version, err := dec.DecodeInt64()
	if notArray != nil || err != nil {
		return tokenError("not a token")
	}
	if version != tokenVersion {
		return tokenError(fmt.Sprintf("version %d is unknown, this build reads %d", version, tokenVersion))
	}
	if n != tokenFields {
		return tokenError(fmt.Sprintf("%d fields, want %d", n, tokenFields))
	}
	var got Token
	if got.key, err = decodeString(dec, r); err != nil {
		return err
	}
	owner, err := decodeString(dec, r)
	if err != nil {
		return err
	}
	got.owner = newSecret(owner)
	if got.fence, err = dec.DecodeInt64(); err != nil {
		return tokenError("truncated or mistyped fence")
	}
	ms, err := dec.DecodeInt64()
	if err != nil {
		return tokenError("truncated or mistyped TTL")
	}
	if ms < 1 || ms > driver.MaxPeriod.Milliseconds() {
		return tokenError(fmt.Sprintf("TTL of %d ms, must be from 1 to %d", ms, driver.MaxPeriod.Milliseconds()))
	}
	got.ttl = time.Duration(ms) * time.Millisecond
	if err := got.check(); err != nil {
		return err
	}
	if canon, err := got.MarshalBinary(); err != nil || !bytes.Equal(canon, data) {
		return tokenError("not in canonical form, or trailing bytes")
	}
	*t = got
	return nil
}

// DecodeMsgpack reads a byte string with the binary form; nil leaves t as it was. It
// checks the length before it allocates, for which UnmarshalBinary is too late.
func (t *Token) DecodeMsgpack(dec *msgpack.Decoder) error {
	n, err := dec.DecodeBytesLen()
	if err != nil {
		return tokenError("not a msgpack byte string")
	}
	if n == -1 {
		return nil
	}
	if err := checkTokenSize(n); err != nil {
		return err
	}
	bin := make([]byte, n)
	if err := dec.ReadFull(bin); err != nil {
		return tokenError("truncated")
	}
	return t.UnmarshalBinary(bin)
}

// check refuses tokens that name no possible lock.
func (t Token) check() error {
	const op = "token"
	if t.IsZero() {
		return tokenError("the zero token names no lock")
	}
	if err := checkKey(op, t.key); err != nil {
		return err
	}
	if err := checkText(op, "", "owner", t.owner.reveal(), 1, driver.MaxOwnerBytes); err != nil {
		return err
	}
	if t.fence < 0 || t.fence > maxFence {
		return tokenError(fmt.Sprintf("fence %d, must be from 0 to %d", t.fence, int64(maxFence)))
	}
	return nil
}

// checkToken is check for a token.
func (l *Locker) checkToken(op string, t Token) error {
	if err := l.open(op, t.key); err != nil {
		return err
	}
	return t.check()
}

func checkTokenSize(n int) error {
	if n > maxTokenBytes {
		return tokenError(fmt.Sprintf("%d bytes, at most %d are allowed", n, maxTokenBytes))
	}
	if n <= 0 {
		return tokenError("empty")
	}
	return nil
}

// decodeString reads a string that fits into what is left of r.
func decodeString(dec *msgpack.Decoder, r *bytes.Reader) (string, error) {
	n, err := dec.DecodeBytesLen()
	if err != nil || n < 0 || n > r.Len() {
		return "", tokenError("truncated or mistyped string")
	}
	b := make([]byte, n)
	if err := dec.ReadFull(b); err != nil {
		return "", tokenError("truncated string")
	}
	return string(b), nil
}

func tokenError(detail string) error { return invalid("token", "", "%s", detail) }

// digest shortens an owner to what may be shown.
func digest(owner string) string {
	if owner == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("joblock owner " + owner))
	return "#" + hex.EncodeToString(sum[:4])
}
