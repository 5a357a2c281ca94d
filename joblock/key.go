package joblock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of what a caller may pass in.
const (
	MaxKeyBytes    = 512      // of a key, without the store's prefix
	MaxOwnerBytes  = 128      // of a caller-supplied owner
	MaxLabelBytes  = 256      // of a holder label, a job name or a reason
	MaxMemoBytes   = 64 << 10 // of a memo, and so of a result that SingleFlight shares
	MinSecretBytes = 16       // of a key builder's secret
)

// Key joins parts with ':' into a key, escaping '%', ':' and control characters
// inside a part as %XX. It is injective: Key("a:b", "c") and Key("a", "b:c")
// differ, and plain parts stay readable in redis-cli. A result that is empty,
// too long or not UTF-8 is refused where it is used, with ErrInvalid.
func Key(parts ...string) string {
	if len(parts) == 1 && !needsEscape(parts[0]) {
		return parts[0]
	}
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		escapePart(&b, p)
	}
	return b.String()
}

// KeyConfig configures a KeyBuilder.
type KeyConfig struct {
	// Function prefixes every key with a function's name, so that equal keys of
	// different functions do not collide: scope "function". Empty is scope
	// "global".
	Function string
	// Secret, when set, replaces what follows the function's name by an
	// HMAC-SHA256, so that neither guests of the Redis nor makers of keys can
	// enumerate or pre-plant them. At least MinSecretBytes long.
	Secret []byte
}

// KeyBuilder builds the keys of one function or application. It is safe for
// concurrent use.
type KeyBuilder struct {
	prefix string
	secret []byte
}

// NewKeyBuilder returns a KeyBuilder; nil configures global, readable keys.
// It returns ErrInvalid for a secret that is set but shorter than MinSecretBytes.
func NewKeyBuilder(cfg *KeyConfig) (*KeyBuilder, error) {
	if cfg == nil {
		cfg = &KeyConfig{}
	}
	if cfg.Secret != nil && len(cfg.Secret) < MinSecretBytes {
		return nil, invalid("key builder", "", "secret has %d bytes, needs at least %d", len(cfg.Secret), MinSecretBytes)
	}
	b := &KeyBuilder{secret: append([]byte(nil), cfg.Secret...)}
	if cfg.Function != "" {
		b.prefix = Key(cfg.Function) + ":"
	}
	return b, nil
}

// Key builds a key from parts as the function Key does, in the builder's scope.
// With a secret the parts become 64 hexadecimal digits. A key that Key would make
// of parts and that is empty, too long or not UTF-8 is left as it is, to be refused
// where it is used. A nil KeyBuilder is the function Key.
func (b *KeyBuilder) Key(parts ...string) string {
	key := Key(parts...)
	if b == nil || checkKey("", key) != nil {
		return key
	}
	if len(b.secret) > 0 {
		mac := hmac.New(sha256.New, b.secret)
		mac.Write([]byte(b.prefix))
		mac.Write([]byte(key))
		key = hex.EncodeToString(mac.Sum(nil))
	}
	return b.prefix + key
}

func needsEscape(p string) bool {
	for _, r := range p {
		if r == ':' || r == '%' || unicode.IsControl(r) {
			return true
		}
	}
	return false
}

func escapePart(b *strings.Builder, p string) {
	const digits = "0123456789ABCDEF"
	for i := 0; i < len(p); {
		r, n := utf8.DecodeRuneInString(p[i:])
		if r == ':' || r == '%' || unicode.IsControl(r) {
			for _, c := range []byte(p[i : i+n]) {
				b.WriteByte('%')
				b.WriteByte(digits[c>>4])
				b.WriteByte(digits[c&15])
			}
		} else {
			b.WriteString(p[i : i+n])
		}
		i += n
	}
}

// checkKey refuses keys outside the bounds every store can keep.
func checkKey(op, key string) error {
	return checkText(op, key, "key", key, 1, MaxKeyBytes)
}

// checkText refuses a text that is too short, too long, not UTF-8 or has control
// characters in it. The value itself is named only where it is a key.
func checkText(op, key, what, s string, minLen, maxLen int) error {
	if len(s) < minLen {
		return invalid(op, "", "%s is empty", what)
	}
	if len(s) > maxLen {
		return invalid(op, key, "%s has %d bytes, at most %d are allowed", what, len(s), maxLen)
	}
	if !utf8.ValidString(s) {
		return invalid(op, key, "%s is not valid UTF-8", what)
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return invalid(op, key, "%s has a control character (%U) at byte %d", what, r, i)
		}
	}
	return nil
}
