//go:build servers

package e2e

import (
	"fmt"
	"slices"
	"testing"
)

// linePool has processes of a role that works with a lineRole, the role "line" unless another is given, of which one after the
// other is killed and replaced.
type linePool struct {
	rig          *lineRig
	role         lineRole
	roles        []string
	procs        []*workerProc
	uncut        bool // asynq's leases on the tasks of the dead are left as they are
	kills, names int
}

// pool starts n processes of the role "line", and one of each other role.
func (r *lineRig) pool(t *testing.T, role lineRole, n int, others ...string) *linePool {
	t.Helper()
	role.Ledger = r.path
	p := &linePool{rig: r, role: role, roles: append(slices.Repeat([]string{"line"}, n), others...), procs: make([]*workerProc, n+len(others))}
	for i := range p.procs {
		p.start(t, i)
	}
	return p
}

func (p *linePool) start(t *testing.T, i int) {
	t.Helper()
	p.names++
	p.role.Process = fmt.Sprintf("w%d", p.names)
	p.procs[i] = p.role.startAs(t, p.rig.server.Addr(), p.roles[i])
	p.procs[i].name = p.role.Process
}

// kill kills a process and starts another in its place.
func (p *linePool) kill(t *testing.T, i int) {
	t.Helper()
	write := func(e ledgerEntry) {
		if err := p.rig.ledger.write(e); err != nil {
			t.Fatal(err)
		}
	}
	write(ledgerEntry{verb: killing, process: p.procs[i].name})
	p.procs[i].kill()
	p.kills++
	if !p.uncut {
		cutLeases(t, p.rig.rdb, slices.Concat(p.procs[:i], p.procs[i+1:]), func(id string) { write(givenUp(id)) })
	}
	p.start(t, i)
}

// stop ends the processes as an operator does.
func (p *linePool) stop(t *testing.T) {
	t.Helper()
	for _, proc := range p.procs {
		if err := proc.stop(); err != nil {
			t.Errorf("a worker process ended with %v", err)
		}
	}
}
