package pages

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

const doctorEvery = time.Minute

// DoctorBody is what the doctor's page shows.
type DoctorBody struct {
	At       time.Time
	Pending  bool
	Findings []FindingRow
	Well     []ops.Probe
	Sum      DoctorSum
}

// ID returns the anchor of a finding on the doctor's page.
func (f FindingRow) ID() string { return idOf("f", f.Subject+" "+f.Node+" "+f.Found) }

func (h *Handler) findings(ctx context.Context, who *Caller, least, wait time.Duration) (read[ops.Report], error) {
	return getAs(ctx, h.cache, "doctor"+who.sight(), terms{least: least, newer: wait, any: wait}, seen(who, h.cfg.Desk.Doctor))
}

func (h *Handler) doctorPage(ctx context.Context, v *View) (any, error) {
	least := doctorEvery
	if one(v.Query, "again") == "1" {
		least = patienceNew
	}
	r, err := h.findings(ctx, v.Who, least, 3*time.Second)
	if errors.Is(err, errSlow) {
		return &DoctorBody{Pending: true}, nil
	}
	found, err := take(v, "what the doctor has found", r, err)
	if err != nil {
		return nil, err
	}
	b := &DoctorBody{At: r.at.Add(v.ahead()), Sum: h.sumFindings(found, v.Who)}
	b.Sum.here = true
	for _, f := range found.Findings {
		b.Findings = append(b.Findings, h.linked(f, v.Who))
	}
	for _, c := range found.Checks {
		if c.Status == ops.Well {
			b.Well = append(b.Well, c)
		}
	}
	return b, nil
}

// doctorSum returns what the doctor found last. It does not wait for the doctor.
func (h *Handler) doctorSum(v *View) *DoctorSum {
	r, err := h.findings(h.ctx, v.Who, doctorEvery, 0)
	if err != nil {
		if !errors.Is(err, errSlow) {
			v.stale("what the doctor finds", time.Time{}, err)
		}
		return nil
	}
	if !errors.Is(r.err, errSlow) { // for errSlow, s.At shows how old the findings are
		v.stale("what the doctor has found", r.at, r.err)
	}
	s := h.sumFindings(r.val, v.Who)
	s.At = r.at.Add(v.ahead())
	return &s
}

func (h *Handler) sumFindings(all ops.Report, who *Caller) DoctorSum {
	s := DoctorSum{Safe: all.Safe, decides: all.Deciding()}
	for _, f := range all.Findings {
		switch f.Severity {
		case ops.Fault:
			s.Faults++
		case ops.Warning:
			s.Warnings++
		default:
			s.Notes++
			continue
		}
		if s.First == nil && (s.decides == nil || *s.decides != f) {
			first := h.linked(f, who)
			s.First = &first
		}
	}
	return s
}

// FindingRow is a finding with a link to the page about its subject.
type FindingRow struct {
	ops.Finding
	Href string // "" if there is none
	Page string // in words
}

// Why returns the finding that decides whether locks are safe, or nil. Its Href is its place on the doctor's page.
func (s *DoctorSum) Why() *FindingRow {
	if s.decides == nil {
		return nil
	}
	row := &FindingRow{Finding: *s.decides}
	if row.Href = "#" + row.ID(); !s.here {
		row.Href = "doctor" + row.Href
	}
	return row
}

// Tone returns the CSS class of the word that says whether locks are safe. Notes do not count as an alarm.
func (s *DoctorSum) Tone() string {
	switch of := s.decides; {
	case s.Safe.Word == ops.SafeNo:
		return "dangerword"
	case s.Safe.Word == ops.SafeUnknown, of != nil && of.Severity != ops.Note:
		return "warnword"
	}
	return ""
}

// linked adds a link to the page about the finding's Node: a key, a scope, or a scope and the name of a cron job. A
// finding that something could not be read gets no link, because that page could not show it either.
func (h *Handler) linked(f ops.Finding, who *Caller) FindingRow {
	row := FindingRow{Finding: f}
	if f.Unread() {
		return row
	}
	if f.Subject == "cron" || f.Subject == "journal" {
		for _, scope := range h.cfg.Scopes {
			if f.Node == scope && f.Subject == "cron" {
				row.Href, row.Page = "cron?"+url.Values{"scope": {scope}}.Encode(), "the cron jobs of the scope"
				return row
			}
			if name, ok := strings.CutPrefix(f.Node, scope+": "); ok {
				row.Href, row.Page = "cronjob?"+url.Values{"scope": {scope}, "name": {name}}.Encode(), "the cron job"
				return row
			}
		}
	}
	switch f.Subject {
	case "keeper", "outbox":
		row.Href, row.Page = "nodes", "nodes and keepers"
	case "asynq", "index of jobs":
		row.Href, row.Page = "jobs", "the jobs with locks"
	case "journal":
		switch {
		case f.Node == "" || !strings.Contains(f.Fix, " -- "): // Node is a process, or a scope that is not shown
			row.Href, row.Page = "events", "the events"
		case who.MayUse(f.Node):
			row.Href, row.Page = "events?"+url.Values{"key": {f.Node}}.Encode(), "the events of the key"
		}
	}
	return row
}
