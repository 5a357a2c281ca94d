// Package slots names and finds the slots of a sequence: see driver, Slots.
package slots

import (
	"context"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// Keys returns the slots of key with the numbers first to last. No number is above driver.MaxSlots. A key that is too
// long for the name of a second slot has no slot but the first: see Fit.
func Keys(key string, first, last int) []string {
	last = min(last, driver.MaxSlots)
	if !Fit(key) {
		last = min(last, 1)
	}
	var keys []string
	for n := first; n <= last; n++ {
		keys = append(keys, driver.SlotKey(key, n))
	}
	return keys
}

// MaxKeyBytes is the length of the longest key of which all slots have names.
var MaxKeyBytes = driver.MaxKeyBytes - len(driver.SlotKey("", driver.MaxSlots))

// Fit reports whether all slots of key have names.
func Fit(key string) bool { return len(key) <= MaxKeyBytes }

// Of returns those of keys that are reserved for job under the owner of token, in the order of keys. A job that has
// waited in line does not know which slot the job has got. Of asks nobody if there are no keys. An error is one of
// Locker.Status.
func Of(ctx context.Context, locks *joblock.Locker, token joblock.Token, job string, keys []string) ([]joblock.Status, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	all, err := locks.Status(ctx, keys...)
	if err != nil {
		return nil, err
	}
	var got []joblock.Status
	for _, st := range all {
		if st.Locked() && st.Job == job && st.Owner == token.Digest() {
			got = append(got, st)
		}
	}
	return got, nil
}
