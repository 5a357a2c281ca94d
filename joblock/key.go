package joblock

import (
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
// Key returns no error. Instead, every call that takes a key returns ErrInvalid for a key that is empty, longer than
// 512 bytes or not UTF-8, and for a result of Key with an empty part. The error names the empty part, usually a missing
// parameter: without the check all such requests would share one key.
//
// In a key that was joined in another way, such as "export:" + id, no call can check the parts: with an empty id, all
// requests share the key "export:". A Locker accepts that key, and logs a warning for a key that is blank, begins with one
// ':', or ends in a separator, with or without blanks after it.
//
// For texts that may be long, such as URLs and lists of filters, put a hash into the key: the hexadecimal digits of
// their SHA-256, or Secret.Key, which hashes all parts.
//
// Keys are compared byte by byte: "Acct" and "acct" differ, and so do "7" and "07", and the two Unicode forms of "é".
// Only the application knows which texts mean the same, so normalise texts before you call Key: trim them, fold their
// case, convert them to NFC, and format numbers from their parsed values.
//
// A key that was not built with Key must be UTF-8 without invisible characters. Two upper-case hexadecimal digits must
// follow each '%'. All other keys with '%' belong to the toolkit. Calls that take a lock refuse the toolkit's keys with
// ErrInvalid; ForceRelease and calls that read locks accept the toolkit's keys.
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
