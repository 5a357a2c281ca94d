package measure

import (
	"context"
	"time"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// usage is what this process and the server have used. Other work on the machine disturbs
// processor time, user and system, much less than the clock.
type usage struct {
	own    time.Duration
	server rig.Usage
}

func used(ctx context.Context, s *rig.Server) (u usage, err error) {
	if u.own, err = rig.CPU(); err == nil {
		u.server, err = s.Usage(ctx)
	}
	return u, err
}

// spent is what was used in some time.
type spent struct {
	own, server time.Duration // processor time
	calls       rig.Calls     // the server's count of the commands that were asked for
}

// since returns what was used since before. calls are of the named commands.
func (u usage) since(before usage, commands ...string) spent {
	return spent{
		own:    u.own - before.own,
		server: u.server.CPU - before.server.CPU,
		calls:  u.server.Of(commands...).Sub(before.server.Of(commands...)),
	}
}

func (s *spent) add(more spent) {
	s.own += more.own
	s.server += more.server
	s.calls.Number += more.calls.Number
	s.calls.Time += more.calls.Time
}
