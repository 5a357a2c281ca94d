//go:build servers

package testkit

// Whole reports whether tests run in their whole length, which the build tag servers asks for. See [Size].
const Whole = true
