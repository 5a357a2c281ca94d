package joblock

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/joblock/toolkit/internal/core"
)

// Token is the transferable form of a lock: the key, the owner, the fence under which the token was made, and the TTL
// of the lease. A Token is a capability: treat its marshalled forms as secrets.
//
// Lock.Park, Lock.Token and NewToken make tokens. ParseToken and unmarshalling read them. The text form is base64url,
// JSON is the text form in quotes, and binary and msgpack are a msgpack array. Decoding checks version, field types,
// bounds and canonical form. Its errors match ErrInvalid.
type Token core.Token

// NewToken returns a token for the lock of owner on key, even before owner has taken the lock. A job can carry the
// token, and take the lock when it runs, with the option Owner. Until then Resume returns ErrNotFound, or ErrNotOwner
// while another owner has the key. Locker.Release accepts the token too.
//
// owner has 1 to 128 bytes. ttl is from a millisecond to 366 days. Otherwise NewToken returns ErrInvalid.
func NewToken(key, owner string, ttl time.Duration) (Token, error) {
	t, err := core.NewToken(key, owner, ttl)
	return Token(t), err
}

// ParseToken reads the text form of a token. If text is not such a form, ParseToken returns ErrInvalid.
func ParseToken(text string) (Token, error) {
	t, err := core.ParseToken(text)
	return Token(t), err
}

// Key returns the key of the lock.
func (t Token) Key() string { return core.Token(t).Key() }

// IsZero reports whether t is the zero Token, which names no lock.
func (t Token) IsZero() bool { return core.Token(t).IsZero() }

// Digest returns a short digest of the owner, as Status shows it. The digest may be logged.
func (t Token) Digest() string { return core.Token(t).Digest() }

// String describes the token without the owner. The description is not the text form.
func (t Token) String() string { return core.Token(t).String() }

// Format writes what String returns, for every verb, %#v and %d included.
func (t Token) Format(f fmt.State, verb rune) { core.Token(t).Format(f, verb) }

// LogValue returns what String returns, so that slog does not marshal the token.
func (t Token) LogValue() slog.Value { return core.Token(t).LogValue() }

// MarshalText returns the text form, which encoding/json uses too. For the zero Token, MarshalText returns ErrInvalid.
func (t Token) MarshalText() ([]byte, error) { return core.Token(t).MarshalText() }

// UnmarshalText reads the text form. On error t is unchanged.
func (t *Token) UnmarshalText(text []byte) error { return (*core.Token)(t).UnmarshalText(text) }

// MarshalBinary returns the msgpack array [version, key, owner, fence, TTL in ms], which msgpack writes as a byte
// string. For the zero Token, MarshalBinary returns ErrInvalid.
func (t Token) MarshalBinary() ([]byte, error) { return core.Token(t).MarshalBinary() }

// UnmarshalBinary reads the binary form. On error t is unchanged.
//
// UnmarshalBinary decodes only five scalars, from at most 2048 bytes, because a few bytes can make msgpack v5 allocate
// gigabytes when it decodes maps, slices or interfaces.
func (t *Token) UnmarshalBinary(data []byte) error { return (*core.Token)(t).UnmarshalBinary(data) }

// DecodeMsgpack reads a msgpack byte string with the binary form; nil leaves t unchanged. DecodeMsgpack checks the
// length before the bytes are allocated; UnmarshalBinary could check it only afterwards.
func (t *Token) DecodeMsgpack(dec *msgpack.Decoder) error { return (*core.Token)(t).DecodeMsgpack(dec) }
