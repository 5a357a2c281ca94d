//go:build servers

package redistest

const ownServers = true
