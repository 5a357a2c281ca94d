package memstore

import (
	"cmp"
	"log/slog"
	"time"
)

// Config configures a Store. The zero value of each field means its default.
type Config struct {
	// Now is the store's clock. Now must not call the Store: that call would wait for Now to return. Default: the
	// wall time at which New was called plus the monotonic time since then.
	Now func() time.Time

	// Notice says how the Store warns that it guards one process only. Default NoticeWarn.
	Notice Notice

	// Logger gets the warning of NoticeWarn. Default slog.Default().
	Logger *slog.Logger
}

// Notice says how a Store warns that it guards this process only.
type Notice uint8

// The values of Notice.
const (
	NoticeWarn   Notice = iota // the Store logs one warning at its first use
	NoticeSilent               // the Store does not warn
	NoticeRefuse               // Validate and joblock.New return ErrInvalid
)

// withDefaults returns a copy of c in which Now and Logger are set. A nil c means the defaults.
func (c *Config) withDefaults() Config {
	var out Config
	if c != nil {
		out = *c
	}
	if out.Now == nil {
		// Add and Since use the monotonic reading, so steps of the wall clock do not matter.
		start := time.Now()
		out.Now = func() time.Time { return start.Add(time.Since(start)) }
	}
	out.Logger = cmp.Or(out.Logger, slog.Default())
	return out
}
