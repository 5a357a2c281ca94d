package storemodel

import (
	"time"

	"pgregory.net/rapid"
)

// delay has a call be sent and not arrive, as a network may. It arrives at any time
// later, after any other calls, and may then be sent again like those; or never.
func (m *model) delay(t *rapid.T) {
	calls := []func(*rapid.T){
		m.acquire, m.wait, m.askAgain, m.giveUp, m.resume, m.park, m.renew, m.release, m.reserve,
	}
	m.delaying = true
	calls[rapid.IntRange(0, len(calls)-1).Draw(t, "call")](t)
	m.delaying = false
}

// arrive lets one of the calls arrive that were delayed.
func (m *model) arrive(t *rapid.T) {
	if len(m.late) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.late)-1).Draw(t, "which")
	call := m.late[i]
	m.late = append(m.late[:i:i], m.late[i+1:]...)
	m.send(call)
}

// stepBack sets the store's clock back: by no more than leaves those records forgotten
// that have been. A store need not know them any more, but may.
func (m *model) stepBack(t *rapid.T) {
	most := m.now
	for _, r := range m.locks {
		if r.phase(m.now) == absent {
			most = min(most, m.now-r.gone)
		}
	}
	d := min(millis(rapid.IntRange(1, 500).Draw(t, "ms")), most-time.Millisecond)
	if d <= 0 {
		return
	}
	m.Step(-d)
	m.now -= d
	m.stepped = true
}
