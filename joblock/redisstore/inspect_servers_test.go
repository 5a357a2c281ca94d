//go:build servers

package redisstore

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock/driver"
)

// A hundred records take one call, and few commands in it: one tells the time, one that there are records, one all texts.
// Absent keys take two commands, and eight of them one more if there is also a record.
func TestInspectOfManyTakesFewCalls(t *testing.T) {
	k := newOwnKit(t)
	ctx := context.Background()
	var keys []string
	for i := range 250 {
		keys = append(keys, fmt.Sprint("key ", i))
		k.acquire(keys[i])
	}
	read := func(keys []string, state driver.State) func() {
		return func() {
			recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: keys})
			if err != nil || recs[len(keys)-1].State != state {
				t.Errorf("inspect %d: %v", len(keys), err)
			}
		}
	}
	for n, want := range map[int]int{1: 1, 2: 1, 100: 1, 101: 2, 250: 3} {
		read(keys[:n], driver.StateHeld)() // makes the script known
		scripts, commands, _ := k.work(read(keys[:n], driver.StateHeld))
		if scripts != want || commands > 3*want {
			t.Errorf("%d records took %d scripts and %d commands in them, want %d and %d", n, scripts, commands, want, 3*want)
		}
	}
	for i := range keys {
		keys[i] = "absent " + keys[i]
	}
	for _, want := range []int{2, 3 + 64/8} {
		scripts, commands, _ := k.work(read(keys[:64], driver.StateFree))
		if scripts != 1 || commands > want {
			t.Errorf("64 keys, with %s first, took %d scripts and %d commands in them, want 1 and %d", keys[0], scripts, commands, want)
		}
		keys[0] = "key 0" // a record among absent keys
	}
}

// Behind a client of another type there may be several servers, and each key may be on any of them.
func TestInspectThroughAClientOfSeveralServers(t *testing.T) {
	one, two := redistest.Start(t), redistest.Start(t)
	redistest.Ran(t, one.Backend())
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"one": one.Addr(), "two": two.Addr()}})
	t.Cleanup(func() { ring.Close() })
	k := newKit(t, wrapped{ring})
	var keys []string
	for i := range 20 {
		keys = append(keys, k.acquire(fmt.Sprint("key-", i)).Key)
	}
	recs, err := k.Inspect(context.Background(), driver.InspectRequest{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	for _, rec := range recs {
		if rec.State != driver.StateHeld {
			t.Errorf("%s is %s", rec.Key, rec.State)
		}
	}
}

func TestInspectOfManyInACluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	redistest.Ran(t, cluster.Node(0).Backend())
	inspectMany(t, newKit(t, cluster.Client(t)), nil)
}
