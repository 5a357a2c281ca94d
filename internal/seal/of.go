package seal

// Of returns the Ring of a *joblock.Locker; nil of one that joblock.New has not made.
// Package joblock sets it. It is here, and no method of Locker, because handoff and
// worker are the only ones to seal anything.
var Of func(locker any) *Ring
