package keeper

import "time"

// silence is a row of rounds without an answer.
type silence struct{ began, last time.Time }

// failed notes that a round, which began at the time asked, has failed. It reports whether the row of failures is at
// least as long as most. A failure begins a new row if the previous failure was longer than most before asked.
func (s *silence) failed(asked time.Time, most time.Duration) bool {
	if s.last.IsZero() || asked.Sub(s.last) > most {
		s.began = asked
	}
	s.last = time.Now()
	return s.last.Sub(s.began) >= most
}
