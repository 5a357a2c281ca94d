// Package ops has what programs do to locks without a joblock.Lock: scripts, which keep a token between two commands,
// and operators, who have only a key.
//
// # By token
//
// Acquire, Renew, Park and Resume take a joblock.Token and leave no Lock behind. Nobody renews the lock but the caller.
// All four can be repeated after ErrUnavailable with the same token: the store recognises the call, and gives the
// answer of the first one.
//
// # By key
//
// Force frees a key for an operator. Force names the holding that the operator has seen, so that a release never hits
// the holder that came after.
package ops
