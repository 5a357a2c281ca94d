package internal_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/hashtag"
)

// clusterSlots is the number of slots of a Redis Cluster.
const clusterSlots = 16384

// crc16 is the CRC of Redis Cluster, bit by bit.
func crc16(text string) (crc uint16) {
	for _, b := range []byte(text) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc
}

// Another hash tag would give locks that exist another name.
func TestTagsStayAsTheyAre(t *testing.T) {
	all := make([]string, hashtag.Parts)
	for i := range all {
		all[i] = hashtag.Tag(i)
	}
	const first, sum = "460 14 278 10 274 100 270 18", 13774
	if got := strings.Join(all[:8], " "); got != first {
		t.Errorf("the first hash tags are %q, want %q", got, first)
	}
	if got := crc16(strings.Join(all, " ")); got != sum {
		t.Errorf("the sum of all hash tags is %d, want %d", got, sum)
	}
}

// The specification of Redis Cluster gives the example 123456789. The tests of package redisstore ask a server.
func TestPartOfAKeyIsItsCRC(t *testing.T) {
	if got := crc16("123456789"); got != 0x31c3 {
		t.Errorf("got %#x", got)
	}
	for i := range 1000 {
		key := fmt.Sprintf("export:acct-%d ü", i)
		if got, want := hashtag.Of(key), int(crc16(key))%hashtag.Parts; got != want {
			t.Errorf("%q is of part %d, want %d", key, got, want)
		}
	}
	if got := hashtag.Of("123456789"); got != 0xc3 {
		t.Errorf("123456789 is of part %#x, want 0xc3", got)
	}
}

// The most loaded of n nodes has at most 1.3 times the mean of 10,000 keys, whatever the
// keys look like.
func TestKeysAreSpreadOverNodes(t *testing.T) {
	const keys, most = 10_000, 1.3
	var slots [hashtag.Parts]int
	for part := range slots {
		slots[part] = int(crc16(hashtag.Tag(part))) % clusterSlots
	}
	for _, form := range []string{"%d", "export:acct-%d", "{user}%d", "%08d", "tenant-7/order/%d/lock"} {
		for nodes := 3; nodes <= 24; nodes++ {
			load := make([]int, nodes)
			for i := range keys {
				load[slots[hashtag.Of(fmt.Sprintf(form, i))]*nodes/clusterSlots]++
			}
			for node, n := range load {
				if float64(n) > most*keys/float64(nodes) {
					t.Errorf("keys like %q: node %d of %d has %d keys, more than %.1f times the mean", form, node, nodes, n, most)
				}
			}
		}
	}
}
