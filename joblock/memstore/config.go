package memstore

import (
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
