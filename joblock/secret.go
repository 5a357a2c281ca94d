package joblock

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/keyspace"
)

// Bounds of a Secret, and of Config.Secrets.
const (
	minSecretBytes = 16
	maxSecretBytes = 1024
	maxSecrets     = 8
)

// Secret is an element of Config.Secrets. A Secret also makes keys that do not reveal their parts: see Secret.Key. fmt,
// slog and encoding/json do not show the text of a Secret.
type Secret string

// SecretOfStore stands for the secret that the store keeps with the locks; see Config.Secrets.
const SecretOfStore Secret = "store"

// Key returns name and "::", followed by an HMAC-SHA256 of joblock.Key(parts...) in hexadecimal digits. So neither a
// program that can read the Redis, nor a client that can make the application build keys, can enumerate the keys or
// take them in advance. No result of joblock.Key equals such a key.
//
// Like joblock.Key, Key returns no error. Every call returns ErrInvalid for its result if name or a part is empty, if
// the parts make a bad key, if s does not have 16 to 1024 bytes, or if s is SecretOfStore.
func (s Secret) Key(name string, parts ...string) string {
	prefix, key := Key(name)+"::", Key(parts...)
	switch {
	case s == SecretOfStore || !s.fits():
		return prefix + keyspace.NoSecret
	case core.CheckKey("", key) != nil:
		return prefix + key
	}
	mac := hmac.New(sha256.New, []byte(s))
	mac.Write([]byte(prefix))
	mac.Write([]byte(key))
	return prefix + hex.EncodeToString(mac.Sum(nil))
}

func (s Secret) fits() bool { return minSecretBytes <= len(s) && len(s) <= maxSecretBytes }

func (s Secret) shown() string {
	switch s {
	case "":
		return ""
	case SecretOfStore:
		return string(s)
	}
	return "(secret)"
}

// Format writes what MarshalText returns, for every verb, %#v and %x included.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprintf(f, fmt.FormatString(f, 's'), s.shown()) }

// MarshalText returns "(secret)", "store" or "". A Config that was marshalled and read again has therefore lost its
// secrets, and New refuses it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }

func checkSecrets(op string, secrets []Secret) error {
	if len(secrets) > maxSecrets {
		return core.Invalid(op, "", "Config.Secrets has %d secrets, at most %d are allowed", len(secrets), maxSecrets)
	}
	for i, s := range secrets {
		if s != SecretOfStore && !s.fits() {
			return core.Invalid(op, "", "Config.Secrets[%d] has %d bytes, must have from %d to %d", i, len(s), minSecretBytes, maxSecretBytes)
		}
	}
	return nil
}
