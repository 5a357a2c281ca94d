//go:build !servers

package redisstore

import "flag"

// share returns how much of a long test the tier without the build tag servers runs.
func share(n int) int { return n / 8 }

// newSeed returns that of a random test: here always the same, so that the tier passes or fails for all alike.
func newSeed() uint64 { return 1 }

func init() {
	// The same few histories every time. The tier with the build tag servers looks at new ones.
	for name, value := range map[string]string{"rapid.checks": "12", "rapid.seed": "1"} {
		if err := flag.Set(name, value); err != nil { // the command line still decides
			panic(err)
		}
	}
}
