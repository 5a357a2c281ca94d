package slogobserver

import (
	"context"
	"log/slog"
	"slices"

	"github.com/joblock/toolkit/joblock/event"
)

// Config configures New. The zero value of each field means its default.
type Config struct {
	// Level returns the level at which an event is logged. It must be safe for concurrent use. Default: the function
	// Level of this package.
	Level func(event.Event) slog.Level
}

// New returns an Observer that logs to logger. A nil logger means slog.Default(). A nil cfg means the defaults. An
// event below the logger's level costs next to nothing.
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

// Level returns the default level of an event:
//
//	Warn    work is at risk: lost, renewed late, renewal unanswered, cleanup failed, fell back, overran
//	Info    a lock was ended without its handle: released by token, freed, forced; or a lock was resumed although its
//	        reservation had run out
//	Debug   all other events
func Level(e event.Event) slog.Level {
	switch e.Kind {
	case event.Lost, event.RenewedLate, event.RenewalUnanswered, event.CleanupFailed, event.FellBack, event.Overran:
		return slog.LevelWarn
	case event.ReleasedByToken, event.Freed, event.Forced:
		return slog.LevelInfo
	}
	if e.Recovered {
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// unset has the zero value of each type of field. A field with its zero value is not logged.
var unset = []slog.Value{
	slog.StringValue(""), slog.Int64Value(0), slog.DurationValue(0), slog.BoolValue(false), slog.AnyValue(nil),
}

// attrs returns the fields of e that are set, in the order of the package comment.
func attrs(e event.Event) []slog.Attr {
	all := []slog.Attr{
		slog.String("key", e.Key), slog.String("owner", e.Owner), slog.Int64("fence", e.Fence),
		slog.String("holder", e.Holder), slog.String("job", e.Job), slog.String("reason", e.Reason),
		slog.Duration("waited", e.Waited), slog.Duration("held", e.Held), slog.Duration("late", e.Late),
		slog.Duration("remaining", e.Remaining), slog.String("prior", e.Prior.String()),
		slog.Bool("recovered", e.Recovered), slog.Int("locks", e.Locks), slog.Any("err", e.Err),
	}
	return slices.DeleteFunc(all, func(a slog.Attr) bool { return slices.ContainsFunc(unset, a.Value.Equal) })
}
