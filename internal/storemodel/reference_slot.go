package storemodel

import (
	"slices"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// releaseSlot is release for a slot other than the first. The queue is that of line, which may be nil.
func (r *reference) releaseSlot(now time.Duration, req driver.ReleaseRequest, line *reference) prediction {
	var queue []inLine
	left := ""
	if line.phase(now) != absent {
		queue, left = line.left(req)
	}
	slot := reference{}
	if r.phase(now) != absent {
		slot = *r
	}
	over := func(w inLine) bool { return now >= w.until }
	first := slices.IndexFunc(queue, func(w inLine) bool { return !over(w) && w.job != "" })
	slot.line = nil
	rest := slices.DeleteFunc(slices.Clone(queue), over)
	if first >= 0 {
		slot.line = queue[first : first+1]
		rest = slices.Concat(slices.DeleteFunc(slices.Clone(queue[:first]), over), queue[first+1:])
	}

	ph := slot.phase(now)
	vacant := ph == absent || ph == ended || ph == ranOut
	var p prediction
	looked := false
	switch {
	case ph != absent && slot.last == req.Nonce: // again, passed on
		p = slot.releaseOnly(now, req, left)
		if looked = ph == ended; !looked {
			break
		}
		if next := slot.next(now, ranOut); next != nil {
			reply, late := p.reply, p.lateToo
			how, _ := slot.before(ph)
			p = slot.serve(now, next, how)
			p.starts, p.reply, p.lateToo = req.Starts, reply, late
			p.reply.Next = next.job
		}
	case left != "" && req.Kind == driver.ReleaseForcedIdle && vacant: // left
		p.reply.Outcome = driver.OutcomeOK
	case !req.Kind.ByOwner() && vacant: // passed on, free
		looked = true
		if next := slot.next(now, ranOut); next != nil {
			how, _ := slot.before(ph)
			p = slot.serve(now, next, how)
			p.starts, p.reply.Next = req.Starts, next.job
		}
		p.reply.Outcome = driver.OutcomeNotFound
	case ph == absent: // no record
		p.reply.Outcome = driver.OutcomeNotFound
	default:
		p = slot.releaseOnly(now, req, left)
		looked = p.apply != nil
	}
	apply, served := p.apply, line
	p.apply = func(r *reference) {
		if apply != nil {
			apply(r)
			r.line = nil
		}
		if served.phase(now) == absent {
			return
		}
		if served.line = queue; looked {
			served.line = rest
		}
	}
	return p
}
