package storetest

import (
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// sealKeys calls SealKeys with Known known and with the Fresh of number fresh.
func (k *kit) sealKeys(fresh byte, known ...driver.SealKey) []driver.SealKey {
	k.Helper()
	keys, err := k.Store.SealKeys(k.ctx, driver.SealKeysRequest{Known: known, Fresh: secretOf(fresh)})
	if err != nil {
		k.Fatalf("SealKeys: %v", err)
	}
	return keys
}

func secretOf(n byte) (secret [driver.SealKeyBytes]byte) {
	secret[0], secret[driver.SealKeyBytes-1] = n, 0xff
	return secret
}

// old returns a seal key that is older than all keys of the test.
func old(n byte) driver.SealKey {
	return driver.SealKey{Secret: secretOf(n), Since: time.UnixMicro(1_000_000 + int64(n))}
}

// wantSealKeys fails the test unless the secrets of got are those with the numbers in want.
func (k *kit) wantSealKeys(got []driver.SealKey, want ...byte) {
	k.Helper()
	var numbers []byte
	for _, key := range got {
		if key.Secret != secretOf(key.Secret[0]) {
			k.Fatalf("a key came back changed: %x", key.Secret)
		}
		numbers = append(numbers, key.Secret[0])
	}
	if !slices.Equal(numbers, want) {
		k.Fatalf("the keys are %d, want %d", numbers, want)
	}
}

// sealCases test the seal keys.
var sealCases = []testCase{
	{"the first call makes the key, and all callers get that key", func(k *kit) {
		first := k.sealKeys(1)
		k.wantSealKeys(first, 1)
		k.Advance(time.Millisecond)
		second := k.sealKeys(2)
		k.wantSealKeys(second, 1)
		if !first[0].Since.Equal(second[0].Since) || first[0].Since.IsZero() {
			k.Errorf("the key is of %s, then of %s", first[0].Since, second[0].Since)
		}
		k.hold("key", "me")
		if now := k.inspect("key").Now; first[0].Since.After(now) || now.Sub(first[0].Since) > long {
			k.Errorf("the key is of %s, not by the store's clock, which then was %s", first[0].Since, now)
		}
	}},
	{"of many calls at once one makes the key", func(k *kit) {
		const n = 8
		var all [n][]driver.SealKey
		var errs [n]error
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				all[i], errs[i] = k.Store.SealKeys(k.ctx, driver.SealKeysRequest{Fresh: secretOf(byte(i))})
			})
		}
		wg.Wait()
		for i := range n {
			if errs[i] != nil {
				k.Fatalf("SealKeys: %v", errs[i])
			}
			k.wantSealKeys(all[i], all[0][0].Secret[0])
		}
	}},
	{"a known key is put back unchanged, before a new key is made", func(k *kit) {
		k.wantSealKeys(k.sealKeys(9, old(5)), 5)
		got := k.sealKeys(9)
		k.wantSealKeys(got, 5)
		if !got[0].Since.Equal(old(5).Since) {
			k.Errorf("the key is of %s, was of %s", got[0].Since, old(5).Since)
		}
	}},
	{"keys come in the order of their age", func(k *kit) {
		k.sealKeys(9)
		k.wantSealKeys(k.sealKeys(8, old(5)), 5, 9)
		same := old(3)
		same.Since = old(5).Since
		k.wantSealKeys(k.sealKeys(8, old(7), same, old(2)), 2, 3, 5, 7, 9)
	}},
	{"a known key does not change the store's copy", func(k *kit) {
		made := k.sealKeys(1)
		other := driver.SealKey{Secret: secretOf(1), Since: old(1).Since}
		if got := k.sealKeys(2, other, other); len(got) != 1 || !got[0].Since.Equal(made[0].Since) {
			k.Errorf("the keys are %v, were %v", got, made)
		}
	}},
	{"of too many keys the oldest go", func(k *kit) {
		k.sealKeys(200)
		var known []driver.SealKey
		var want []byte
		for n := range byte(driver.MaxSealKeys + 3) {
			known = append(known, old(n))
			if n >= 4 {
				want = append(want, n)
			}
		}
		want = append(want, 200)
		k.wantSealKeys(k.sealKeys(0, known...), want...)
		k.wantSealKeys(k.sealKeys(0, known[:2]...), want...)
		k.wantSealKeys(k.sealKeys(0), want...)
	}},
	{"keys are not listed, and stay", func(k *kit) {
		k.sealKeys(1)
		k.hold("key", "me")
		if got := k.list("", 1000); len(got) != 1 {
			k.Errorf("%d keys listed, want 1: %v", len(got), got)
		}
		k.lapse()
		k.wantSealKeys(k.sealKeys(2), 1)
	}},
}
