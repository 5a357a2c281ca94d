package driver

// ForcedInbox is the inbox to which forced releases push. No Acquire names ForcedInbox as its inbox.
const ForcedInbox = ""

// Push is a message to an inbox. A Push is only a hint to ask the store. A Push may be lost, late, repeated or
// forged. So a Store may push after the step of the call, and a failed push does not fail the call.
type Push struct {
	Nonce string // of an Acquire that was granted while it waited; "" in a Push to ForcedInbox

	// Key and Fence name the live lease that a forced release has ended. Only a Push to ForcedInbox sets these two
	// fields.
	Key   string
	Fence int64 // of the term that the lease belonged to
}
