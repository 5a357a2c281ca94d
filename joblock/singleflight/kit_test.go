package singleflight_test

import (
	"testing"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/internal/testkit/lockkit"
	"github.com/joblock/toolkit/joblock"
)

var wantErr, wantNotErr, wantNil = testkit.WantErr, testkit.WantNotErr, testkit.WantNil

type kit struct{ *lockkit.Kit }

func newKit(t *testing.T, cfg *joblock.Config) *kit {
	t.Helper()
	return &kit{lockkit.New(t, cfg)}
}
