//go:build !servers || race

package redisstore

import "flag"

// share returns how much of a long test is run without the build tag servers, and with the race detector, which makes each
// history five times as long and sees the same calls in a few. make histories runs all of it.
func share(n int) int { return n / 8 }

func init() {
	if err := flag.Set("rapid.checks", "12"); err != nil { // the command line still decides
		panic(err)
	}
}
