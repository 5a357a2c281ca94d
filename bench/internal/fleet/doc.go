// Package fleet measures the keepers of a fleet of worker processes before very many parked
// locks: what a round of checks costs, how late the lock of a deleted task is freed, and what
// happens when the process of the keeper that works is killed.
package fleet
