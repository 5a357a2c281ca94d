package ops

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/joblock"
)

// A key that has jobs only below it is paused. Nothing says that the key may be mistyped.
func TestPausedKeyIsKnown(t *testing.T) {
	l := Lock{Key: "tenant:7", State: joblock.StateFree, Paused: []Pause{{Key: "tenant:7", By: "eva"}}}
	if got := strings.Join(explain(l, Keeper{}, false, nil, nil).Text, "\n"); l.Unknown() || strings.Contains(got, "spelling") {
		t.Errorf("unknown: %t, %s", l.Unknown(), got)
	}
	l.Paused = nil
	if got := strings.Join(explain(l, Keeper{}, false, nil, nil).Text, "\n"); !l.Unknown() || !strings.Contains(got, "spelling") {
		t.Errorf("without the pause: unknown: %t, %s", l.Unknown(), got)
	}
}
