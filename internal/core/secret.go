package core

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"unique"

	"github.com/google/uuid"
)

// secret is an owner that fmt cannot print. If a struct has a Token in an unexported field, fmt does not call the
// Token's methods but prints the fields of the Token. The zero secret is no owner. Secrets of equal owners must be
// equal, so a *string would not do.
//
// The usual owner is a UUID, and is kept enciphered. Any other owner is in a unique.Handle, of which fmt prints only an
// address. A handle would do for UUIDs too, but would cost each job of a worker 2 µs and eight allocations.
type secret struct {
	id    [aes.BlockSize]byte // enciphered by veil; zero if other is set
	other unique.Handle[string]
}

// veil enciphers with a random key of this process.
var veil = func() cipher.Block {
	var key [16]byte
	_, _ = rand.Read(key[:]) // rand.Read never fails
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the length of the key is not one of AES
	}
	return block
}()

func newSecret(owner string) secret {
	id, ok := uuidOwner(owner)
	if !ok {
		return secret{other: unique.Make(owner)}
	}
	veil.Encrypt(id[:], id[:])
	return secret{id: id}
}

// uuidOwner returns owner as a UUID. ok is false if reveal could not restore the same text from that UUID.
func uuidOwner(owner string) (id uuid.UUID, ok bool) {
	if len(owner) != 36 {
		return id, false
	}
	for _, c := range []byte(owner) {
		if c >= 'A' && c <= 'F' {
			return id, false
		}
	}
	id, err := uuid.Parse(owner)
	return id, err == nil
}

// usual reports whether the owner is a UUID.
func (s secret) usual() bool { return s.id != [aes.BlockSize]byte{} }

func (s secret) reveal() string {
	switch {
	case s == (secret{}):
		return ""
	case !s.usual():
		return s.other.Value()
	}
	id := uuid.UUID(s.id)
	veil.Decrypt(id[:], id[:])
	return id.String()
}
