package driver

import (
	"strconv"
	"strings"
)

// MaxSlots is the number of slots of a key.
const MaxSlots = 256

// slotMark separates a key from the number of a slot.
const slotMark = "%+"

// SlotKey returns the key of slot n of key: key itself for 1, and for n from 2 to MaxSlots the text of key, "%+" and n.
// See Slots in the package comment. An application may not use such a key itself.
func SlotKey(key string, n int) string {
	if n <= 1 {
		return key
	}
	return key + slotMark + strconv.Itoa(n)
}

// LineOf returns the key in whose queue jobs wait for slot. other reports whether slot is a slot of that key other than
// the first. For all other keys, LineOf returns slot and false.
func LineOf(slot string) (key string, other bool) {
	i := strings.LastIndex(slot, slotMark)
	if i <= 0 {
		return slot, false
	}
	n, err := strconv.Atoi(slot[i+len(slotMark):])
	if err != nil || n < 2 || n > MaxSlots || SlotKey(slot[:i], n) != slot {
		return slot, false
	}
	return slot[:i], true
}
