package rates

import (
	"fmt"
	"time"
)

// Refusal is the error of rate.RetryAfter.
type Refusal struct {
	Key   string
	After time.Duration
}

func (r *Refusal) Error() string {
	return fmt.Sprintf("%q is to be tried again after %s", r.Key, r.After)
}
