// Package history records what the users of locks saw, in many goroutines and
// processes, and checks it afterwards against what package joblock promises.
//
// A [Recorder] stands between the users and a Locker and writes one line per
// [Event]. The events of all processes of one machine, put together, go to [Check]
// and to [Linearizable]. Neither needs to know what the store did.
//
// Check works on beliefs. A belief begins with the answer that brought a lock. It ends when a release or Park begins,
// when the loss is reported, or at the last trust deadline that was seen. Beliefs of one key must not overlap, and
// fences must grow in the order of the grants. A process that was killed believes until its deadline. This is the check
// to rely on: O(n log n), never inconclusive, and it names the two holders. CheckLimit does the same for the permits of
// a limit. CheckLine finds keys that were given to another caller while a job had waited longer.
//
// Linearizable looks for an order of all calls in which each does what the state machine
// of a lock says, reservations and unanswered calls included. It finds what beliefs do
// not show, such as a token that is resumed after its lock was released. But it may need
// long to find a contradiction.
//
// An event that a kill kept from being written makes a check weaker, never wrong.
//
// Times are those of the machine's wall clock, which all processes share. It must not be
// set while a history is recorded.
package history
