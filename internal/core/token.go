package core

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/joblock/toolkit/joblock/driver"
)

// maxTokenBytes bounds every form of a token. Longer input is refused before any decoding.
const maxTokenBytes = 2048

const (
	tokenVersion = 1
	tokenFields  = 5
)

const maxTokenTTL = int64(driver.MaxPeriod / time.Millisecond)

// Token is joblock.Token.
type Token tokenData

type tokenData = struct {
	key   string
	owner secret
	fence int64
	ttl   time.Duration
}

// NewToken is joblock.NewToken.
func NewToken(key, owner string, ttl time.Duration) (Token, error) {
	const op = "new token"
	if err := checkDurations(op, key, duration{"TTL", ttl, driver.MinPeriod, driver.MaxPeriod}); err != nil {
		return Token{}, err
	}
	t := Token{key: key, owner: newSecret(owner), ttl: ttl.Truncate(time.Millisecond)}
	if err := CheckTaken(op, key, false); err != nil {
		return Token{}, err
	}
	if err := t.check(); err != nil {
		return Token{}, err
	}
	return t, nil
}

// ParseToken reads the text form of a token. If text is not such a form, ParseToken returns ErrInvalid.
func ParseToken(text string) (Token, error) {
	var t Token
	err := t.UnmarshalText([]byte(text))
	return t, err
}

// Key returns the key of the lock.
func (t Token) Key() string { return t.key }

// Tokens converts tokens of package joblock.
func Tokens[T ~tokenData](tokens []T) []Token {
	out := make([]Token, len(tokens))
	for i, t := range tokens {
		out[i] = Token(t)
	}
	return out
}

// Owner returns the owner, a secret.
func (t Token) Owner() string { return t.owner.reveal() }

// Fence returns the fence under which the token was made, or 0 if the lock was not taken yet.
func (t Token) Fence() int64 { return t.fence }

// TTL returns the length of the lease.
func (t Token) TTL() time.Duration { return t.ttl }

// At returns the token of the same lock with another fence.
func (t Token) At(fence int64) Token {
	t.fence = fence
	return t
}

// OfSlot returns the token of the same owner for another key: for another slot of the key of t. The new token has no
// fence.
func (t Token) OfSlot(key string) Token {
	t.key, t.fence = key, 0
	return t
}

// IsZero reports whether t is the zero Token, which names no lock.
func (t Token) IsZero() bool { return t == Token{} }

// Digest returns the digest of the owner, which is fit for logs.
func (t Token) Digest() string { return Digest(t.owner.reveal()) }

// String describes the token without the owner. The description is not the text form.
func (t Token) String() string {
	if t.IsZero() {
		return "token(none)"
	}
	return fmt.Sprintf("token(%q fence %d owner %s)", t.key, t.fence, t.Digest())
}

// Format writes what String returns, for every verb, %#v and %d included.
func (t Token) Format(f fmt.State, _ rune) { fmt.Fprintf(f, fmt.FormatString(f, 's'), t.String()) }

// LogValue returns what String returns, so that slog does not marshal the token.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText returns the text form, which encoding/json uses too. For the zero Token, MarshalText returns ErrInvalid.
func (t Token) MarshalText() ([]byte, error) {
	bin, err := t.MarshalBinary()
	if err != nil {
		return nil, err
	}
	return base64.RawURLEncoding.AppendEncode(nil, bin), nil
}

// strict is a variable because each call of Strict makes another table.
var strict = base64.RawURLEncoding.Strict()

// UnmarshalText reads the text form. On error t is unchanged.
func (t *Token) UnmarshalText(text []byte) error {
	if err := checkTokenSize(len(text)); err != nil {
		return err
	}
	// Strict refuses non-zero trailing bits, but the decoder skips line breaks. The canonical form has neither.
	if bytes.ContainsAny(text, "\r\n") {
		return tokenError("a line break in the text")
	}
	bin, err := strict.AppendDecode(nil, text)
	if err != nil {
		return tokenError("not base64url")
	}
	return t.UnmarshalBinary(bin)
}

// MarshalBinary returns the msgpack array [version, key, owner, fence, TTL in ms], which msgpack writes as a byte
// string. For the zero Token, MarshalBinary returns ErrInvalid.
func (t Token) MarshalBinary() ([]byte, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	const others = 24 // bytes at most in addition to key and owner: lengths, numbers
	buf := bytes.NewBuffer(make([]byte, 0, len(t.key)+len(t.owner.reveal())+others))
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(buf)
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

// UnmarshalBinary reads the binary form. On error t is unchanged.
//
// UnmarshalBinary decodes only five scalars, from at most 2048 bytes, because a few bytes can make msgpack v5 allocate
// gigabytes when it decodes maps, slices or interfaces.
func (t *Token) UnmarshalBinary(data []byte) error {
	if err := checkTokenSize(len(data)); err != nil {
		return err
	}
	got, ok := scanToken(data)
	if !ok {
		var err error
		if got, err = readToken(data); err != nil {
			return err
		}
	}
	*t = got
	return nil
}

// readToken reads a token in its binary form. The error says what is wrong with a bad one.
func readToken(data []byte) (got Token, err error) {
	r := bytes.NewReader(data)
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(r)
	n, notArray := dec.DecodeArrayLen()
	version, err := dec.DecodeInt64()
	if notArray != nil || err != nil {
		return Token{}, tokenError("not a token")
	}
	if version != tokenVersion {
		return Token{}, tokenError(fmt.Sprintf("version %d is unknown, this build reads %d", version, tokenVersion))
	}
	if n != tokenFields {
		return Token{}, tokenError(fmt.Sprintf("%d fields, want %d", n, tokenFields))
	}
	if got.key, err = decodeString(dec, r, data); err != nil {
		return Token{}, err
	}
	owner, err := decodeString(dec, r, data)
	if err != nil {
		return Token{}, err
	}
	got.owner = newSecret(owner)
	if got.fence, err = dec.DecodeInt64(); err != nil {
		return Token{}, tokenError("truncated or mistyped fence")
	}
	ms, err := dec.DecodeInt64()
	if err != nil {
		return Token{}, tokenError("truncated or mistyped TTL")
	}
	if ms < 1 || ms > driver.MaxPeriod.Milliseconds() {
		return Token{}, tokenError(fmt.Sprintf("TTL of %d ms, must be from 1 to %d", ms, driver.MaxPeriod.Milliseconds()))
	}
	got.ttl = time.Duration(ms) * time.Millisecond
	if err := got.check(); err != nil {
		return Token{}, err
	}
	if canon, err := got.MarshalBinary(); err != nil || !bytes.Equal(canon, data) {
		return Token{}, tokenError("not in canonical form, or trailing bytes")
	}
	return got, nil
}

// DecodeMsgpack reads a msgpack byte string with the binary form; nil leaves t unchanged. DecodeMsgpack checks the
// length before the bytes are allocated; UnmarshalBinary could check it only afterwards.
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

// check returns ErrInvalid for a token that cannot be the token of any lock.
func (t Token) check() error {
	const op = "token"
	if t.IsZero() {
		return tokenError("the zero token names no lock")
	}
	if err := CheckKey(op, t.key); err != nil {
		return err
	}
	if !t.owner.usual() {
		if err := CheckText(op, "", "owner", t.owner.reveal(), 1, driver.MaxOwnerBytes); err != nil {
			return err
		}
	}
	if t.fence < 0 || t.fence > driver.MaxFence {
		return tokenError(fmt.Sprintf("fence %d, must be from 0 to %d", t.fence, int64(driver.MaxFence)))
	}
	return nil
}

// checkToken returns the error of Locker.open, or ErrInvalid for a bad token.
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

// decodeString reads a string from data. dec reads from r, and r reads data.
func decodeString(dec *msgpack.Decoder, r *bytes.Reader, data []byte) (string, error) {
	n, err := dec.DecodeBytesLen()
	if err != nil || n < 0 || n > r.Len() {
		return "", tokenError("truncated or mistyped string")
	}
	rest := data[len(data)-r.Len():]
	if _, err := r.Seek(int64(n), io.SeekCurrent); err != nil {
		return "", tokenError("truncated string")
	}
	return string(rest[:n]), nil
}

func tokenError(detail string) error { return Invalid("token", "", "%s", detail) }

// Digest returns a hash of owner that may be shown, or "" for no owner.
func Digest(owner string) string {
	if owner == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("joblock owner " + owner))
	return "#" + hex.EncodeToString(sum[:4])
}
