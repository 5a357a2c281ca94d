//go:build !servers

package redistest

// ownServers reports whether tests may start servers of their own. The tests that do are in files with the build tag
// servers, which make servers sets.
const ownServers = false
