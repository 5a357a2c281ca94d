package core

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// show describes what an event has done: the fields that changed, what is to be sent
// (→), reported and done, and the error; "-" if nothing.
func show(before, after *holding, out []any) string {
	var parts []string
	was := fieldsOf(before)
	for i, f := range fieldsOf(after) {
		if f.text != was[i].text {
			parts = append(parts, f.name+"="+f.text)
		}
	}
	for _, v := range out {
		if text := text(v); text != "" {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, " ")
}

type field struct{ name, text string }

// fieldsOf are the fields of a holding but for its terms.
func fieldsOf(h *holding) []field {
	var hint string
	if h.hint != nil {
		hint = *h.hint
	}
	return []field{
		{"state", text(h.state)}, {"fence", text(h.fence)}, {"since", text(h.since)}, {"trust", text(h.trust)},
		{"job", text(h.job)}, {"over", text(h.over)}, {"retain", text(h.retain)}, {"shared", text(h.shared)},
		{"renewing", text(h.renewing)}, {"renewAt", text(h.renewAt)}, {"underWay", text(h.underWay)},
		{"takingBack", text(int64(h.takingBack))},
		{"parkNonce", text(h.parkNonce)}, {"parkReserve", text(h.parkReserve)},
		{"reclaimNonce", text(h.reclaimNonce)}, {"reclaimSent", text(h.reclaimSent)}, {"releaseNonce", text(h.releaseNonce)},
		{"doubt", text(h.doubt)}, {"hint", text(hint)},
	}
}

func TestFieldsOfAHoldingAreAllShown(t *testing.T) {
	names := []string{"terms"}
	for _, f := range fieldsOf(new(holding)) {
		names = append(names, f.name)
	}
	var want []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[holding]()) {
		if len(f.Index) == 1 {
			want = append(want, f.Name)
		}
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("shown are\n%v, a holding has\n%v", names, want)
	}
}

func text(v any) string {
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		if v == "" {
			return "none"
		}
		return v
	case lockState:
		return [...]string{"held", "parking", "parked", "released", "lost"}[v]
	case doubt:
		return [...]string{"no", "checking", "doubted"}[v]
	case time.Time:
		if v.IsZero() {
			return "never"
		}
		return fmt.Sprintf("%+gs", v.Sub(begun).Seconds())
	case error:
		return errorText(v)
	case step:
		return stepText(v)
	case driver.RenewRequest:
		return "→renew " + termText(v.Term) + optional(" reserve ", v.Reserve) + optional(" back ", v.Back)
	case driver.ParkRequest:
		return fmt.Sprintf("→park %s as %s for %s %s grace %s", termText(v.Term), v.Nonce, v.Job, v.Reserve, v.Grace)
	case driver.ResumeRequest:
		return fmt.Sprintf("→reclaim %d as %s from %s", v.Fence, v.Nonce, v.Job) + optional(" reserve ", v.Reserve) + optional(" back ", v.Back)
	case driver.ReleaseRequest:
		return "→release " + termText(v.Term) + " as " + v.Nonce + optional(" brief ", v.Brief) + optional(" reason ", v.Reason) + optional(" done ", v.Job)
	case releasing:
		s := text(v.req) + " until " + text(v.until)
		if v.stray {
			s += " stray"
		}
		if v.lost != nil {
			s += " " + text(v.lost)
		}
		return s
	}
	return fmt.Sprint(v)
}

func termText(t driver.Term) string {
	if t.Key != "key" || t.Owner != "owner" {
		return fmt.Sprint(t)
	}
	if t.Grant == "" {
		return fmt.Sprint(t.Fence)
	}
	return fmt.Sprint(t.Fence, "/", t.Grant)
}

func stepText(s step) string {
	var parts []string
	if s.tell != 0 {
		parts = append(parts, "emits "+s.tell.String())
	}
	if s.late != 0 {
		parts = append(parts, "by "+s.late.String())
	}
	if s.lost != nil {
		parts = append(parts, "lost:"+errorText(s.lost))
	}
	if s.moved {
		parts = append(parts, "moved")
	}
	if s.found {
		parts = append(parts, "found")
	}
	return strings.Join(parts, " ")
}

func errorText(err error) string {
	if e, is := err.(*Error); is && e == nil {
		return "none"
	}
	for name, sentinel := range map[string]error{
		"ErrLost": ErrLost, "ErrNotOwner": ErrNotOwner, "ErrAlreadyReleased": ErrAlreadyReleased,
		"ErrInvalid": ErrInvalid, "ErrUnavailable": ErrUnavailable, "ErrBusy": ErrBusy,
	} {
		if errors.Is(err, sentinel) {
			if errors.Is(err, ErrNotRenewed) {
				name += "(not renewed)"
			}
			return name
		}
	}
	return err.Error()
}

// optional is text after name, nothing for a zero value.
func optional(name string, v any) string {
	if reflect.ValueOf(v).IsZero() {
		return ""
	}
	return name + text(v)
}
