//go:build !servers

package testkit

// Whole reports whether tests run in their whole length: all the random histories, days and years. Without the build tag
// servers, which sets Whole, they run a share that finds most faults in a fraction of the time. See [Size].
const Whole = false
