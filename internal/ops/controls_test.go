package ops

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
)

// A pause is on record, listed, explained, and reported by Doctor when it may have been forgotten.
func TestPauseOfAKey(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		done, err := s.Act(t.Context(), PauseKey{Key: "tenant:42", For: Millis(time.Hour), Reason: "restores a backup"})
		if err != nil || done.Audit == "" {
			t.Fatalf("%+v, %v", done, err)
		}
		set, err := s.Controls(t.Context())
		testkit.WantNil(t, "Controls", err)
		if len(set.Pauses) != 1 || set.Pauses[0].By != eva.By || set.Pauses[0].Note != "restores a backup" || set.Pauses[0].Until.Sub(set.Pauses[0].Since.Time) != time.Hour {
			t.Fatalf("%+v", set)
		}
		for key, want := range map[string]bool{"tenant:42": true, "tenant:42:export": true, "tenant:421": false, "tenant": false} {
			e, err := s.Explain(t.Context(), key)
			testkit.WantNil(t, "Explain", err)
			text := strings.Join(e.Text, "\n")
			if strings.Contains(text, "paused by "+eva.By) != want || strings.Contains(text, "restores a backup") != want {
				t.Errorf("%s: %s", key, text)
			}
			if offered := len(e.Actions) > 0 && e.Actions[0].Name == ActResumeKey && e.Actions[0].Key == "tenant:42"; offered != want {
				t.Errorf("%s: offers %+v", key, e.Actions)
			}
		}
		see := SeenBy(t.Context(), Viewer{Key: func(key string) bool { return strings.HasPrefix(key, "tenant:7") }})
		if set, err := s.Controls(see); err != nil || len(set.Pauses) != 0 {
			t.Errorf("another tenant sees %+v, %v", set, err)
		}
		_, err = s.Act(t.Context(), ResumeKey{Key: "tenant", Reason: "x"})
		testkit.WantErr(t, err, joblock.ErrNotFound)
		_, err = s.Act(t.Context(), ResumeKey{Key: "tenant:42", Reason: "done"})
		testkit.WantNil(t, "ResumeKey", err)
		_, err = s.Act(t.Context(), ResumeKey{Key: "tenant:42", Reason: "again"})
		testkit.WantErr(t, err, joblock.ErrNotFound)
	})
}

// The pauses of one tenant leave room in the registry for those of others.
func TestPausesOfATenantHaveAShare(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		tenant := SeenBy(t.Context(), Viewer{Key: func(key string) bool { return strings.HasPrefix(key, "tenant:") }})
		long := func(i int) string { return fmt.Sprintf("tenant:%d:%s", i, strings.Repeat("k", 400)) }
		paused := 0
		for ; paused < 200; paused++ {
			if _, err := s.Act(tenant, PauseKey{Key: long(paused), Reason: strings.Repeat("r", 256)}); err != nil {
				testkit.WantErr(t, err, joblock.ErrInvalid)
				break
			}
		}
		if paused < 10 || paused > 30 {
			t.Errorf("a tenant has paused %d keys", paused)
		}
		if e := s.audit.entries[len(s.audit.entries)-1]; !e.refused() {
			t.Errorf("the refusal is recorded as %+v", e)
		}
		_, err := s.Act(tenant, PauseKey{Key: long(0), For: Millis(time.Hour), Reason: "x"}) // in place of its pause
		testkit.WantNil(t, "PauseKey", err)
		_, err = s.Act(t.Context(), PauseKey{Key: "other", Reason: "x"})
		testkit.WantNil(t, "PauseKey", err)
		_, err = s.Act(t.Context(), PauseKey{Key: long(1000), Reason: strings.Repeat("r", 256)}) // by an operator of all keys
		testkit.WantNil(t, "PauseKey", err)
	})
}

// What is refused before it begins is recorded apart, so that refusals displace no actions.
func TestRefusedControlsAreRecordedApart(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		for _, a := range []Action{ResumeKey{Key: "tenant", Reason: "x"}, ClearLimit{Limit: "n", Reason: "x"}} {
			before := len(s.audit.entries)
			_, err := s.Act(t.Context(), a)
			testkit.WantErr(t, err, joblock.ErrNotFound)
			if e := s.audit.entries[len(s.audit.entries)-1]; len(s.audit.entries) != before+1 || !e.refused() {
				t.Errorf("%s: %d entries, the last is %+v", a.Verb(), len(s.audit.entries)-before, e)
			}
		}
	})
}

func TestBadPausesAndLimits(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		for name, bad := range map[string]Action{
			"no key":           PauseKey{Reason: "x"},
			"a pattern":        PauseKey{Key: "tenant:*", Reason: "x"},
			"no last part":     PauseKey{Key: "tenant:", Reason: "x"},
			"the toolkit's":    PauseKey{Key: "%keeper", Reason: "x"},
			"too long a key":   PauseKey{Key: strings.Repeat("k", 505), Reason: "x"},
			"no reason":        PauseKey{Key: "k"},
			"too short":        PauseKey{Key: "k", For: 1, Reason: "x"},
			"negative":         PauseKey{Key: "k", For: -1, Reason: "x"},
			"too long":         PauseKey{Key: "k", For: Millis(367 * 24 * time.Hour), Reason: "x"},
			"a limit of none":  SetLimit{Limit: "n", Reason: "x"},
			"a large limit":    SetLimit{Limit: "n", Value: 1_000_001, Reason: "x"},
			"a limit unnamed":  SetLimit{Value: 1, Reason: "x"},
			"a limit, unasked": SetLimit{Limit: "n", Value: 1},
			"a long name":      SetLimit{Limit: strings.Repeat("n", 129), Value: 1, Reason: "x"},
			"clears no name":   ClearLimit{Reason: "x"},
		} {
			if _, err := s.Act(t.Context(), bad); joblock.CodeOf(err) != joblock.CodeOf(joblock.ErrInvalid) {
				t.Errorf("%s: %v, want ErrInvalid", name, err)
			}
		}
		if n := len(s.audit.entries); n != 0 {
			t.Errorf("%d entries, want none", n)
		}
	})
}

func TestNamedLimits(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		for _, n := range []int{3, 7} {
			_, err := s.Act(t.Context(), SetLimit{Limit: "acme", Value: n, Reason: "slow"})
			testkit.WantNil(t, "SetLimit", err)
		}
		set, err := s.Controls(t.Context())
		if err != nil || len(set.Limits) != 1 || set.Limits[0].Value != 7 || set.Limits[0].Name != "acme" {
			t.Fatalf("%+v, %v", set, err)
		}
		if e := s.audit.entries[2]; e.Value != 7 || e.Key != "acme" {
			t.Errorf("on record is %+v", e)
		}
		_, err = s.Act(t.Context(), ClearLimit{Limit: "acme", Reason: "fast"})
		testkit.WantNil(t, "ClearLimit", err)
		_, err = s.Act(t.Context(), ClearLimit{Limit: "acme", Reason: "fast"})
		testkit.WantErr(t, err, joblock.ErrNotFound)
	})
}

// Doctor reports a pause without an end that is older than a day, and one without a note, as a Warning.
func TestDoctorReportsPauses(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		for _, p := range []PauseKey{{Key: "old", Reason: "down"}, {Key: "bare", Reason: NoReason}, {Key: "short", For: Millis(100 * time.Hour), Reason: "down"}} {
			_, err := s.Act(t.Context(), p)
			testkit.WantNil(t, "PauseKey", err)
		}
		found := func() map[string]Severity {
			all := make(map[string]Severity)
			c, err := s.Doctor(t.Context())
			testkit.WantNil(t, "Doctor", err)
			for _, f := range c.Findings {
				if f.Subject == "pauses" {
					_, key, _ := strings.Cut(f.Found, `"`)
					key, _, _ = strings.Cut(key, `"`)
					all[key] = f.Severity
				}
			}
			return all
		}
		if got := found(); got["old"] != Note || got["bare"] != Warning || got["short"] != Note {
			t.Errorf("%+v", got)
		}
		time.Sleep(25 * time.Hour)
		if got := found(); got["old"] != Warning || got["bare"] != Warning || got["short"] != Note {
			t.Errorf("a day later: %+v", got)
		}
	})
}
