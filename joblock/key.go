package joblock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// minSecretBytes is the least length of a key builder's secret, and of Config.Secrets.
const minSecretBytes = 16

// Key joins parts with ':' into a key. Different parts make different keys: Key("a:b",
// "c") and Key("a", "b:c") differ. Plain parts stay readable. Inside a part Key writes
// '%', ':' and invisible characters (control characters and those of the Unicode
// categories Cf, Zl and Zp, such as a zero-width space) as %XX.
//
// Key returns no error. Every call refuses a key with ErrInvalid if it is empty, longer
// than 512 bytes, not UTF-8, or has an empty part, which the error names. An empty part
// is mostly a missing parameter, and would make one key of all requests.
//
// Keys are compared byte by byte. "Acct" and "acct" are two keys, "7" and "07", and "é"
// as one code point and as two. Only the application knows which of them mean the same.
// It must normalise them before it calls Key: trim, fold case, normalise to NFC, print
// the number that was parsed.
//
// A key that was not built with Key must be UTF-8 without invisible characters. It may
// have '%' only before two upper-case hexadecimal digits. All other keys with '%' are
// the toolkit's own: calls that take a lock refuse them with ErrInvalid; calls that
// read locks, and ForceRelease, accept them.
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

// KeyBuilder builds the keys of one function or application. It is safe for
// concurrent use.
type KeyBuilder struct {
	prefix string
	secret []byte
}

// NewKeyBuilder returns a KeyBuilder whose keys all begin with the function's name and
// "::". The function Key makes no such key. So the keys of one function differ from
// those of another, and from all keys without one. An empty function means no prefix.
//
// With a secret, not nil, an HMAC-SHA256 replaces what follows the prefix. Then neither
// readers of the Redis nor makers of keys can enumerate keys or plant them in advance.
// ErrInvalid: the secret has fewer than 16 bytes.
func NewKeyBuilder(function string, secret []byte) (*KeyBuilder, error) {
	if secret != nil && len(secret) < minSecretBytes {
		return nil, invalid("key builder", "", "secret has %d bytes, needs at least %d", len(secret), minSecretBytes)
	}
	b := &KeyBuilder{secret: append([]byte(nil), secret...)}
	if function != "" {
		b.prefix = Key(function) + "::"
	}
	return b, nil
}

// Key is the function Key within the builder's scope. With a secret the parts become 64
// hexadecimal digits. Parts that are refused without a builder are refused with one,
// too. A nil KeyBuilder is the function Key.
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

func needsEscape(r rune) bool { return r == ':' || r == '%' || invisible(r) }

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

// invisible reports whether r shows nothing itself, but may change what shows beside
// it: two keys that look alike would be different, or one would look like something
// else on an operator's screen. Names may contain such characters; some scripts need
// them. So Key writes them as %XX, and keys are refused only if they were built without
// it. Characters that Unicode has not assigned yet count as visible: which these are
// depends on the Go release, and two programs must not make different keys of one text.
func invisible(r rune) bool {
	return unicode.IsControl(r) || r > unicode.MaxASCII && unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// checkKey refuses keys that nobody can have.
func checkKey(op, key string) error {
	if err := checkText(op, key, "key", key, 1, driver.MaxKeyBytes); err != nil {
		return err
	}
	if detail := keyspace.CheckParts(key); detail != "" {
		return invalid(op, key, "%s", detail)
	}
	for i, r := range key {
		if invisible(r) {
			return invalid(op, key, "key has an invisible character (%U) at byte %d", r, i)
		}
	}
	return nil
}

// checkTaken refuses keys that applications cannot take. With own it accepts those of
// the toolkit.
func checkTaken(op, key string, own bool) error {
	if err := checkKey(op, key); err != nil || own {
		return err
	}
	if detail := keyspace.CheckApplication(key); detail != "" {
		return invalid(op, key, "%s", detail)
	}
	return nil
}

// checkText refuses a text that is too short, too long, not UTF-8 or has control
// characters in it. Errors contain the text only if it is a key.
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
