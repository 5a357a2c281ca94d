package measure

import (
	"context"
	"time"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// processors is the time, user and system, that this process and the server have
// used. Other work on the machine disturbs it much less than it does the clock.
type processors struct{ own, server time.Duration }

func used(ctx context.Context, s *rig.Server) (p processors, err error) {
	if p.own, err = rig.CPU(); err == nil {
		p.server, err = s.CPU(ctx)
	}
	return p, err
}
