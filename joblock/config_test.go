package joblock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

func TestConfigOutOfBoundsIsRefused(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  joblock.Config
		says []string
	}{
		{"negative TTL", joblock.Config{TTL: -time.Second}, []string{"Config.TTL is -1s", "at least 1ms"}},
		{"sub-millisecond TTL", joblock.Config{TTL: 999 * time.Microsecond}, []string{"Config.TTL is 999µs", "at least 1ms"}},
		{"TTL above MaxTTL", joblock.Config{TTL: time.Hour, MaxTTL: time.Minute}, []string{"Config.TTL is 1h0m0s", "at most 1m0s"}},
		{"huge TTL", joblock.Config{TTL: 400 * 24 * time.Hour}, []string{"Config.MaxTTL is 9600h0m0s", "at most 8784h0m0s"}},
		{"negative MaxTTL", joblock.Config{MaxTTL: -1}, []string{"Config.TTL"}},
		{"margin above half the TTL", joblock.Config{Margin: 16 * time.Second}, []string{"Config.Margin is 16s", "at most 15s"}},
		{"negative margin", joblock.Config{Margin: -1}, []string{"Config.Margin is -1ns", "at least 0s"}},
		{"negative MaxRenew", joblock.Config{MaxRenew: -1}, []string{"Config.MaxRenew"}},
		{"negative Reserve", joblock.Config{Reserve: -1}, []string{"Config.Reserve"}},
		{"negative Retain", joblock.Config{Retain: -1}, []string{"Config.Retain"}},
		{"negative JobGrace", joblock.Config{JobGrace: -1}, []string{"Config.JobGrace is -1ns", "at least 1ms"}},
		{"long JobGrace", joblock.Config{JobGrace: 9000 * time.Hour}, []string{"Config.JobGrace", "at most 8784h"}},
		{"negative Poll", joblock.Config{Poll: -1}, []string{"Config.Poll"}},
		{"long Poll", joblock.Config{Poll: 2 * time.Hour}, []string{"Config.Poll is 2h0m0s", "at most 1h0m0s"}},
		{"negative CallTimeout", joblock.Config{CallTimeout: -1}, []string{"Config.CallTimeout"}},
		{"short secret", joblock.Config{Secrets: []joblock.Secret{joblock.SecretOfStore, "fifteen bytes.."}},
			[]string{"Config.Secrets[1] has 15 bytes", "from 16 to 1024"}},
		{"empty secret", joblock.Config{Secrets: []joblock.Secret{""}}, []string{"Config.Secrets[0] has 0 bytes"}},
		{"long secret", joblock.Config{Secrets: []joblock.Secret{joblock.Secret(strings.Repeat("s", 1025))}}, []string{"Config.Secrets[0] has 1025 bytes"}},
		{"many secrets", joblock.Config{Secrets: make([]joblock.Secret, 9)}, []string{"Config.Secrets has 9 secrets", "at most 8"}},
		{"long Holder", joblock.Config{Holder: strings.Repeat("h", 257)}, []string{"Config.Holder has 257 bytes", "at most 256"}},
		{"Holder with a line break", joblock.Config{Holder: "a\nb"}, []string{"Config.Holder", "U+000A"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			locks, err := joblock.New(memstore.New(nil), &c.cfg)
			if locks != nil {
				t.Error("got a Locker")
			}
			wantErr(t, err, joblock.ErrInvalid)
			for _, s := range c.says {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not say %q", err, s)
				}
			}
		})
	}
}

func TestNewWarnsOfAShortTTL(t *testing.T) {
	k := newKit(t, &joblock.Config{TTL: 500 * time.Millisecond})
	if !strings.Contains(k.logs.String(), "below one second") {
		t.Errorf("logged: %s", k.logs)
	}
}

// failingClose is a Store whose Close fails.
type failingClose struct{ driver.Store }

var errClose = errors.New("close failed")

func (failingClose) Close() error { return errClose }

func TestCloseReportsTheStoresError(t *testing.T) {
	locks, err := joblock.New(failingClose{memstore.New(nil)}, nil)
	wantNil(t, "New", err)
	wantErr(t, locks.Close(context.Background()), errClose)
	wantNil(t, "second Close", locks.Close(context.Background()))
}
