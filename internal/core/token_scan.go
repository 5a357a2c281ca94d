package core

import (
	"encoding/binary"
	"time"
)

// scanToken reads a token in its canonical binary form. ok is false for any other text: then UnmarshalBinary, which
// takes ten times as long, says what is wrong. Workers read a token before each job.
func scanToken(data []byte) (t Token, ok bool) {
	s := scan{rest: data}
	if s.byte() != 0x90|tokenFields || s.byte() != tokenVersion {
		return Token{}, false
	}
	t.key = s.text()
	owner := s.text()
	t.fence = s.number()
	ms := s.number()
	if s.bad || len(s.rest) > 0 || ms < 1 || ms > maxTokenTTL {
		return Token{}, false
	}
	t.owner, t.ttl = newSecret(owner), time.Duration(ms)*time.Millisecond
	return t, t.check() == nil
}

// scan reads scalars of msgpack, each in its shortest form. Anything else sets bad.
type scan struct {
	rest []byte
	bad  bool
}

// take returns the next n bytes, or nil.
func (s *scan) take(n int) []byte {
	if s.bad || n > len(s.rest) {
		s.bad = true
		return nil
	}
	part := s.rest[:n]
	s.rest = s.rest[n:]
	return part
}

func (s *scan) byte() byte {
	if b := s.take(1); b != nil {
		return b[0]
	}
	return 0
}

// uint reads a number of the given width that a smaller width could not hold: it must not be below least.
func (s *scan) uint(width int, least uint64) uint64 {
	var wide [8]byte
	copy(wide[8-width:], s.take(width))
	n := binary.BigEndian.Uint64(wide[:])
	s.bad = s.bad || n < least
	return n
}

// number reads a number. The result is negative if the number exceeds 2^63-1.
func (s *scan) number() int64 {
	var n uint64
	switch b := s.byte(); {
	case b < 0x80:
		n = uint64(b)
	case b == 0xcc:
		n = s.uint(1, 0x80)
	case b == 0xcd:
		n = s.uint(2, 1<<8)
	case b == 0xce:
		n = s.uint(4, 1<<16)
	case b == 0xcf:
		n = s.uint(8, 1<<32)
	default:
		s.bad = true
	}
	return int64(n)
}

// text reads a string of less than 65536 bytes.
func (s *scan) text() string {
	switch b := s.byte(); {
	case b>>5 == 0b101:
		return string(s.take(int(b & 0b11111)))
	case b == 0xd9:
		return string(s.take(int(s.uint(1, 32))))
	case b == 0xda:
		return string(s.take(int(s.uint(2, 1<<8))))
	}
	s.bad = true
	return ""
}
