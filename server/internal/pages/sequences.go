package pages

import (
	"context"
	"slices"
	"strings"

	"github.com/joblock/toolkit/internal/ops"
)

// SequencesBody is what the list of sequences shows.
type SequencesBody struct {
	Rows   []ops.Sequence
	All    int
	Halted int
	Stuck  int
	Next   string
	Prefix string
	State  string
	States []string
	Walk   WalkInfo
}

// walkSequences walks over the lines of jobs.
func (h *Handler) walkSequences(ctx context.Context, share float64, add func(ops.Sequence), progress func(float64)) error {
	for s, err := range h.cfg.Desk.Sequences(ctx, ops.SequencesQuery{Share: share, Progress: progress}) {
		if err != nil {
			return err
		}
		h.clock(s.Lock.Now)
		add(s)
	}
	return nil
}

// maySequence reports whether the caller may see a sequence: its key, and the job in front.
func (c *Caller) maySequence(s ops.Sequence) bool {
	return c.MayUse(s.Key) && (s.Job == "" || c.mayJob(s.Job)) && (s.Task == nil || c.viewer().MaySee(*s.Task))
}

func (h *Handler) sequencesPage(ctx context.Context, v *View) (any, error) {
	w, err := h.sequences.look(ctx)
	if err != nil {
		return nil, err
	}
	v.stale("the sequences", w.at, w.err)
	b := &SequencesBody{
		Prefix: one(v.Query, "prefix"), State: one(v.Query, "state"), Walk: infoOf(w, v.ahead()),
		States: []string{string(ops.SequenceHalted), string(ops.SequenceStuck), string(ops.SequenceWaiting), string(ops.SequenceRunning)},
	}
	b.Walk.Jobs = true
	sorted := of(w, "sorted", func() []ops.Sequence {
		rows := slices.Clone(w.rows)
		slices.SortFunc(rows, ops.CompareSequences)
		return rows
	})
	after, past := one(v.Query, "after"), false
	if !slices.ContainsFunc(sorted, func(s ops.Sequence) bool { return s.Key == after }) {
		after = "" // the place no longer exists: begin at the first page, so that the page is not empty
	}
	for _, s := range sorted {
		if !v.Who.maySequence(s) {
			continue
		}
		switch s.State {
		case ops.SequenceHalted:
			b.Halted++
		case ops.SequenceStuck:
			b.Stuck++
		}
		if !strings.HasPrefix(s.Key, b.Prefix) || b.State != "" && string(s.State) != b.State {
			continue
		}
		b.All++
		if after != "" && !past {
			past = s.Key == after
			continue
		}
		if len(b.Rows) < pageRows {
			b.Rows = append(b.Rows, s)
		} else if b.Next == "" {
			b.Next = b.Rows[len(b.Rows)-1].Key
		}
	}
	return b, nil
}

// Halting returns the actions that the caller may perform on the job that halts a sequence: to skip it, or to run it
// again.
func (v *View) Halting(s ops.Sequence) (all []Offer) {
	if s.State != ops.SequenceHalted || !v.MayOperate() {
		return nil
	}
	for _, a := range s.Actions {
		switch a.Name {
		case ops.ActRunTask:
			all = append(all, Offer{Title: "Run again", Href: actURL("do", doOf(ops.ActRunTask), "job", s.Job, "key", s.Key)})
		case ops.ActSkipJob:
			all = append(all, Offer{Title: "Skip", Href: actURL("do", doOf(ops.ActSkipJob), "key", s.Key)})
		}
	}
	return all
}

// haltedOf returns the keys of the sequences that have halted according to the walk over the jobs.
func haltedOf(jobs []ops.Job, who *Caller) (keys []string) {
	for _, j := range jobs {
		if j.Place == nil && j.Task.Halts && j.Task.State == "archived" && !j.Task.Snoozed && who.MayUse(j.Key) && who.mayJob(j.Job) && who.viewer().MaySee(j.Task) {
			keys = append(keys, j.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
