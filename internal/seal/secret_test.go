package seal

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
)

func TestEncryptedTextsAreReadWithTheSameKeysOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s, other shelf
		const text = "a token"
		web, worker := s.ring(t), s.ring(t)
		box, err := web.Encrypt(t.Context(), text)
		if err != nil || strings.Contains(box, text) {
			t.Fatalf("Encrypt: %q, %v", box, err)
		}
		if again, _ := web.Encrypt(t.Context(), text); again == box {
			t.Error("the same text twice has the same form")
		}
		if got, err := worker.Decrypt(t.Context(), box); got != text || err != nil {
			t.Errorf("Decrypt: %q, %v", got, err)
		}
		bySecret, _ := s.ring(t, "the secret of all").Encrypt(t.Context(), text)
		if got, err := other.ring(t, "a newer secret of all", "the secret of all").Decrypt(t.Context(), bySecret); got != text || err != nil {
			t.Errorf("Decrypt with a configured secret: %q, %v", got, err)
		}
		for name, c := range map[string]struct {
			box  string
			ring *Ring
			want error
		}{
			"another store":     {box, other.ring(t), ErrUnknownKey},
			"a secret unknown":  {bySecret, s.ring(t), ErrUnknownKey},
			"secrets only":      {box, s.ring(t, "the secret of all"), ErrUnknownKey},
			"another text":      {box[:len(box)-4] + "AAAA", worker, ErrMismatch},
			"no base64":         {box + "!", worker, ErrMalformed},
			"cut short":         {box[:20], worker, ErrMalformed},
			"empty":             {"", worker, ErrMalformed},
			"a later version":   {"2" + box[1:], worker, ErrNewer},
			"a seal, not a box": {seal(t, web, text), worker, ErrMalformed},
		} {
			if got, err := c.ring.Decrypt(t.Context(), c.box); got != "" || !errors.Is(err, c.want) {
				t.Errorf("%s: %q, %v, want %v", name, got, err, c.want)
			}
		}
	})
}
