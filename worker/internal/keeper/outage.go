package keeper

import "time"

// outage is a series of rounds without an answer.
type outage struct{ began, last time.Time }

// failed notes that a round, which began at the time asked, has failed. It reports whether the series of failures has
// lasted for at least most. A failure begins a new series if the previous one was more than most before asked.
func (o *outage) failed(asked time.Time, most time.Duration) bool {
	if o.last.IsZero() || asked.Sub(o.last) > most {
		o.began = asked
	}
	o.last = time.Now()
	return o.last.Sub(o.began) >= most
}
