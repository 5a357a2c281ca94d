package singleflight

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"reflect"
	"time"

	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/vmihailenco/msgpack/v5"
)

// A result in a memo, numbers big-endian:
//
//	4 bytes  magic and version
//	8        hash of the name of its type
//	8        when it was written, ms of the store's clock
//	8        for how long it is fresh, ms
//	…        the value as msgpack
//
// The end of its freshness alone would not do: after the clock was set back, only the
// time of writing shows that a result is from the future.
const (
	resultMagic  = "jlr\x01"
	resultHeader = len(resultMagic) + 3*8
)

// encodeResult makes a memo of v; stampResult sets its times. It returns ErrInvalid for a
// value that is too large, and msgpack's error for one that has no encoding.
func encodeResult[T any](key string, v T) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString(resultMagic)
	b.Write(binary.BigEndian.AppendUint64(nil, typeHash[T]()))
	b.Write(make([]byte, 2*8))
	if err := msgpack.NewEncoder(&b).Encode(&v); err != nil {
		return nil, err
	}
	if b.Len() > driver.MaxMemoBytes {
		return nil, door.Invalid(op, key, "the result has %d bytes, at most %d can be shared",
			b.Len()-resultHeader, driver.MaxMemoBytes-resultHeader)
	}
	return b.Bytes(), nil
}

// stampResult makes memo fresh for ttl from at, by the store's clock.
func stampResult(memo []byte, at time.Time, ttl time.Duration) []byte {
	binary.BigEndian.PutUint64(memo[resultHeader-16:], uint64(at.UnixMilli()))
	binary.BigEndian.PutUint64(memo[resultHeader-8:], uint64(ttl.Milliseconds()))
	return memo
}

// decodeResult returns the T that is kept in memo, and how long it stays fresh after now.
// ok is false for anything but a fresh T.
func decodeResult[T any](memo []byte, now time.Time) (v T, left time.Duration, ok bool) {
	if len(memo) < resultHeader || len(memo) > driver.MaxMemoBytes || string(memo[:len(resultMagic)]) != resultMagic {
		return v, 0, false
	}
	hash := binary.BigEndian.Uint64(memo[len(resultMagic):])
	written := int64(binary.BigEndian.Uint64(memo[resultHeader-16:]))
	life := int64(binary.BigEndian.Uint64(memo[resultHeader-8:]))
	if life > driver.MaxPeriod.Milliseconds() || hash != typeHash[T]() {
		return v, 0, false
	}
	age := now.UnixMilli() - written // negative also where it overflows
	body := memo[resultHeader:]
	if age < 0 || age >= life || !wellFormed(body) {
		return v, 0, false
	}
	// A decoder of the caller's own type may panic on bytes it did not write.
	defer func() {
		if recover() != nil {
			var none T
			v, left, ok = none, 0, false
		}
	}()
	if err := msgpack.Unmarshal(body, &v); err != nil {
		var none T
		return none, 0, false
	}
	return v, time.Duration(life-age) * time.Millisecond, true
}

// typeHash distinguishes types that msgpack would decode into each other: a struct takes
// any map, and skips entries that it has no field for.
func typeHash[T any]() uint64 {
	h := fnv.New64a()
	h.Write([]byte(reflect.TypeFor[T]().String()))
	return h.Sum64()
}

// wellFormed reports whether b is exactly one msgpack value, with no length in it beyond
// the bytes that follow. The decoder trusts lengths: five bytes that announce an array of
// four billion make it allocate tens of gigabytes, and no recover helps against that.
func wellFormed(b []byte) bool {
	for due := uint64(1); due > 0; due-- {
		if due > uint64(len(b)) { // each takes a byte at the least
			return false
		}
		c := b[0]
		b = b[1:]
		var payload, values uint64 // bytes and values that belong to c
		switch {
		case c <= 0x7f || c >= 0xe0: // small integers
		case c <= 0x8f:
			values = 2 * uint64(c&0x0f)
		case c <= 0x9f:
			values = uint64(c & 0x0f)
		case c <= 0xbf:
			payload = uint64(c & 0x1f)
		case c == 0xc1: // never used
			return false
		default:
			l := layouts[c-0xc0]
			if l.width > len(b) {
				return false
			}
			var n uint64
			for _, d := range b[:l.width] {
				n = n<<8 | uint64(d)
			}
			b = b[l.width:]
			values = n * l.values
			payload = l.bytes
			if l.values == 0 {
				payload += n
			}
		}
		if payload > uint64(len(b)) {
			return false
		}
		b = b[payload:]
		due += values
	}
	return len(b) == 0
}

// layouts says what follows the msgpack codes from 0xc0 to 0xdf.
var layouts = [32]struct {
	width  int    // of the length that comes next
	bytes  uint64 // besides those that the length counts
	values uint64 // that the length counts, each; 0 if it counts bytes
}{
	0x04: {width: 1}, 0x05: {width: 2}, 0x06: {width: 4}, // bin
	0x07: {width: 1, bytes: 1}, 0x08: {width: 2, bytes: 1}, 0x09: {width: 4, bytes: 1}, // ext
	0x0a: {bytes: 4}, 0x0b: {bytes: 8}, // float
	0x0c: {bytes: 1}, 0x0d: {bytes: 2}, 0x0e: {bytes: 4}, 0x0f: {bytes: 8}, // uint
	0x10: {bytes: 1}, 0x11: {bytes: 2}, 0x12: {bytes: 4}, 0x13: {bytes: 8}, // int
	0x14: {bytes: 2}, 0x15: {bytes: 3}, 0x16: {bytes: 5}, 0x17: {bytes: 9}, 0x18: {bytes: 17}, // fixext
	0x19: {width: 1}, 0x1a: {width: 2}, 0x1b: {width: 4}, // str
	0x1c: {width: 2, values: 1}, 0x1d: {width: 4, values: 1}, // array
	0x1e: {width: 2, values: 2}, 0x1f: {width: 4, values: 2}, // map
}
