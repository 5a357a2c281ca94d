package pages

import (
	"context"
	"errors"
	"time"

	"github.com/joblock/toolkit/internal/ops"
)

const doctorEvery = time.Minute

// DoctorBody is what the doctor's page shows.
type DoctorBody struct {
	At       time.Time
	Pending  bool
	Findings []ops.Finding
	Well     []ops.Checked
	Sum      DoctorSum
}

func (h *Handler) findings(ctx context.Context, least, wait time.Duration) (read[ops.Checkup], error) {
	return getAs(ctx, h.cache, "doctor", terms{least: least, newer: wait, any: wait}, h.cfg.Desk.Doctor)
}

func (h *Handler) doctorPage(ctx context.Context, v *View) (any, error) {
	least := doctorEvery
	if one(v.Query, "again") == "1" {
		least = patienceNew
	}
	r, err := h.findings(ctx, least, 3*time.Second)
	if errors.Is(err, errSlow) {
		return &DoctorBody{Pending: true}, nil
	}
	found, err := take(v, "what the doctor has found", r, err)
	if err != nil {
		return nil, err
	}
	b := &DoctorBody{At: r.at.Add(v.ahead()), Findings: found.Findings, Sum: sumFindings(found.Findings)}
	for _, c := range found.Checks {
		if c.Status == ops.Well {
			b.Well = append(b.Well, c)
		}
	}
	return b, nil
}

// doctorSum returns what the doctor has found last, and does not wait for the doctor.
func (h *Handler) doctorSum(v *View) *DoctorSum {
	r, err := h.findings(h.ctx, doctorEvery, 0)
	if err != nil {
		if !errors.Is(err, errSlow) {
			v.stale("what the doctor finds", time.Time{}, err)
		}
		return nil
	}
	if !errors.Is(r.err, errSlow) { // the page says in its place when the doctor looked
		v.stale("what the doctor has found", r.at, r.err)
	}
	s := sumFindings(r.val.Findings)
	s.At = r.at.Add(v.ahead())
	return &s
}

func sumFindings(found []ops.Finding) DoctorSum {
	s := DoctorSum{}
	for i, f := range found {
		switch f.Severity {
		case ops.Fault:
			s.Faults++
		case ops.Warning:
			s.Warnings++
		default:
			s.Notes++
			continue
		}
		if s.First == nil {
			s.First = &found[i]
		}
	}
	return s
}
