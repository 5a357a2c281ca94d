package ledger

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
)

// keptSpans is how many pauses of all jobs are remembered, more than operators make between two ticks of a job. Ticks
// in older pauses would count as missed.
const keptSpans = 8

// Span is a pause. Times are milliseconds of the store's clock.
type Span struct {
	From  int64  `json:"p"` // later ticks are skipped; 0: no pause
	Until int64  `json:"r,omitempty"`
	By    string `json:"by,omitempty"` // who has paused or, if Until is set, who has resumed
	Note  string `json:"note,omitempty"`
}

// Resumed is the end of a pause.
type Resumed struct {
	At   int64  `json:"t"`
	By   string `json:"by,omitempty"`
	Note string `json:"note,omitempty"`
	All  bool   `json:"all,omitempty"` // of all jobs
}

// Resumed returns the end of the latest pause, of the job alone or of all jobs, or the zero Resumed if there was none.
func (o Order) Resumed() (r Resumed) {
	if o.PausedUntil != 0 {
		r = Resumed{At: o.PausedUntil, By: o.By, Note: o.Note}
	}
	for _, s := range o.all {
		if s.Until > r.At {
			r = Resumed{At: s.Until, By: s.By, Note: s.Note, All: true}
		}
	}
	return r
}

// Resumption returns the end of the latest pause, according to the ledger or to o, whichever is later.
func (l *Ledger) Resumption(o Order) Resumed {
	if r := o.Resumed(); r.At > l.Resumed.At {
		return r
	}
	return l.Resumed
}

func (s Span) has(tick int64) bool {
	return s.From != 0 && tick > s.From && (s.Until == 0 || tick <= s.Until)
}

// PauseNote returns the note of a pause after the given number of failures in a row, the latest with the error last.
func PauseNote(failures int, last error) string {
	text := ""
	if last != nil {
		text = ", the last one with: " + last.Error()
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, shortenJSON(fmt.Sprintf("%d executions in a row have failed%s", failures, text), maxErrBytes))
	return text
}

// For returns the order for a job, with the pauses of all jobs. The Fence of the result grows with each write that
// concerns the job.
func (o Orders) For(name string) Order {
	order := o.Jobs[name]
	order.all, order.Fence = o.All, max(order.Fence, o.AllTold)
	return order
}

// PauseAll pauses all jobs. fence is the fence of the write. If all jobs are already paused, it changes only By and
// Note, and returns false if there is no new note.
func (o *Orders) PauseAll(fence int64, now time.Time, by, note string) bool {
	if len(o.All) > 0 && o.All[0].Until == 0 {
		if note == "" || note == o.All[0].Note {
			return false
		}
		o.All = slices.Clone(o.All)
		o.All[0].By, o.All[0].Note = by, note
		o.AllTold = fence
		return true
	}
	o.All = prepend(Span{From: now.UnixMilli(), By: by, Note: note}, slices.Clone(o.All), keptSpans)
	o.AllTold = fence
	return true
}

// ResumeAll ends the pause of all jobs. It returns false if there is none.
func (o *Orders) ResumeAll(fence int64, now time.Time, by, note string) bool {
	if len(o.All) == 0 || o.All[0].Until != 0 {
		return false
	}
	o.All = slices.Clone(o.All)
	o.All[0] = Span{From: o.All[0].From, Until: now.UnixMilli(), By: by, Note: note}
	o.AllTold = fence
	return true
}
