//go:build servers && !race

package redisstore

// share returns how much of a long test is run with the build tag servers: all of it.
func share(n int) int { return n }
