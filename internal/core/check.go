package core

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// Invisible reports whether r shows nothing itself, but may change what shows next to it. With such characters two
// different keys could look alike, or a key could look like another text on an operator's screen. Names may contain
// them, and some scripts need them, so Key writes an invisible character as %XX, and CheckKey refuses a key that
// contains one unescaped. Characters that Unicode has not assigned yet count as visible: which characters those are
// depends on the Go release, and two programs must not make different keys of one text.
func Invisible(r rune) bool {
	return unicode.IsControl(r) || r > unicode.MaxASCII && unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp)
}

// CheckKey returns ErrInvalid for a text that cannot be a key, the toolkit's keys included.
func CheckKey(op, key string) error {
	if err := CheckText(op, key, "key", key, 1, driver.MaxKeyBytes); err != nil {
		return err
	}
	if detail := keyspace.CheckParts(key); detail != "" {
		return Invalid(op, key, "%s", detail)
	}
	for i, r := range key {
		if Invisible(r) {
			return Invalid(op, key, "key has an invisible character (%U) at byte %d", r, i)
		}
	}
	return nil
}

// separators are characters with which applications join the parts of keys. Characters that may also end an identifier,
// such as '-', are not among them.
const separators = ":/|#"

// maxDoubtful is how many doubtful keys a Locker logs. Without a bound, a client could fill the log, because keys may
// come from clients.
const maxDoubtful = 16

// doubt logs a warning, once per key, if a part of the key seems to be missing.
func (l *Locker) doubt(op, key string) {
	if i := strings.LastIndexByte(key, '%'); i >= 0 && keyspace.CheckApplication(key) != "" {
		key = key[:i] // the application's part of a key that the toolkit has made of it
	}
	if key == "" {
		return // a key of the toolkit alone
	}
	found := missing(key)
	if found == "" {
		return
	}
	l.mu.Lock()
	logged := l.doubtful[key] || len(l.doubtful) == maxDoubtful
	if !logged {
		l.doubtful[key] = true
	}
	l.mu.Unlock()
	if !logged {
		l.cfg.Logger.Warn("joblock: the key "+found+": if a part is missing, all callers without that part share one lock; build the key with joblock.Key, so that an empty part is refused",
			"key", key, "op", op)
	}
}

// missing says where a part of key seems to be missing, or returns "". An empty part in the middle does not mean that:
// ARNs, IPv6 addresses and names of classes have two colons in a row.
func missing(key string) string {
	text := strings.TrimSpace(key)
	if text == "" {
		return "is blank"
	}
	ends := strings.IndexByte(separators, text[len(text)-1]) >= 0
	switch {
	case ends && strings.HasSuffix(key, text):
		return "ends in a separator"
	case ends:
		return "ends in a blank part"
	case text[0] == ':' && !strings.HasPrefix(text, "::"):
		return "begins with a separator"
	}
	return ""
}

// CheckTaken returns ErrInvalid for a key that applications cannot take. If own is set, the toolkit's keys pass.
func CheckTaken(op, key string, own bool) error {
	if err := CheckKey(op, key); err != nil || own {
		return err
	}
	if detail := keyspace.CheckApplication(key); detail != "" {
		return Invalid(op, key, "%s", detail)
	}
	return nil
}

// CheckText returns ErrInvalid for a text that is too short or too long, is not UTF-8, or has control characters. The
// error contains the text only if the text is the key.
func CheckText(op, key, what, s string, minLen, maxLen int) error {
	if len(s) < minLen {
		return Invalid(op, "", "%s is empty", what)
	}
	if len(s) > maxLen {
		advice := ""
		if what == "key" {
			advice = ": replace its long parts by a hash, such as SHA-256"
		}
		return Invalid(op, key, "%s has %d bytes, at most %d are allowed%s", what, len(s), maxLen, advice)
	}
	if !utf8.ValidString(s) {
		return Invalid(op, key, "%s is not valid UTF-8", what)
	}
	for i, r := range s {
		if unicode.IsControl(r) {
			return Invalid(op, key, "%s has a control character (%U) at byte %d", what, r, i)
		}
	}
	return nil
}

// CheckPeriod returns ErrInvalid if d is below least or above most. what is the name of d in the error.
func CheckPeriod(op, key, what string, d, least, most time.Duration) error {
	return checkDurations(op, key, duration{what, d, least, most})
}
