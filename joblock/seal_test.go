package joblock_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
)

func TestSecretsAreNotShown(t *testing.T) {
	const secret = "correct horse battery"
	cfg := joblock.Config{Secrets: []joblock.Secret{secret, joblock.SecretOfStore}}
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("config", "cfg", cfg, "secret", cfg.Secrets[0])
	shown := []string{string(text), log.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		shown = append(shown, fmt.Sprintf(verb, cfg.Secrets), fmt.Sprintf(verb, &cfg))
	}
	for _, s := range shown {
		if strings.Contains(s, secret) || strings.Contains(s, fmt.Sprintf("%x", secret)) {
			t.Errorf("shown: %s", s)
		}
	}
	if got := fmt.Sprint(cfg.Secrets, joblock.Secret("")); got != "[(secret) store]" {
		t.Errorf("%q", got)
	}
}

// What is code has no place in JSON: a Config that was read again has the defaults.
func TestConfigInJSON(t *testing.T) {
	cfg := joblock.Config{TTL: time.Minute, Logger: slog.Default(), Observer: func(event.Event) {}}
	text, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var read joblock.Config
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if read.TTL != time.Minute || read.Logger != nil || read.Observer != nil {
		t.Errorf("%s was read as %+v", text, read)
	}
}
