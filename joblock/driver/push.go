package driver

// ForcedInbox is the inbox to which forced releases push. No Acquire names it.
const ForcedInbox = ""

// Push is a message to an inbox. It is a hint to ask the store, and no more: it may be
// lost unnoticed, come late or more than once, or be forged.
type Push struct {
	// To the inbox of an Acquire that was granted while it waited.
	Nonce string // of that Acquire

	// To ForcedInbox, when a forced release has cut a live lease short.
	Key   string
	Fence int64 // of the holder's term
}
