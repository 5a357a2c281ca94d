//go:build !servers

package redisstore

import "flag"

// share returns how much of a long test the tier without the build tag servers runs.
func share(n int) int { return n / 8 }

func init() {
	// Few histories. The tier with the build tag servers looks at more.
	if err := flag.Set("rapid.checks", "12"); err != nil { // the command line still decides
		panic(err)
	}
}
