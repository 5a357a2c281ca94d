package memstore_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

func TestValidateRefusesWhatTheNoticeRefuses(t *testing.T) {
	for _, tc := range []struct {
		name   string
		notice memstore.Notice
		want   error
	}{
		{"warn", memstore.NoticeWarn, nil},
		{"silent", memstore.NoticeSilent, nil},
		{"refuse", memstore.NoticeRefuse, joblock.ErrInvalid},
		{"unknown", memstore.NoticeRefuse + 1, joblock.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := memstore.New(&memstore.Config{Notice: tc.notice}).Validate()
			if !errors.Is(err, tc.want) {
				t.Errorf("Validate() = %v, want %v", err, tc.want)
			}
		})
	}
	if err := memstore.New(nil).Validate(); err != nil {
		t.Errorf("Validate() of a default Store = %v, want nil", err)
	}
}

func TestWarnsOnceAndOnlyWhenUsed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		notice memstore.Notice
		want   int
	}{
		{"warn", memstore.NoticeWarn, 1},
		{"silent", memstore.NoticeSilent, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			store := memstore.New(&memstore.Config{
				Notice: tc.notice,
				Logger: slog.New(slog.NewTextHandler(&log, nil)),
			})
			if log.Len() != 0 {
				t.Errorf("New logged %q, want nothing before the first use", log.String())
			}
			for range 3 {
				if _, err := store.Inspect(context.Background(), driver.InspectRequest{Keys: []string{"k"}}); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.Count(log.String(), "level=WARN"); got != tc.want {
				t.Errorf("%d warnings after three calls, want %d: %s", got, tc.want, log.String())
			}
		})
	}
}
