package joblock_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/joblock/toolkit/joblock"
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
