package singleflight

import (
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
	"github.com/vmihailenco/msgpack/v5"
)

func TestWellFormed(t *testing.T) {
	long := make([]byte, 70_000)
	many := make([]int, 70_000)
	members := make(map[int]int, 70_000)
	for i := range many {
		members[i] = -i
	}
	for name, v := range map[string]any{
		"nil": nil, "true": true, "false": false,
		"small": 1, "negative": -1, "int8": int8(-100), "int16": int16(-1000), "int32": int32(-1 << 20), "int64": int64(-1 << 40),
		"uint8": uint8(200), "uint16": uint16(60_000), "uint32": uint32(1 << 30), "uint64": uint64(1 << 63),
		"float32": float32(1.5), "float64": 1.5, "time": time.Unix(1, 1), "late": time.Unix(1<<36, 1),
		"str": "text", "str8": string(long[:200]), "str16": string(long[:300]), "str32": string(long),
		"bin8": long[:3], "bin16": long[:300], "bin32": long,
		"array": many[:3], "array16": many[:300], "array32": many,
		"map": map[string]any{"a": []any{1, "b", nil}}, "map16": map[string][]int{"a": many[:20], "b": nil}, "map32": members,
		"ext1": msgpack.RawMessage{0xd4, 1, 9}, "ext16": append(msgpack.RawMessage{0xd8, 1}, long[:16]...),
		"ext 8": msgpack.RawMessage{0xc7, 2, 1, 9, 9}, "ext 16": msgpack.RawMessage{0xc8, 0, 2, 1, 9, 9},
		"ext 32": msgpack.RawMessage{0xc9, 0, 0, 0, 2, 1, 9, 9},
	} {
		b, err := msgpack.Marshal(v)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !wellFormed(b) {
			t.Errorf("%s: refused %.20x", name, b)
		}
		for _, n := range []int{0, 1, 2, 3, 5, 9, len(b) - 1} {
			if n < len(b) && wellFormed(b[:n]) {
				t.Errorf("%s: took the first %d of %d bytes", name, n, len(b))
			}
		}
		if wellFormed(append(b, 0xc0)) {
			t.Errorf("%s: took a byte too many", name)
		}
	}
	if wellFormed([]byte{0xc1}) {
		t.Error("took a code that does not exist")
	}
}

// Whatever is well-formed can be decoded without the process running out of memory,
// and what msgpack makes of it is well-formed again.
func FuzzWellFormed(f *testing.F) {
	f.Add([]byte{0x82, 0xa1, 'a', 0x93, 1, 0xc0, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xa1, 'b', 0xd9, 1, 'x'})
	f.Add([]byte{0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0xc9, 0, 0, 0, 1, 5, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > driver.MaxMemoBytes || !wellFormed(b) {
			return
		}
		var numbers []int64
		_ = msgpack.Unmarshal(b, &numbers)
		var v any
		if msgpack.Unmarshal(b, &v) != nil {
			return // keys of maps and extensions that it does not know
		}
		again, err := msgpack.Marshal(v)
		if err == nil && !wellFormed(again) {
			t.Errorf("%x decodes to %v, whose encoding %x is refused", b, v, again)
		}
	})
}
