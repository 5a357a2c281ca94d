package keeper

import "time"

// outage is a row of rounds without an answer.
type outage struct{ began, last time.Time }

// failed notes that a round, which began at the time asked, has failed. It reports whether the row of failures is at
// least as long as most. A failure begins a new row if the previous failure was longer than most before asked.
func (o *outage) failed(asked time.Time, most time.Duration) bool {
	if o.last.IsZero() || asked.Sub(o.last) > most {
		o.began = asked
	}
	o.last = time.Now()
	return o.last.Sub(o.began) >= most
}
