package memstore

import (
	"log/slog"
	"time"
)

// Config configures a store. The zero value of each field means its default.
type Config struct {
	// Now is the store's clock. Now must not call the store: that call would never return. Default: the wall time at
	// which New was called plus the monotonic time since then.
	Now func() time.Time

	// Silent suppresses the warning, at the store's first use, that its locks guard this process only.
	Silent bool

	// Logger gets the warning. Default slog.Default().
	Logger *slog.Logger
}
