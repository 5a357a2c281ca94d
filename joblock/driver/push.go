package driver

// The inboxes of pushes that no waiting Acquire has asked for. No Acquire names one of these inboxes as its own.
const (
	ForcedInbox = ""       // for forced releases
	JobsInbox   = "jobs"   // for grants to waiting jobs
	NotifyInbox = "notify" // for Notify
)

// Push is a message to an inbox, and only a hint to ask the store. It may be lost, late, repeated or forged. So a Store
// may push after the step of the call, and a failed push does not fail the call. Only a Push with a Grant may save the
// waiter from asking: see "Grants in pushes" in the package comment.
type Push struct {
	Nonce string // of the waiting Acquire that was granted; "" in a Push to ForcedInbox, JobsInbox or NotifyInbox
	Grant *Grant // the grant to that Acquire, or nil; read-only, because several subscribers may share the Grant

	// In a Push to ForcedInbox, Key and Fence name the live lease that a forced release has ended. In a Push to
	// JobsInbox, Key was granted to the waiting Job. In a Push to NotifyInbox, Key is the key that Store.Notify was
	// called with. No other Push sets these three fields.
	Key   string
	Fence int64 // of the term that the lease belonged to
	Job   string
}

// Grant is the grant that a Push is about. The lease lasts the whole TTL of the waiter's latest Acquire, from the grant
// on.
type Grant struct {
	Fence int64 // of the term that the grant began, at most MaxFence
	Ended Ended // how the previous ownership ended
}
