package ops

import (
	"context"
	"fmt"
	"time"

	"github.com/joblock/toolkit/internal/controls"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock/driver"
)

// Pause is a pause of the jobs with a lock on Key, or on a key below Key; see PauseKey.
type Pause struct {
	Key     string `json:"key"`
	Note    string `json:"note,omitempty"`
	By      string `json:"by"`
	Since   Time   `json:"since"`
	Until   Time   `json:"until,omitzero"`   // when the pause ends by itself; zero: when an operator resumes the key
	Resumed Time   `json:"resumed,omitzero"` // when an operator resumed the key, as long as not all of its jobs have been started
	Waiting int    `json:"waiting"`          // how many jobs have come and are held back, without those behind them in line
	Ended   bool   `json:"ended,omitempty"`  // the pause is over, and its jobs are being started
}

// Limit is the value that an operator has set for a named limit; see SetLimit.
type Limit struct {
	Name  string `json:"name"`
	Value int    `json:"value"`
	Note  string `json:"note,omitempty"`
	By    string `json:"by"`
	Since Time   `json:"since"`
}

// Controls is what operators have set at run time.
type Controls struct {
	Pauses []Pause `json:"pauses"` // in the order of keys
	Limits []Limit `json:"limits"` // in the order of names
	Now    Time    `json:"now"`    // by the store's clock
}

// Held returns how many jobs all pauses hold back.
func (c Controls) Held() (n int) {
	for _, p := range c.Pauses {
		n += p.Waiting
	}
	return n
}

// Controls returns the pauses of keys and the values of named limits, with two calls to the store. A Viewer with Key gets
// only the pauses of the keys that it may see, and no limits. Errors: joblock.ErrUnavailable and ErrClosed.
func (d *Desk) Controls(ctx context.Context) (Controls, error) {
	out := Controls{Pauses: []Pause{}, Limits: []Limit{}}
	set, err := d.in.Controls().Fresh(ctx)
	if err != nil {
		return out, err
	}
	out.Now = Time{set.Now()}
	see := viewerOf(ctx).Key
	var lines []string
	for _, p := range set.Pauses {
		if see == nil || see(p.Key) {
			out.Pauses, lines = append(out.Pauses, pauseOf(p, set.Now())), append(lines, keyspace.Pause(p.Key))
		}
	}
	if see == nil {
		for _, l := range set.Limits {
			out.Limits = append(out.Limits, Limit{l.Name, l.Value, l.Note, l.By, Time{l.Since}})
		}
	}
	if len(lines) == 0 {
		return out, nil
	}
	recs, err := d.inspect(ctx, "controls", "", lines)
	if err != nil {
		return out, err
	}
	for i, rec := range recs {
		out.Pauses[i].Waiting = held(rec)
	}
	return out, nil
}

// held returns how many jobs a pause holds back: rec is the record of the pause's line. The first job has the key of the
// line, the others wait for it.
func held(rec driver.Record) int {
	if rec.Job != "" && lockOf(rec).Locked() {
		return rec.Waiters + 1
	}
	return rec.Waiters
}

func pauseOf(p controls.Pause, now time.Time) Pause {
	return Pause{Key: p.Key, Note: p.Note, By: p.By, Since: Time{p.Since}, Until: Time{p.Until}, Resumed: Time{p.Resumed}, Ended: p.Ended(now)}
}

// covering returns the pauses that hold back the jobs of key. Keys that the toolkit itself uses cannot be paused.
func (d *Desk) covering(ctx context.Context, key string) (all []Pause) {
	set := d.in.Controls().Get(ctx)
	for _, p := range set.Covering(key) {
		all = append(all, pauseOf(p, set.Now()))
	}
	return all
}

// paused says that the key is paused, by whom and until when, and what its jobs do.
func (s *story) paused() string {
	text := ""
	for _, p := range s.Paused {
		what := "The key is"
		if p.Key != s.Key {
			what = fmt.Sprintf("The key %s, and so this one, is", quote(p.Key))
		}
		until := "until an operator resumes it"
		if !p.Until.IsZero() {
			until = fmt.Sprintf("until %s (%s), or until an operator resumes it", s.clock(p.Until.Time), s.until(p.Until.Time))
		}
		if text != "" {
			text += " "
		}
		text += fmt.Sprintf("%s paused by %s since %s, %s: its jobs do not start; one that runs goes on.", what, visible(p.By), s.when(p.Since.Time), until)
		if p.Note != "" {
			text += fmt.Sprintf(" Note: %s", visible(p.Note)) + "."
		}
	}
	return text
}

// controls looks for pauses that may have been forgotten.
func (c *checkup) controls(ctx context.Context) error {
	set, err := c.Controls(ctx)
	if err != nil {
		return c.unread(ctx, "pauses", "", err)
	}
	for _, p := range set.Pauses {
		c.used = true
		text := fmt.Sprintf("the key %q is paused by %s since %s: %s", p.Key, p.By, moment(p.Since.Time), p.Note)
		resume := "joblock jobs resume --reason TEXT -- " + Shell(p.Key)
		switch {
		case p.Ended:
			c.add(Note, "pauses", "", fmt.Sprintf("the pause of the key %q has ended, and %s not started yet", p.Key, haveJobs(p.Waiting)), "they start as soon as a worker with a keeper is up", "start a worker, and in each one a keeper (in Go: Worker.RunKeeper)")
		case set.Now.Sub(p.Since.Time) > pausedLong && p.Until.IsZero():
			c.add(Warning, "pauses", "", text, "its jobs do not start; "+haveJobs(p.Waiting)+" come so far", resume+", if the pause was forgotten")
		case p.Note == "" || p.Note == NoReason:
			c.add(Warning, "pauses", "", text, "others do not know why", resume+", or pause it again with a note")
		default:
			c.add(Note, "pauses", "", text, "its jobs do not start; "+haveJobs(p.Waiting)+" come so far", resume+" ends the pause")
		}
	}
	c.well("pauses", "", "no key is paused")
	return nil
}

func haveJobs(n int) string {
	if n == 1 {
		return "1 job has"
	}
	return fmt.Sprintf("%d jobs have", n)
}
