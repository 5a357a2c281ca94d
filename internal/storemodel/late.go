package storemodel

import (
	"time"

	"pgregory.net/rapid"
)

// delay sends a call that does not arrive yet. The call arrives at any later time, or never. After the
// arrival the call may be sent again, like other calls.
func (m *model) delay(t *rapid.T) {
	calls := []func(*rapid.T){
		m.acquire, m.take, m.wait, m.askAgain, m.giveUp, m.resume, m.park, m.renew, m.release, m.reserve,
		m.joinLine, m.leaveLine,
	}
	m.delaying = true
	calls[rapid.IntRange(0, len(calls)-1).Draw(t, "call")](t)
	m.delaying = false
}

// arrive makes one of the delayed calls arrive.
func (m *model) arrive(t *rapid.T) {
	if len(m.late) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.late)-1).Draw(t, "which")
	call := m.late[i]
	m.late = append(m.late[:i:i], m.late[i+1:]...)
	m.send(call)
}

// stepBack sets the store's clock back, but not to before the moment at which a record was forgotten. Before that
// moment a store may or may not know the record again.
func (m *model) stepBack(t *rapid.T) {
	most := m.now
	for _, s := range m.seen {
		if m.now >= s.gone {
			most = min(most, m.now-s.gone)
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
