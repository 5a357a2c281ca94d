// Package ops has what programs do to locks without a joblock.Lock: scripts, which keep a token between two commands,
// and operators, who have only a key.
//
// # By token
//
// Acquire, Renew, Park, Resume and Release take a joblock.Token and leave no Lock behind. Nobody renews the lock but
// the caller. Each can be repeated after ErrUnavailable with the same token: the store recognises the call, and gives
// the answer of the first one. A Resume needs a name for that, because several callers may have the token.
//
// # By key
//
// Force frees a key for an operator. Force names the holding that the operator has seen, so that a release never hits
// the holder that came after.
package ops
