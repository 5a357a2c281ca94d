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
	"strings"
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
	id  string // not a secret
	key []byte
}

// newSigner derives id and key from the secret. The id reveals neither key nor secret.
func newSigner(secret []byte) signer {
	return signer{
		id:  hex.EncodeToString(hash(secret, "joblock seal: name")[:idBytes]),
		key: hash(secret, "joblock seal: key"),
	}
}

func hash(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// frame has the parts of a sealed text.
type frame struct{ key, store, mac, text string }

// signed returns what the MAC covers. Only the last part varies in length: different frames have different results.
func (f frame) signed() string { return version + "." + f.key + "." + f.store + "." + f.text }

// seal returns f with key and MAC set.
func (s signer) seal(f frame) frame {
	f.key = s.id
	f.mac = base64.RawURLEncoding.EncodeToString(hash(s.key, f.signed()))
	return f
}

// check returns ErrMismatch unless the MAC of f is right, after a comparison in constant time.
func (s signer) check(f frame) error {
	mac, err := base64.RawURLEncoding.Strict().DecodeString(f.mac)
	if err != nil || !hmac.Equal(mac, hash(s.key, f.signed())) {
		return ErrMismatch
	}
	return nil
}

func (f frame) String() string {
	return version + "." + f.key + "." + f.store + "." + f.mac + "." + f.text
}

func parse(sealed string) (frame, error) {
	parts := strings.SplitN(sealed, ".", 5)
	if len(parts) != 5 || parts[0] != version || len(parts[1]) != idLen || len(parts[2]) != idLen || len(parts[3]) != macLen {
		return frame{}, ErrMalformed
	}
	return frame{key: parts[1], store: parts[2], mac: parts[3], text: parts[4]}, nil
}
