package slogobserver

import (
	"context"
	"log/slog"
	"time"

	"github.com/joblock/toolkit/joblock/event"
)

// Config configures New. The zero value of each field means its default.
type Config struct {
	// Level chooses the level of an event. Several goroutines may call it at a time.
	// Default: the function Level.
	Level func(event.Event) slog.Level
}

// New returns an Observer that logs to logger. A nil logger means slog.Default(), a nil
// cfg the defaults. Events below the logger's level cost next to nothing.
func New(logger *slog.Logger, cfg *Config) event.Observer {
	if logger == nil {
		logger = slog.Default()
	}
	level := Level
	if cfg != nil && cfg.Level != nil {
		level = cfg.Level
	}
	return func(e event.Event) {
		ctx, l := context.Background(), level(e)
		if logger.Enabled(ctx, l) {
			logger.LogAttrs(ctx, l, "joblock: "+e.Kind.String(), attrs(e)...)
		}
	}
}

// Level returns the level that an event has by default:
//
//	Warn    work is at risk: lost, renewed late, renewal unanswered, cleanup failed
//	Info    a lock was ended from outside: released by token, freed, forced; or it was
//	        resumed after even its reservation had run out
//	Debug   all others
func Level(e event.Event) slog.Level {
	switch e.Kind {
	case event.Lost, event.RenewedLate, event.RenewalUnanswered, event.CleanupFailed:
		return slog.LevelWarn
	case event.ReleasedByToken, event.Freed, event.Forced:
		return slog.LevelInfo
	}
	if e.Recovered {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// attrs returns the fields of e that are set, in the order of the package comment.
func attrs(e event.Event) []slog.Attr {
	out := make([]slog.Attr, 0, 8)
	text := func(name, s string) {
		if s != "" {
			out = append(out, slog.String(name, s))
		}
	}
	duration := func(name string, d time.Duration) {
		if d != 0 {
			out = append(out, slog.Duration(name, d))
		}
	}
	text("key", e.Key)
	text("owner", e.Owner)
	if e.Fence != 0 {
		out = append(out, slog.Int64("fence", e.Fence))
	}
	text("holder", e.Holder)
	text("job", e.Job)
	text("reason", e.Reason)
	duration("waited", e.Waited)
	duration("held", e.Held)
	duration("late", e.Late)
	duration("remaining", e.Remaining)
	text("prior", e.Prior.String())
	if e.Recovered {
		out = append(out, slog.Bool("recovered", true))
	}
	if e.Locks != 0 {
		out = append(out, slog.Int("locks", e.Locks))
	}
	if e.Err != nil {
		out = append(out, slog.Any("err", e.Err))
	}
	return out
}
