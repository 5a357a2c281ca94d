// Package rig is what the measurements stand on: a redis-server of their own, a
// count of what a client really sends, and the cost of a process in time and
// memory.
package rig
