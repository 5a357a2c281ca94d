package fallback

import (
	"log/slog"
	"sync"
	"time"
)

// throttle logs at most one warning a minute.
type throttle struct {
	logger *slog.Logger

	mu      sync.Mutex
	logged  time.Time // when the last warning was logged; zero before the first
	skipped int       // warnings since then
}

// warn logs text as a warning, or only counts it. A logged warning has the number of warnings that were only counted
// since the previous one.
func (t *throttle) warn(now time.Time, text string, attrs []any) {
	t.mu.Lock()
	if !t.logged.IsZero() && now.Sub(t.logged) < time.Minute {
		t.skipped++
		t.mu.Unlock()
		return
	}
	skipped := t.skipped
	t.logged, t.skipped = now, 0
	t.mu.Unlock()
	t.logger.Warn(text, append(attrs, "skipped", skipped)...)
}
