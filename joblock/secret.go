package joblock

import (
	"fmt"

	"github.com/joblock/toolkit/internal/core"
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

// MarshalText returns "(secret)", "store" or "". A Config that was marshalled and read again has therefore lost its
// secrets, and New refuses it.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.shown()), nil }

func checkSecrets(op string, secrets []Secret) error {
	if len(secrets) > maxSecrets {
		return core.Invalid(op, "", "Config.Secrets has %d secrets, at most %d are allowed", len(secrets), maxSecrets)
	}
	for i, s := range secrets {
		if s != SecretOfStore && (len(s) < minSecretBytes || len(s) > maxSecretBytes) {
			return core.Invalid(op, "", "Config.Secrets[%d] has %d bytes, must have from %d to %d", i, len(s), minSecretBytes, maxSecretBytes)
		}
	}
	return nil
}
