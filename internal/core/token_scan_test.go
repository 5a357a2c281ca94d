package core_test

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock/driver"
)

// What the short way accepts is what the long way accepts, and it accepts each token that this package writes.
func TestShortAndLongWayReadTheSameTokens(t *testing.T) {
	fences := []int64{0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000, 0xffffffff, 0x100000000, driver.MaxFence}
	for i, size := range []int{1, 31, 32, 255, 256, driver.MaxKeyBytes} {
		for j, ttl := range []time.Duration{1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x10000, driver.MaxPeriod / time.Millisecond} {
			owner := strings.Repeat("o", []int{1, 31, 32, driver.MaxOwnerBytes}[(i+j)%4])
			token, err := core.NewToken(strings.Repeat("k", size), owner, ttl*time.Millisecond)
			testkit.WantNil(t, "NewToken", err)
			token = token.At(fences[(i*8+j)%len(fences)])
			data, err := token.MarshalBinary()
			testkit.WantNil(t, "MarshalBinary", err)
			if got, ok := core.ScanToken(data); !ok || got != token {
				t.Errorf("%v: scanned %v, %t", token, got, ok)
			}
			for at := range data {
				if at > 0 && data[at] == data[at-1] && (data[at] == 'k' || data[at] == 'o') {
					continue // within a name
				}
				for _, other := range []byte{0, 1, 0x1f, 0x7f, 0x80, 0xa0, 0xcc, 0xcd, 0xce, 0xcf, 0xd0, 0xd9, 0xda, 0xff} {
					bad := append([]byte(nil), data...)
					bad[at] = other
					got, ok := core.ScanToken(bad)
					if !ok {
						continue
					}
					if want, err := core.ReadToken(bad); err != nil || want != got {
						t.Errorf("byte %d of %x: scanned %v, read %v, %v", at, bad, got, want, err)
					}
				}
			}
			for end := range data {
				if got, ok := core.ScanToken(data[:end]); ok {
					t.Errorf("%d of %d bytes: scanned %v", end, len(data), got)
				}
			}
			if got, ok := core.ScanToken(append(data, 0)); ok {
				t.Errorf("a byte more: scanned %v", got)
			}
		}
	}
}
