package ops

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// Pulse is what the renewals of a lock indicate about its holder.
type Pulse string

// The values of Pulse. A holder of package joblock renews its lease every third of the TTL, and retries a failed renewal.
// Other holders renew by hand, if at all: scripts with "joblock acquire", clients of the lock server, such as Terraform,
// and programs with joblock.NoRenew. Their leases do not show whether they are alive.
const (
	PulseNone   Pulse = ""        // no holder runs under the lock
	PulseFresh  Pulse = "fresh"   // no renewal is overdue
	PulseLate   Pulse = "late"    // a renewal is overdue
	PulseSilent Pulse = "silent"  // two renewals are overdue: the holder has died, hangs, or is cut off
	PulseNever  Pulse = "never"   // like PulseSilent, but the holder has not renewed once, so perhaps it does not renew by itself
	PulseByHand Pulse = "by hand" // the holder renews by hand, if at all: the lease does not show whether it is alive
)

// Pulse reports whether the holder renews its lease, as far as a single read can show. After a holder dies, it is still
// PulseFresh until some time after its next renewal is due, because a renewal may take a while.
func (l Lock) Pulse() Pulse {
	if l.TTL <= 0 || l.State != joblock.StateHeld && l.State != joblock.StateOrphaned {
		return PulseNone
	}
	if l.ByHand {
		return PulseByHand
	}
	switch quiet, ttl := l.Quiet(), l.TTL.Duration(); {
	case quiet <= ttl/12*5:
		return PulseFresh
	case quiet <= ttl/3*2:
		return PulseLate
	case !l.hasRenewed() && l.Job == "": // a job's lock is never PulseNever: workers renew
		return PulseNever
	}
	return PulseSilent
}

// RenewsEvery returns how often a holder of package joblock renews the lease, 0 if there is no lease.
func (l Lock) RenewsEvery() time.Duration { return l.TTL.Duration() / 3 }

// Quiet returns how long ago the lease began or was last renewed, 0 if there is no lease.
func (l Lock) Quiet() time.Duration {
	if l.Renewed.IsZero() {
		return 0
	}
	return max(0, l.Now.Sub(l.Renewed.Time))
}

// hasRenewed reports whether the holder has renewed its first lease.
func (l Lock) hasRenewed() bool { return l.Renewed.After(l.Changed.Time) }

// pulse says when the lease was last renewed, and what that indicates about the holder.
func (s *story) pulse() string {
	quiet, every := length(s.Quiet()), length(s.RenewsEvery())
	ends := fmt.Sprintf(" Without another renewal the lease ends at %s, %s from now.", s.clock(s.ExpiresAt.Time), length(s.Lease.Duration()))
	known := fmt.Sprintf(" The lease of %s began %s ago; a renewal is due every %s", length(s.TTL.Duration()), quiet, every)
	if s.hasRenewed() {
		known = fmt.Sprintf(" The last renewal of the lease was %s ago; one is due every %s", quiet, every)
	}
	silent, stopped := s.clock(s.Renewed.Time), s.clock(s.Renewed.Add(s.RenewsEvery()))
	switch s.Pulse() {
	case PulseFresh:
		return fmt.Sprintf("%s. So the holder was alive %s ago.", known, quiet) + ends
	case PulseLate:
		return fmt.Sprintf("%s, and the next is overdue. Of the holder nothing is known since %s.", known, silent) + ends
	case PulseSilent:
		return fmt.Sprintf("%s, and two are overdue. So the holder stopped between %s and %s: it has died, hangs, or is cut off from the store.", known, silent, stopped) + ends
	case PulseByHand:
		known = fmt.Sprintf(" The lease of %s began %s ago", length(s.TTL.Duration()), quiet)
		if s.hasRenewed() {
			known = fmt.Sprintf(" The lease of %s was renewed last %s ago", length(s.TTL.Duration()), quiet)
		}
		return known + ". Its holder renews it by hand, if at all, as a script with \"joblock acquire\" or a client of the lock server does: so the lease does not say whether the holder is alive." + ends
	case PulseNever:
		if s.Lately != nil && s.Lately.Unrenewed > 0 {
			return fmt.Sprintf(" The lease of %s began %s ago and was never renewed. The holders of this key do not renew by themselves, as the journal shows: so nothing is known of this one, and it need not be dead.", length(s.TTL.Duration()), quiet) + ends
		}
		return fmt.Sprintf(" The lease of %s began %s ago and was never renewed. If the holder is a program of the toolkit, a renewal is due every %s: then it stopped between %s and %s, for it has died, hangs, or is cut off from the store. If it is a script that took the lock with \"joblock acquire\", or a client of the lock server, it need not renew, and nothing is known of it.",
			length(s.TTL.Duration()), quiet, every, silent, stopped) + ends
	}
	return ends
}

// stopped says when a lapsed lease was last renewed.
func (s *story) stopped() string {
	if s.Renewed.IsZero() {
		return ""
	}
	end := s.Renewed.Add(s.TTL.Duration())
	ended := fmt.Sprintf("ended at %s (%s)", s.clock(end), s.ago(end))
	if !s.hasRenewed() {
		return fmt.Sprintf(" The lease of %s was never renewed, and %s.", length(s.TTL.Duration()), ended)
	}
	return fmt.Sprintf(" The lease of %s was renewed last at %s (%s), and %s.", length(s.TTL.Duration()), s.clock(s.Renewed.Time), s.ago(s.Renewed.Time), ended)
}
