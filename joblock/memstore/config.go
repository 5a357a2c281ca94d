package memstore

import (
	"log/slog"
	"time"
)

// Config configures a Store. The zero value of each field means its default.
type Config struct {
	// Now is the store's clock. It must not call the Store, which would wait for
	// itself. Default: the wall time at which New was called plus the monotonic time
	// since.
	Now func() time.Time

	// Notice says how to point out that the Store guards one process only. Default
	// NoticeWarn.
	Notice Notice

	// Logger gets the warning of NoticeWarn. Default slog.Default().
	Logger *slog.Logger
}

// Notice says how a Store points out that it guards this process only.
type Notice uint8

// The notices.
const (
	NoticeWarn   Notice = iota // one warning in the log, at the Store's first use
	NoticeSilent               // nothing
	NoticeRefuse               // Validate, and with it joblock.New, fails with ErrInvalid
)

// withDefaults returns a copy of c, which may be nil, without zero fields.
func (c *Config) withDefaults() Config {
	var out Config
	if c != nil {
		out = *c
	}
	if out.Now == nil {
		// Add and Since use the monotonic reading, so steps of the wall clock do not
		// matter.
		start := time.Now()
		out.Now = func() time.Time { return start.Add(time.Since(start)) }
	}
	if out.Logger == nil {
		out.Logger = slog.Default()
	}
	return out
}
