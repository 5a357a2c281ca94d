package driver

// ForcedInbox is the inbox to which forced releases push. No Acquire names ForcedInbox as its inbox.
const ForcedInbox = ""

// Push is a message to an inbox. A Push is only a hint to ask the store: it may be lost, late, repeated or forged.
type Push struct {
	Nonce string // of an Acquire that was granted while it waited; "" in a Push to ForcedInbox

	// A Push to ForcedInbox says which live lease a forced release has ended. Both fields are zero in other Pushes.
	Key   string
	Fence int64 // of the term that the lease belonged to
}
