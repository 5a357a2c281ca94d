// Package unrenewed tells the loss of a lock that its own side has brought about, by no
// longer renewing it, from one that came from outside. Package worker needs to know: a
// job that takes longer than its lock may be held would be put back without end.
package unrenewed

import "errors"

// Err is the cause of a joblock.ErrLost whose lock was no longer to be renewed.
var Err = errors.New("it was no longer to be renewed (NoRenew, MaxHold or StopRenewing)")
