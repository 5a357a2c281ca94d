package joblock

import (
	"context"
	"fmt"

	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock/driver"
)

// Bounds of a Secret, and of Config.Secrets.
const (
	minSecretBytes = 16
	maxSecretBytes = 1024
	maxSecrets     = 8
)

// Secret is one of Config.Secrets, or the secret of a KeyBuilder. fmt, slog and encoding/json do not show its text.
type Secret string

// SecretOfStore stands for the secret that the store keeps with the locks; see Config.Secrets.
const SecretOfStore Secret = "store"

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

// MarshalText returns "(secret)", "store" or "". So a Config that was marshalled and read again has lost its secrets,
// and New refuses that Config.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }

func checkSecrets(op string, secrets []Secret) error {
	if len(secrets) > maxSecrets {
		return invalid(op, "", "Config.Secrets has %d secrets, at most %d are allowed", len(secrets), maxSecrets)
	}
	for i, s := range secrets {
		if s != SecretOfStore && (len(s) < minSecretBytes || len(s) > maxSecretBytes) {
			return invalid(op, "", "Config.Secrets[%d] has %d bytes, must have from %d to %d", i, len(s), minSecretBytes, maxSecretBytes)
		}
	}
	return nil
}

func newRing(l *Locker) *seal.Ring {
	sources := make([][]byte, len(l.cfg.Secrets))
	for i, s := range l.cfg.Secrets {
		if s != SecretOfStore {
			sources[i] = []byte(s)
		}
	}
	return seal.NewRing(seal.Config{Load: l.sealKeys, Sources: sources, Where: l.where})
}

// sealKeys reads the seal keys that the store keeps with the locks.
func (l *Locker) sealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	const op = "read seal keys"
	if err := l.open(op, ""); err != nil {
		return nil, err
	}
	keys, err := ask(ctx, l, op, "", l.store.SealKeys, req)
	if err == nil && len(keys) == 0 {
		err = &Error{Code: codeUnavailable, Op: op, Detail: "the store gave no key"}
	}
	return keys, err
}

func (l *Locker) where() string {
	if s, ok := l.store.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("a %T", l.store)
}
