package ops

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// Pulse is what the renewals of a lock tell of its holder.
type Pulse string

// The pulses. A holder of package joblock renews its lease every third of the TTL, and repeats a renewal that has failed.
// Other holders renew when they see fit: scripts with "joblock acquire", and clients of the lock server.
const (
	PulseNone   Pulse = ""       // nobody runs under the lock
	PulseFresh  Pulse = "fresh"  // the lease began, or was renewed, within half of its length
	PulseLate   Pulse = "late"   // a renewal is overdue
	PulseSilent Pulse = "silent" // two renewals are overdue: the holder has probably died, hangs, or is cut off
	PulseNever  Pulse = "never"  // as PulseSilent; but the holder has not renewed once, so perhaps it does not renew by itself
)

// Pulse says whether the holder renews its lease, as far as that can be told from one look. A holder that has just begun,
// or has just died, is PulseFresh.
func (l Lock) Pulse() Pulse {
	if l.TTL <= 0 || l.State != joblock.StateHeld && l.State != joblock.StateOrphaned {
		return PulseNone
	}
	switch quiet, ttl := l.Quiet(), l.TTL.Duration(); {
	case quiet <= ttl/2:
		return PulseFresh
	case quiet <= ttl/3*2:
		return PulseLate
	case !l.hasRenewed():
		return PulseNever
	}
	return PulseSilent
}

// Quiet returns how long ago the lease began or was renewed last, 0 if there is no lease.
func (l Lock) Quiet() time.Duration {
	if l.Renewed.IsZero() {
		return 0
	}
	return max(0, l.Now.Sub(l.Renewed.Time))
}

// hasRenewed reports whether the holder has renewed the lease with which its holding began.
func (l Lock) hasRenewed() bool { return l.Renewed.After(l.Changed.Time) }

// The method pulse says when the lease was renewed last, and what that means for the holder.
func (s *story) pulse() string {
	quiet := length(s.Quiet())
	lives := fmt.Sprintf("a live holder renews it every %s or so", length(s.TTL.Duration()/3))
	ends := fmt.Sprintf(" Without another renewal the lease ends at %s, %s from now.", s.clock(s.ExpiresAt.Time), length(s.Remaining.Duration()))
	nobody := "Nobody has renewed the lease for " + quiet
	if !s.hasRenewed() {
		nobody = fmt.Sprintf("Nobody has renewed the lease since it began, %s ago", quiet)
	}
	switch s.Pulse() {
	case PulseFresh:
		if s.hasRenewed() {
			return fmt.Sprintf(" The lease was renewed %s ago; %s.", quiet, lives) + ends
		}
		return fmt.Sprintf(" The lease of %s began %s ago; %s.", length(s.TTL.Duration()), quiet, lives) + ends
	case PulseLate:
		return fmt.Sprintf(" %s; %s, so a renewal is overdue.", nobody, lives) + ends
	case PulseSilent:
		return fmt.Sprintf(" %s; %s. So the holder has probably died, hangs, or is cut off from the store.", nobody, lives) + ends
	case PulseNever:
		return fmt.Sprintf(" %s; %s. So the holder has died, hangs, or is cut off from the store. Or it does not renew by itself, as a script with \"joblock acquire\", or a client of the lock server.", nobody, lives) + ends
	}
	return ends
}

// The method stopped says when a lease that has run out was renewed last.
func (s *story) stopped() string {
	if s.Renewed.IsZero() {
		return ""
	}
	end := s.Renewed.Add(s.TTL.Duration())
	ended := fmt.Sprintf("ended at %s (%s)", s.clock(end), s.ago(end))
	if !s.hasRenewed() {
		return fmt.Sprintf(" The lease of %s was not renewed once, and %s.", length(s.TTL.Duration()), ended)
	}
	return fmt.Sprintf(" The lease of %s was renewed last at %s (%s), and %s.", length(s.TTL.Duration()), s.clock(s.Renewed.Time), s.ago(s.Renewed.Time), ended)
}
