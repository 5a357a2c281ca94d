package ops

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The renewals tell a holder that lives from one that has died, as far as one look can tell.
func TestPulse(t *testing.T) {
	const ttl = 30 * time.Second
	for _, c := range []struct {
		state   joblock.State
		quiet   time.Duration // since the last renewal
		renewed bool          // since the holding began
		want    Pulse
		says    string
	}{
		{joblock.StateHeld, 0, false, PulseFresh, "The lease of 30 s began 0 ms ago; a renewal is due every 10 s. So the holder was alive 0 ms ago."},
		{joblock.StateHeld, 2 * time.Second, true, PulseFresh, "The last renewal of the lease was 2 s ago; one is due every 10 s. So the holder was alive 2 s ago. Without another renewal the lease ends at 12:00:28 UTC, 28 s from now."},
		{joblock.StateHeld, 12 * time.Second, true, PulseFresh, "The last renewal of the lease was 12 s ago; one is due every 10 s."},
		{joblock.StateHeld, 13 * time.Second, true, PulseLate, "The last renewal of the lease was 13 s ago; one is due every 10 s, and the next is overdue. Of the holder nothing is known since 11:59:47 UTC. Without"},
		{joblock.StateHeld, 20 * time.Second, false, PulseLate, "The lease of 30 s began 20 s ago; a renewal is due every 10 s, and the next is overdue."},
		{joblock.StateHeld, 25 * time.Second, true, PulseSilent, "The last renewal of the lease was 25 s ago; one is due every 10 s, and two are overdue. So the holder stopped between 11:59:35 UTC and 11:59:45 UTC: it has died, hangs, or is cut off from the store. Without another renewal the lease ends at 12:00:05 UTC, 5 s from now."},
		{joblock.StateHeld, 25 * time.Second, false, PulseNever, "The lease of 30 s began 25 s ago and was never renewed. If the holder is a program of the toolkit, a renewal is due every 10 s: then it stopped between 11:59:35 UTC and 11:59:45 UTC, for it has died, hangs, or is cut off from the store. If it is a script"},
		{joblock.StateOrphaned, 40 * time.Second, true, PulseSilent, "The lease of 30 s was renewed last at 11:59:20 UTC (40 s ago), and ended at 11:59:50 UTC (10 s ago)."},
		{joblock.StateOrphaned, 40 * time.Second, false, PulseNever, "The lease of 30 s was never renewed, and ended at 11:59:50 UTC (10 s ago)."},
		{joblock.StateParked, 0, false, PulseNone, "No process works under the lock"},
	} {
		l := lockIn(c.state, "", c.quiet)
		if c.state != joblock.StateParked {
			l.Renewed, l.TTL = Time{noon.Add(-c.quiet)}, Millis(ttl)
			l.Lease, l.ExpiresAt = Millis(max(0, ttl-c.quiet)), Time{noon.Add(ttl - c.quiet)}
		}
		if c.renewed {
			l.Changed = Time{l.Renewed.Add(-time.Minute)}
		}
		e := explain(l, Keeper{}, true, nil, nil)
		checkSentences(t, e)
		if got := l.Pulse(); got != c.want || !strings.Contains(e.Text[0], c.says) {
			t.Errorf("%s, %s after a renewal: %q, %s\nwant %q, %s", c.state, c.quiet, got, e.Text[0], c.want, c.says)
		}
	}
	// Whether a holder is alive that renews by hand, if at all, is not known, however long its lease is.
	byHand := lockIn(joblock.StateHeld, "", time.Second)
	byHand.ByHand, byHand.Renewed, byHand.TTL, byHand.Changed = true, Time{noon.Add(-time.Second)}, Millis(24*time.Hour), Time{noon.Add(-time.Second)}
	for _, quiet := range []time.Duration{time.Second, 23 * time.Hour} {
		byHand.Renewed = Time{noon.Add(-quiet)}
		e := explain(byHand, Keeper{}, true, nil, nil)
		checkSentences(t, e)
		if text := e.Text[0] + e.Frees.Text; byHand.Pulse() != PulseByHand || strings.Contains(text, "due every") || strings.Contains(text, "alive "+length(quiet)) ||
			!strings.Contains(text, "renews it by hand, if at all") || !strings.Contains(text, "also while the holder works") {
			t.Errorf("by hand, %s after a renewal: %q, %s", quiet, byHand.Pulse(), text)
		}
	}
	// The attempt of a job renews: it is no script.
	ofJob := lockIn(joblock.StateHeld, "q/1", 25*time.Second)
	ofJob.Renewed, ofJob.TTL = Time{noon.Add(-25 * time.Second)}, Millis(ttl)
	if got := ofJob.Pulse(); got != PulseSilent {
		t.Errorf("of a job: %q", got)
	}
	for name, l := range map[string]Lock{
		"free": {State: joblock.StateFree, TTL: Millis(ttl), Renewed: Time{noon}, Now: Time{noon}}, "nothing": {}, "no lease": {State: joblock.StateHeld},
	} {
		if got := l.Pulse(); got != PulseNone {
			t.Errorf("%s: %q", name, got)
		}
	}
	future := Lock{State: joblock.StateHeld, TTL: Millis(ttl), Renewed: Time{noon.Add(time.Minute)}, Now: Time{noon}} // the clock was set back
	if got := future.Quiet(); got != 0 || future.Pulse() != PulseFresh {
		t.Errorf("quiet for %s, %q", got, future.Pulse())
	}
}

// A live holder is seen to renew, and one that does not renew is seen to be silent, until its lock has lapsed.
func TestPulseOfRealHolders(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		lock := s.acquire("lives", joblock.TTL(30*time.Second))
		s.acquire("silent", joblock.TTL(30*time.Second), joblock.NoRenew(), joblock.Retain(time.Hour))
		call, err := NewCall(t.Context(), s.locks, "a caller", "")
		testkit.WantNil(t, "NewCall", err)
		_, err = AcquireLease(t.Context(), s.locks, LeaseRequest{Key: "script", TTL: 30 * time.Second, Call: call})
		testkit.WantNil(t, "AcquireLease", err)
		dies := s.acquire("dies", joblock.TTL(30*time.Second))
		time.Sleep(15 * time.Second)
		(*core.Lock)(dies).StopRenewing()
		time.Sleep(12 * time.Second)
		for key, want := range map[string]Pulse{"lives": PulseFresh, "silent": PulseByHand, "script": PulseByHand, "dies": PulseLate} {
			if l := s.lock(key); l.Pulse() != want || l.TTL.Duration() != 30*time.Second || l.State != joblock.StateHeld {
				t.Errorf("%s: %q after %s, want %q", key, l.Pulse(), l.Quiet(), want)
			}
		}
		if l := s.lock("lives"); !l.hasRenewed() || l.Quiet() > 10*time.Second {
			t.Errorf("%+v", l)
		}
		time.Sleep(10 * time.Second)
		if l := s.lock("dies"); l.Pulse() != PulseSilent {
			t.Errorf("dies: %q after %s", l.Pulse(), l.Quiet())
		}
		l := s.lock("silent")
		if l.State != joblock.StateFree || l.Ended != driver.EndedLapsed || l.EndedAt.IsZero() || l.Now.Sub(l.EndedAt.Time).Round(time.Second) != 7*time.Second {
			t.Errorf("%+v, want it lapsed 7s ago", l)
		}
		e, err := s.Explain(t.Context(), "silent")
		testkit.WantNil(t, "Explain", err)
		checkSentences(t, e)
		if !strings.Contains(e.Text[0], "let it lapse at") || !strings.Contains(e.Text[0], "(7 s ago): the lease of 30 s, which began at") {
			t.Error(e.Text[0])
		}
		testkit.WantNil(t, "Release", lock.Release(t.Context()))
	})
}
