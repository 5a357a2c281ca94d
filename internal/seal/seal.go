// Package seal seals texts for holders of a shared key; see package envelope for the purpose.
//
// A sealed text is "1.key.store.mac.text": the version, the name of the key, the name of the sealer's store, and
// HMAC-SHA256 over all the rest. The MAC is over the encoded text, which is decoded only after the MAC has been verified.
// So it does not matter that other texts can decode to the same value.
//
// Versions are decimal numbers. A build that does not know the version of a seal cannot verify it: the error is ErrNewer,
// and the task waits for a worker that can. So put changes into the text where possible.
package seal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"strconv"
	"strings"
	"sync"
)

// Reasons why a text cannot be trusted. Any other error of a Ring means that the store has not answered, and the text
// may be genuine.
var (
	ErrMalformed  = errors.New("the text is not a sealed text")
	ErrNewer      = errors.New("the text is sealed in a version that this build does not know")
	ErrUnknownKey = errors.New("the text was sealed with a key that is not known here")
	ErrMismatch   = errors.New("the seal does not match the text")
)

const (
	version = "1"
	idBytes = 8
)

const (
	idLen  = 2 * idBytes             // in hex
	macLen = (sha256.Size*8 + 5) / 6 // in base64
)

// signer seals with one secret.
type signer struct {
	id   string     // not a secret
	macs *sync.Pool // of *mac, with the key; making one takes longer than sealing with it
}

// mac is an HMAC with a key, and buffers for its input and output.
type mac struct {
	hash.Hash
	part [1024]byte // most texts fit; of a longer one, which may be hostile, a pool must not keep a copy
	sum  [sha256.Size]byte
	code [macLen]byte // the sum in base64
}

// newSigner derives id and key from the secret. The id reveals neither key nor secret.
func newSigner(secret []byte) signer {
	key := derive(secret, "joblock seal: key")
	return signer{
		id:   hex.EncodeToString(derive(secret, "joblock seal: name")[:idBytes]),
		macs: &sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, key)} }},
	}
}

func derive(secret []byte, purpose string) []byte {
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(purpose))
	return h.Sum(nil)
}

// frame has the parts of a sealed text.
type frame struct{ head, key, store, mac, text string }

// headOf returns the beginning of a sealed text. The MAC covers the head and the text. All heads have the same length, so
// different frames differ in what the MAC covers.
func headOf(key, store string) string { return version + "." + key + "." + store + "." }

// sum returns the MAC of a text with this head, in a mac that the caller puts back into s.macs.
func (s signer) sum(head, text string) *mac {
	m := s.macs.Get().(*mac)
	m.Reset()
	for _, rest := range [...]string{head, text} {
		for rest != "" {
			n := copy(m.part[:], rest)
			m.Write(m.part[:n])
			rest = rest[n:]
		}
	}
	m.Sum(m.sum[:0])
	return m
}

// coded returns sum with the MAC in base64 too.
func (s signer) coded(head, text string) *mac {
	m := s.sum(head, text)
	base64.RawURLEncoding.Encode(m.code[:], m.sum[:])
	return m
}

// seal returns the sealed form of text. store is the name of the sealer's store.
func (s signer) seal(store, text string) string {
	head := headOf(s.id, store)
	m := s.coded(head, text)
	defer s.macs.Put(m)
	return head + string(m.code[:]) + "." + text
}

// derive returns the MAC of a text with this head.
func (s signer) derive(head, text string) []byte {
	m := s.sum(head, text)
	defer s.macs.Put(m)
	return bytes.Clone(m.sum[:])
}

// check returns ErrMismatch unless the MAC of f is right, after a comparison in constant time.
func (s signer) check(f frame) error {
	m := s.coded(f.head, f.text)
	defer s.macs.Put(m)
	if !hmac.Equal(m.code[:], []byte(f.mac)) {
		return ErrMismatch
	}
	return nil
}

// Text returns the text of a sealed text without verifying the seal, for showing it to people. The error is ErrMalformed
// or ErrNewer.
func Text(sealed string) (string, error) {
	f, err := parse(sealed)
	return f.text, err
}

// Offsets of the parts of a sealed text.
const (
	keyAt   = len(version + ".")
	storeAt = keyAt + idLen + 1
	macAt   = storeAt + idLen + 1
	textAt  = macAt + macLen + 1
)

func parse(sealed string) (frame, error) {
	if isNewer(sealed) {
		return frame{}, ErrNewer
	}
	if len(sealed) < textAt || sealed[:keyAt] != version+"." ||
		sealed[storeAt-1] != '.' || sealed[macAt-1] != '.' || sealed[textAt-1] != '.' {
		return frame{}, ErrMalformed
	}
	return frame{
		head: sealed[:macAt], key: sealed[keyAt : storeAt-1], store: sealed[storeAt : macAt-1], mac: sealed[macAt : textAt-1],
		text: sealed[textAt:],
	}, nil
}

// maxVersion is the maximum number of digits of a version.
const maxVersion = 4

// isNewer reports whether sealed begins as a sealed text of a version after this one.
func isNewer(sealed string) bool {
	digits, _, ok := strings.Cut(sealed[:min(len(sealed), maxVersion+1)], ".")
	n, err := strconv.ParseUint(digits, 10, 32)
	return ok && err == nil && digits[0] != '0' && strconv.FormatUint(n, 10) != version
}
