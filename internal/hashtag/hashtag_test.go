package hashtag

import (
	"fmt"
	"strings"
	"testing"
)

// Another hash tag would give locks that exist another name.
func TestTagsStayAsTheyAre(t *testing.T) {
	all := make([]string, Parts)
	for i := range all {
		all[i] = Tag(i)
	}
	const first, sum = "460 14 278 10 274 100 270 18", 13774
	if got := strings.Join(all[:8], " "); got != first {
		t.Errorf("the first hash tags are %q, want %q", got, first)
	}
	if got := crc16(strings.Join(all, " ")); got != sum {
		t.Errorf("the sum of all hash tags is %d, want %d", got, sum)
	}
}

// The specification of Redis Cluster gives this example. The tests of package redisstore ask a server.
func TestCRC(t *testing.T) {
	if got := crc16("123456789"); got != 0x31c3 {
		t.Errorf("got %#x", got)
	}
}

// The most loaded of n nodes has at most 1.3 times the mean of 10,000 keys, whatever the
// keys look like.
func TestKeysAreSpreadOverNodes(t *testing.T) {
	const keys, most = 10_000, 1.3
	for _, form := range []string{"%d", "export:acct-%d", "{user}%d", "%08d", "tenant-7/order/%d/lock"} {
		for nodes := 3; nodes <= 24; nodes++ {
			load := make([]int, nodes)
			for i := range keys {
				tag := Tag(Of(fmt.Sprintf(form, i)))
				load[int(crc16(tag))%slots*nodes/slots]++
			}
			for node, n := range load {
				if float64(n) > most*keys/float64(nodes) {
					t.Errorf("keys like %q: node %d of %d has %d keys, more than %.1f times the mean", form, node, nodes, n, most)
				}
			}
		}
	}
}
