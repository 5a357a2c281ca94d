// Package seal seals texts for those who share a key; see package envelope for the purpose.
//
// A sealed text is "1.key.store.mac.text": the version, the name of the key, the name of the sealer's store, and
// HMAC-SHA256 over all the rest. The MAC is over the text as it stands. The text is decoded only after the MAC was
// found right. So it does not matter that other texts can decode to the same value.
package seal

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"strings"
	"sync"
)

// Reasons why a text cannot be trusted. Any other error of a Ring means that the store has not answered, and the text
// may be genuine.
var (
	ErrMalformed  = errors.New("the text is not sealed in a version that this build knows")
	ErrUnknownKey = errors.New("the text was sealed with a key that is not known here")
	ErrMismatch   = errors.New("the seal does not match the text")
)

const (
	version = "1"
	idBytes = 8
)

var (
	idLen  = hex.EncodedLen(idBytes)
	macLen = base64.RawURLEncoding.EncodedLen(sha256.Size)
)

// signer seals with one secret.
type signer struct {
	id   string     // not a secret
	macs *sync.Pool // of hash.Hash, an HMAC with the key; to make such a hash takes longer than to seal with it
}

// newSigner derives id and key from the secret. The id reveals neither key nor secret.
func newSigner(secret []byte) signer {
	key := derive(secret, "joblock seal: key")
	return signer{
		id:   hex.EncodeToString(derive(secret, "joblock seal: name")[:idBytes]),
		macs: &sync.Pool{New: func() any { return hmac.New(sha256.New, key) }},
	}
}

func derive(secret []byte, purpose string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// frame has the parts of a sealed text.
type frame struct{ key, store, mac, text string }

// head returns the beginning of a sealed text. The MAC covers the head and the text. All heads have the same length, so
// different frames differ in what the MAC covers.
func (f frame) head() string { return version + "." + f.key + "." + f.store + "." }

// sum returns the MAC of a text with this head.
func (s signer) sum(head, text string) []byte {
	h := s.macs.Get().(hash.Hash)
	defer s.macs.Put(h)
	h.Reset()
	h.Write([]byte(head))
	h.Write([]byte(text))
	return h.Sum(nil)
}

// seal returns the sealed form of text. The parameter store is the name of the sealer's store.
func (s signer) seal(store, text string) string {
	head := frame{key: s.id, store: store}.head()
	return head + base64.RawURLEncoding.EncodeToString(s.sum(head, text)) + "." + text
}

// strict is here, because each call of Strict makes another table.
var strict = base64.RawURLEncoding.Strict()

// check returns ErrMismatch unless the MAC of f is right, after a comparison in constant time.
func (s signer) check(f frame) error {
	mac, err := strict.DecodeString(f.mac)
	if err != nil || !hmac.Equal(mac, s.sum(f.head(), f.text)) {
		return ErrMismatch
	}
	return nil
}

// Text returns the text of a sealed text, and does not verify the seal. Text is for showing the text to people. The error
// is ErrMalformed.
func Text(sealed string) (string, error) {
	f, err := parse(sealed)
	return f.text, err
}

func parse(sealed string) (frame, error) {
	parts := strings.SplitN(sealed, ".", 5)
	if len(parts) != 5 || parts[0] != version || len(parts[1]) != idLen || len(parts[2]) != idLen || len(parts[3]) != macLen {
		return frame{}, ErrMalformed
	}
	return frame{key: parts[1], store: parts[2], mac: parts[3], text: parts[4]}, nil
}
