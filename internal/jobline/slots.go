package jobline

// This file names and finds the slots of a sequence: see driver, Slots.

import (
	"context"
	"slices"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// SlotKeys returns the keys of the slots first to last of key, up to driver.MaxSlots. A key that is too long to name a
// second slot has only the first: see SlotsFit.
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

// MaxSlotKeyBytes is the maximum length of a key all of whose slots have names.
var MaxSlotKeyBytes = driver.MaxKeyBytes - len(driver.SlotKey("", driver.MaxSlots))

// SlotsFit reports whether all slots of key have names.
func SlotsFit(key string) bool { return len(key) <= MaxSlotKeyBytes }

// IsSlot reports whether slot is one of the first limit slots of key.
func IsSlot(slot, key string, limit int) bool { return slices.Contains(SlotKeys(key, 1, limit), slot) }

// SlotsOf returns those of keys that are reserved for job under the owner of token, in the order of keys: a job that has
// waited in line does not know which slot it got. Without keys it sends nothing. Errors are those of Locker.Status.
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
