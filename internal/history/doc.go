// Package history records what the users of locks saw, in many goroutines and
// processes, and checks it afterwards against what package joblock promises.
//
// A [Recorder] stands between the users and a Locker and writes one line per
// [Event]. The events of all processes of one machine, put together, go to [Check]
// and to [Linearizable]. Neither needs to know what the store did.
//
// Check works on beliefs: from the answer that brought a lock until its release or
// Park was begun, its loss told, or the trust deadline last seen of it. No two
// beliefs of one key may overlap, and fences have to grow in the order of the grants.
// A process that was killed believes until its deadline, as nobody has told it
// otherwise. This is the check to rely on: O(n log n), never inconclusive, and its
// complaint names the two holders. CheckLimit is the same for the permits of a limit.
//
// Linearizable asks for an order of all calls under which each of them does what the
// state machine of a lock says, reservations and unanswered calls included. It finds
// what beliefs do not show, such as a token that is resumed after its lock was
// released or by another job than it was parked for, but a contradiction may take it
// long.
//
// What is not seen is never held against a lock: an event that a kill kept from
// being written makes a check weaker, not wrong.
//
// Times are those of the machine's wall clock, which all processes share: whoever
// records has to see to it that nobody sets the clock meanwhile.
package history
