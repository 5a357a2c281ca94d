package memstore_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

func TestWarnsOnceAndOnlyWhenUsed(t *testing.T) {
	for _, tc := range []struct {
		name   string
		silent bool
		want   int
	}{
		{"default", false, 1},
		{"silent", true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log bytes.Buffer
			store := memstore.New(&memstore.Config{
				Silent: tc.silent,
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
