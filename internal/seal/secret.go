package seal

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"strings"
)

// Encrypt returns text in a form that only those who share the sealing key can read, for a place that other programs read too.
// Unlike Seal it hides the text. Errors are those of the store.
func (r *Ring) Encrypt(ctx context.Context, text string) (string, error) {
	signers, err := r.current(ctx)
	if err != nil {
		return "", err
	}
	s := *cmp.Or(r.first, &signers[len(signers)-1])
	box := s.cipher().Seal(nil, nil, []byte(text), []byte(s.id))
	return version + "." + s.id + "." + base64.RawURLEncoding.EncodeToString(box), nil
}

// Decrypt is the reverse of Encrypt. Errors are those of Open.
func (r *Ring) Decrypt(ctx context.Context, secret string) (string, error) {
	if isNewer(secret) {
		return "", ErrNewer
	}
	id, coded, ok := strings.Cut(strings.TrimPrefix(secret, version+"."), ".")
	if !ok || !strings.HasPrefix(secret, version+".") || len(id) != idLen {
		return "", ErrMalformed
	}
	s, err := r.signer(ctx, id)
	if err != nil {
		return "", err
	}
	box, err := base64.RawURLEncoding.DecodeString(coded)
	if err != nil {
		return "", ErrMalformed
	}
	text, err := s.cipher().Open(nil, nil, box, []byte(id))
	if err != nil {
		return "", ErrMismatch
	}
	return string(text), nil
}

// signer returns the signer with this id, of a secret or of the store.
func (r *Ring) signer(ctx context.Context, id string) (signer, error) {
	for _, s := range r.secrets {
		if s.id == id {
			return s, nil
		}
	}
	if !r.stored {
		return signer{}, ErrUnknownKey
	}
	return r.find(ctx, id, true)
}

// cipher returns AES-256-GCM with random nonces, with a key derived from the key of s.
func (s signer) cipher() cipher.AEAD {
	block, err := aes.NewCipher(s.derive("encrypt.", ""))
	if err == nil {
		var aead cipher.AEAD
		if aead, err = cipher.NewGCMWithRandomNonce(block); err == nil {
			return aead
		}
	}
	panic("seal: " + err.Error()) // the key has 32 bytes
}
