// Package hashtag spreads the names of a Store evenly over the nodes of a Redis Cluster.
//
// A Redis Cluster has 16,384 slots. The hash tag of a name, the text in braces, determines its slot. Names with the same
// hash tag are in the same slot, so one script may use all of them. Each part of a Store has one hash tag, and the slots
// of these hash tags are evenly spaced.
package hashtag

import (
	"strconv"
	"sync"
)

// Parts is the number of parts.
const Parts = 256

// slots is the number of slots of a Redis Cluster.
const slots = 16384

// Of returns the number of the part that key belongs to. Braces in key have no meaning here.
func Of(key string) int { return int(crc16(key)) % Parts }

// OfSlot returns the number of the part that slot belongs to.
func OfSlot(slot int) int { return slot / (slots / Parts) }

// Tag returns the hash tag of a part: the smallest number whose slot is one of the slots of that part. Part i has the
// slots from i × 64 to i × 64 + 63. A later version must not change the hash tags: all locks would get new names.
func Tag(part int) string { return tags()[part] }

// Place returns the prefix of the keys of a part in Redis: the prefix of the Store, and the part's hash tag.
func Place(prefix string, part int) string { return prefix + "{" + Tag(part) + "}" }

var tags = sync.OnceValue(func() *[Parts]string {
	all := new([Parts]string)
	for n, missing := 0, Parts; missing > 0; n++ {
		tag := strconv.Itoa(n)
		if part := OfSlot(int(crc16(tag)) % slots); all[part] == "" {
			all[part] = tag
			missing--
		}
	}
	return all
})

// crc16 is the CRC of Redis Cluster: CRC-16/XMODEM.
func crc16(text string) uint16 {
	var crc uint16
	for i := range len(text) {
		crc = crc<<8 ^ table[byte(crc>>8)^text[i]]
	}
	return crc
}

var table = func() (t [256]uint16) {
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		t[i] = crc
	}
	return t
}()
