//go:build servers

package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/slogobserver"
)

// output is all that a program gives away: what it logs, what its observers get,
// and all that it prints. What it measures is made of what observers get; the
// module of otelobserver has a test of its own for that.
type output struct {
	logger *slog.Logger

	mu      sync.Mutex // guards what follows
	text    bytes.Buffer
	kinds   map[event.Kind]int
	secrets map[string]string // what must not be in text, and what it is
}

func newOutput(t *testing.T) *output {
	t.Helper()
	o := &output{kinds: make(map[event.Kind]int), secrets: make(map[string]string)}
	o.logger = slog.New(slog.NewJSONHandler(o, &slog.HandlerOptions{Level: slog.LevelDebug}))
	return o
}

// Write takes what a logger writes.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// observer is all there are, and one that is broken.
func (o *output) observer() event.Observer {
	return event.Observers(slogobserver.New(o.logger, nil), func(e event.Event) {
		o.mu.Lock()
		o.kinds[e.Kind]++
		o.mu.Unlock()
		o.note(e)
	}, func(event.Event) { panic("a broken observer") })
}

// note has values printed in all the ways in which people print them.
func (o *output) note(values ...any) {
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(o, verb+"\n", v)
		}
		switch v := v.(type) {
		case error:
			o.logger.Error("an error", "err", v)
		case *joblock.Lock, joblock.Token, joblock.Locks: // their JSON is the token, and a secret
			o.logger.Info("a lock", "lock", v)
		default:
			text, err := json.Marshal(v)
			fmt.Fprintf(o, "%s %v\n", text, err)
			o.logger.Info("a value", "value", v)
		}
	}
}

// Debug and the others make it a logger of asynq's.
func (o *output) Debug(args ...any) { o.note(fmt.Sprint(args...)) }
func (o *output) Info(args ...any)  { o.note(fmt.Sprint(args...)) }
func (o *output) Warn(args ...any)  { o.note(fmt.Sprint(args...)) }
func (o *output) Error(args ...any) { o.note(fmt.Sprint(args...)) }
func (o *output) Fatal(args ...any) { o.note(fmt.Sprint(args...)) }

// hide has check look for an owner: whole, by its parts, and as it stands in tokens.
func (o *output) hide(owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(owner) != 36 {
		return // one that the test has made up, for what refuses it
	}
	o.secrets[owner] = "an owner"
	o.secrets[owner[:8]] = "the first part of an owner"
	o.secrets[owner[24:]] = "the last part of an owner"
	o.secrets[hex.EncodeToString([]byte(owner))] = "an owner in hex"
	// Base64 makes four letters of three bytes, so what it makes of an owner somewhere
	// in a token is, but for the ends, one of three.
	for from := range 3 {
		part := owner[from : from+33]
		o.secrets[base64.RawURLEncoding.EncodeToString([]byte(part))] = "an owner in a token"
		o.secrets[base64.RawStdEncoding.EncodeToString([]byte(part))] = "an owner in a token"
	}
}

// check looks for the secrets.
func (o *output) check(t *testing.T) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	text := o.text.String()
	lower := strings.ToLower(text)
	found := 0
	for secret, what := range o.secrets {
		i := max(strings.Index(text, secret), strings.Index(lower, secret))
		if i < 0 {
			continue
		}
		if found++; found <= 10 {
			t.Errorf("%s is in\n%s", what, text[max(0, i-200):min(len(text), i+200)])
		}
	}
	t.Logf("%d bytes of output searched for %d forms of owners", len(text), len(o.secrets))
	if len(o.secrets) < 50 || len(text) < 10_000 {
		t.Error("that is too little to be all")
	}
	var missing []string
	// A late renewal takes a timing that a busy machine does not give; it tells nothing
	// that the others do not.
	for kind := event.Acquired; kind <= event.CleanupFailed; kind++ {
		if o.kinds[kind] == 0 && kind != event.RenewedLate {
			missing = append(missing, kind.String())
		}
	}
	if slices.Sort(missing); len(missing) > 0 {
		t.Errorf("the scenario had none of the events %q", missing)
	}
}

// The search finds what it is for.
func TestOutputIsSearched(t *testing.T) {
	const owner = "0f5c1d2e-6a7b-4c8d-9e0f-a1b2c3d4e5f6"
	for name, text := range map[string]string{
		"whole": owner, "upper case": strings.ToUpper(owner), "shortened": owner[:8] + "…", "hex": fmt.Sprintf("%x", owner),
		"token": base64.RawURLEncoding.EncodeToString([]byte("some key and then " + owner + " and more")),
		"body":  base64.StdEncoding.EncodeToString([]byte("a" + owner)),
	} {
		o := newOutput(t)
		o.hide(owner)
		found := false
		for secret := range o.secrets {
			found = found || strings.Contains(strings.ToLower(text), secret) || strings.Contains(text, secret)
		}
		if !found {
			t.Errorf("%s: %q is not found", name, text)
		}
	}
}
