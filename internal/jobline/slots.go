package jobline

// This file names and finds the slots of a sequence: see driver, Slots.

import (
	"context"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// SlotKeys returns the slots of key with the numbers first to last. No number is above driver.MaxSlots. A key that is too
// long for the name of a second slot has no slot but the first: see SlotsFit.
func SlotKeys(key string, first, last int) []string {
	last = min(last, driver.MaxSlots)
	if !SlotsFit(key) {
		last = min(last, 1)
	}
	var keys []string
	for n := first; n <= last; n++ {
		keys = append(keys, driver.SlotKey(key, n))
	}
	return keys
}

// MaxSlotKeyBytes is the length of the longest key of which all slots have names.
var MaxSlotKeyBytes = driver.MaxKeyBytes - len(driver.SlotKey("", driver.MaxSlots))

// SlotsFit reports whether all slots of key have names.
func SlotsFit(key string) bool { return len(key) <= MaxSlotKeyBytes }

// SlotsOf returns those of keys that are reserved for job under the owner of token, in the order of keys. A job that has
// waited in line does not know which slot the job has got. Without keys SlotsOf sends nothing. An error is one of
// Locker.Status.
func SlotsOf(ctx context.Context, locks *joblock.Locker, token joblock.Token, job string, keys []string) ([]joblock.Status, error) {
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
