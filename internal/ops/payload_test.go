package ops

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// A payload is shown without tokens of locks, wherever they stand, and without what is called a secret.
func TestWhatIsShownOfAPayload(t *testing.T) {
	t.Parallel()
	token, err := joblock.NewToken("export:7", "the-owner-never-shown", time.Minute)
	testkit.WantNil(t, "NewToken", err)
	raw, err := token.MarshalText()
	testkit.WantNil(t, "MarshalText", err)
	secret := string(raw)
	long := strings.Repeat("ä", payloadShown)
	for name, c := range map[string]struct {
		raw, want string
		hidden    int
		cut       bool
	}{
		"empty":               {"", "(0 bytes) It is empty.", 0, false},
		"JSON":                {` {"b":1.50,"a":["<x>",null,true,12345678901234567890]} `, `{"a":["<x>",null,true,12345678901234567890],"b":1.50}`, 0, false},
		"a secret":            {`{"user":"ann","Password":"x","n":{"apiKey":[1],"auth_token":null}}`, `{"Password":"(hidden)","n":{"apiKey":"(hidden)","auth_token":null},"user":"ann"} (2 hidden)`, 2, false},
		"a token in JSON":     {fmt.Sprintf(`{"lock":%q,"also":["x %s"],%q:1}`, secret, secret, secret), "", 3, false},
		"a token in text":     {"export 7 under " + secret + ", please", "", 1, false},
		"a token with a name": {"lock-" + secret, "", 1, false},
		"a token past cut":    {strings.Repeat("x ", payloadShown/2-5) + secret, "", 1, true},
		"two values":          {`{"password":1} {"password":2}`, `{"password":1} {"password":2}`, 0, false},
		"text":                {"a\x1b[2Jb\n", `a\x1b[2Jb\n`, 0, false},
		"no text":             {"\xff\x00\x01", "(3 bytes) It is no text.", 0, false},
		"long":                {long + "ä", long + fmt.Sprintf("… (%d bytes in all)", 2*payloadShown+2), 0, true},
		"too long":            {strings.Repeat(" ", payloadRead+1), "(1048577 bytes) It is longer than 1048576 bytes.", 0, false},
	} {
		p := payloadOf([]byte(c.raw))
		text := p.String()
		all, err := json.Marshal(p)
		testkit.WantNil(t, "Marshal", err)
		if p.Bytes != len(c.raw) || p.Hidden != c.hidden || p.Cut != c.cut || c.want != "" && text != c.want {
			t.Errorf("%s: %+v, %s; want %s", name, p, text, c.want)
		}
		for _, shown := range []string{text, string(all)} {
			if strings.Contains(shown, secret[:24]) || strings.Contains(shown, secret[len(secret)-24:]) || strings.Contains(shown, "the-owner") {
				t.Errorf("%s: the token is shown: %s", name, shown)
			}
		}
	}
}

// The payload is that of the task, in whatever database it is.
func TestPayloadOfATask(t *testing.T) {
	t.Parallel()
	staged(t, func(t *testing.T, s *stage) {
		s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStatePending, Payload: []byte(`{"account":7}`)})
		p, err := s.Payload(t.Context(), "default/1")
		if err != nil || p.Text != `{"account":7}` {
			t.Errorf("%+v, %v", p, err)
		}
		_, err = s.Payload(t.Context(), "default/2")
		testkit.WantErr(t, err, joblock.ErrNotFound)
		_, err = s.Payload(t.Context(), "default")
		testkit.WantErr(t, err, joblock.ErrInvalid)
	})
}
