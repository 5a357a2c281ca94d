package singleflight

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"reflect"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/vmihailenco/msgpack/v5"
)

// header precedes the msgpack of a result in a memo. Its numbers are big-endian. To store only the time at which the
// freshness ends would not be enough: after the clock was set back, only Written shows that a result is from the
// future.
type header struct {
	Magic   [4]byte // with the version of the format
	Type    uint64  // typeHash of the result
	Written int64   // when the result was written, ms of the store's clock
	Fresh   int64   // for how long the result is fresh, ms
}

var magic = [4]byte{'j', 'l', 'r', 1}

const headerBytes = 4 + 3*8

// encodeResult makes a memo of v. The memo begins with headerBytes zero bytes, which stampResult overwrites.
// encodeResult returns ErrInvalid for a value that is too large, and msgpack's error for a value that has no encoding.
func encodeResult[T any](key string, v T) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, headerBytes))
	if err := msgpack.NewEncoder(b).Encode(&v); err != nil {
		return nil, err
	}
	if b.Len() > driver.MaxMemoBytes {
		return nil, core.Invalid(op, key, "the result has %d bytes, at most %d can be shared",
			b.Len()-headerBytes, driver.MaxMemoBytes-headerBytes)
	}
	return b.Bytes(), nil
}

// stampResult writes the header of a T into memo. The T is fresh from now until ttl has passed, by the store's clock.
func stampResult[T any](memo []byte, now time.Time, ttl time.Duration) []byte {
	h := header{magic, typeHash[T](), now.UnixMilli(), ttl.Milliseconds()}
	_, _ = binary.Encode(memo, binary.BigEndian, h) // fails only if memo is shorter than headerBytes
	return memo
}

// decodeResult returns the T in memo, and the time for which that T stays fresh after now. The time is 0 if memo has
// no fresh T.
func decodeResult[T any](memo []byte, now time.Time) (v T, left time.Duration) {
	var h header
	_, err := binary.Decode(memo, binary.BigEndian, &h)
	if err != nil || len(memo) > driver.MaxMemoBytes || h.Magic != magic || h.Type != typeHash[T]() {
		return v, 0
	}
	age := now.UnixMilli() - h.Written // negative also if the subtraction overflows
	body := memo[headerBytes:]
	if age < 0 || age >= h.Fresh || h.Fresh > driver.MaxPeriod.Milliseconds() || !wellFormed(body) {
		return v, 0
	}
	// T's own decoder may panic on bytes that T's own encoder did not write. After an error or a panic, v may be a T
	// that is only partly decoded.
	defer func() {
		if recover() != nil || left == 0 {
			v, left = *new(T), 0
		}
	}()
	if err := msgpack.Unmarshal(body, &v); err != nil {
		return v, 0
	}
	return v, time.Duration(h.Fresh-age) * time.Millisecond
}

// typeHash separates types that msgpack would decode into each other: it decodes any map into any struct, and skips
// the entries that have no field.
func typeHash[T any]() uint64 {
	h := fnv.New64a()
	h.Write([]byte(reflect.TypeFor[T]().String()))
	return h.Sum64()
}

// wellFormed reports whether b is exactly one msgpack value in which no length exceeds the bytes that follow. The
// decoder trusts lengths: five bytes can announce an array of four billion elements, for which it would allocate tens
// of gigabytes. A recover does not help against an allocation.
func wellFormed(b []byte) bool {
	for due := uint64(1); due > 0; due-- {
		if due > uint64(len(b)) { // each value takes at least one byte
			return false
		}
		c := b[0]
		b = b[1:]
		var payload, values uint64 // bytes and values that follow c
		switch {
		case c <= 0x7f || c >= 0xe0: // small integers
		case c <= 0x8f:
			values = 2 * uint64(c&0x0f)
		case c <= 0x9f:
			values = uint64(c & 0x0f)
		case c <= 0xbf:
			payload = uint64(c & 0x1f)
		case c == 0xc1: // msgpack never uses this code
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

// layouts says, in three fields, what follows each msgpack code from 0xc0 to 0xdf: a length, other bytes, and other
// values.
var layouts = [32]struct {
	width  int    // bytes of the length
	bytes  uint64 // bytes that follow the length and that the length does not count
	values uint64 // values that follow for each unit of the length; 0 if the length counts bytes
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
