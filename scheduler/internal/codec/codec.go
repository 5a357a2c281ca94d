// Package codec has what all records of the scheduler have in common: their JSON, and the hash of a job's name.
package codec

import (
	"bytes"
	"encoding/json"
	"hash/fnv"
)

// Encode returns the JSON of v, and panics if v has none. Unlike json.Marshal, it does not escape <, > and &, because
// people read the JSON.
func Encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// Hash returns a hash of the name of a job. It must be the same on all nodes, because it determines the page of a name.
func Hash(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	x := h.Sum64() // FNV gives similar high bits to short texts
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	return x ^ x>>33
}
