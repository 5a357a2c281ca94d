package pages

import (
	"context"

	"github.com/joblock/toolkit/internal/ops"
)

// Desk is what the pages need of an *ops.Desk.
type Desk interface {
	ops.Operator
	As(by, from string) ops.Operator
	CarriesOnly(ctx context.Context, job string, may func(key string) bool) (bool, error)
	HasJournal() bool
}
