package joblock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
)

// Key joins parts with ':' into a key. Different parts make different keys: Key("a:b", "c") and Key("a", "b:c") differ.
// Plain parts stay readable. Inside a part Key writes '%', ':' and invisible characters as %XX. Invisible
// characters are control characters and those of the Unicode categories Cf, Zl and Zp, such as a zero-width space.
//
// Key returns no error. Every call returns ErrInvalid for a key that is empty, longer than 512 bytes or not UTF-8, and
// for a result of Key with an empty part. The error names the empty part, usually a missing parameter: without the
// check all such requests would share one key.
//
// In a key that was joined in another way, such as "export:" + id, no call can check the parts: with an empty id, all
// requests share the key "export:". A Locker accepts that key, and logs a warning for a key that is blank, ends in a
// separator, with or without blanks after it, or has a ':' at its begin or next to another one.
//
// For texts that may be long, such as URLs and lists of filters, put a hash into the key: the hexadecimal digits of
// their SHA-256, or a KeyBuilder of NewSecretKeyBuilder, which hashes all parts.
//
// Keys are compared byte by byte: "Acct" and "acct" differ, and so do "7" and "07", and the two encodings of "é". Only
// the application knows which texts mean the same, so normalise texts before you call Key: trim, fold case, normalise
// to NFC, print the number that was parsed.
//
// A key that was not built with Key must be UTF-8 without invisible characters. Each '%' must precede two upper-case
// hexadecimal digits. All other keys with '%' belong to the toolkit. Calls that take a lock refuse the toolkit's keys
// with ErrInvalid; ForceRelease and calls that read locks accept the toolkit's keys.
func Key(parts ...string) string {
	if len(parts) == 1 && parts[0] != "" && !strings.ContainsFunc(parts[0], needsEscape) {
		return parts[0]
	}
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		if p == "" {
			b.WriteString(keyspace.Empty(i + 1))
		}
		escapePart(&b, p)
	}
	return b.String()
}

// KeyBuilder builds the keys of one function, or of one application. A KeyBuilder is safe for concurrent use.
type KeyBuilder struct {
	prefix string
	hash   func(key string) string // nil without a secret; has the secret, which fmt would print
}

// NewKeyBuilder returns a KeyBuilder whose keys begin with name and "::". Package joblock's Key makes no such key, so
// the keys of different builders differ from each other and from plain keys. An empty name means no prefix.
func NewKeyBuilder(name string) *KeyBuilder {
	b := &KeyBuilder{}
	if name != "" {
		b.prefix = Key(name) + "::"
	}
	return b
}

// NewSecretKeyBuilder is NewKeyBuilder with an HMAC-SHA256 in place of what follows the prefix. A reader of the Redis,
// or a client that can make the application build keys, can then neither enumerate the keys nor take keys in advance. A
// secret must have 16 to 1024 bytes; any other is ErrInvalid, and so is SecretOfStore.
func NewSecretKeyBuilder(name string, secret Secret) (*KeyBuilder, error) {
	const op = "key builder"
	if secret == SecretOfStore {
		return nil, core.Invalid(op, "", "the secret is SecretOfStore, which a KeyBuilder does not have")
	}
	if len(secret) < minSecretBytes || len(secret) > maxSecretBytes {
		return nil, core.Invalid(op, "", "the secret has %d bytes, must have from %d to %d", len(secret), minSecretBytes, maxSecretBytes)
	}
	b := NewKeyBuilder(name)
	b.hash = func(key string) string {
		mac := hmac.New(sha256.New, []byte(secret))
		mac.Write([]byte(b.prefix))
		mac.Write([]byte(key))
		return hex.EncodeToString(mac.Sum(nil))
	}
	return b, nil
}

// Key returns the builder's prefix followed by joblock.Key(parts...), or with a secret by 64 hexadecimal digits in its
// place. Parts of which joblock.Key makes a bad key make a bad key here too. A nil KeyBuilder has no prefix and no
// secret.
func (b *KeyBuilder) Key(parts ...string) string {
	key := Key(parts...)
	if b == nil || core.CheckKey("", key) != nil {
		return key
	}
	if b.hash != nil {
		key = b.hash(key)
	}
	return b.prefix + key
}

func needsEscape(r rune) bool { return r == ':' || r == '%' || core.Invisible(r) }

func escapePart(b *strings.Builder, p string) {
	for i := 0; i < len(p); {
		r, n := utf8.DecodeRuneInString(p[i:])
		if needsEscape(r) {
			for _, c := range []byte(p[i : i+n]) {
				fmt.Fprintf(b, "%%%02X", c)
			}
		} else {
			b.WriteString(p[i : i+n])
		}
		i += n
	}
}
