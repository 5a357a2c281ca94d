package redisstore

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

// Severity says how much a Finding matters.
type Severity string

// The severities.
const (
	// Well means that nothing has to change. The Finding only says what was checked.
	Well Severity = "well"
	// Note means that the Finding is good to know, and that nothing has to change.
	Note Severity = "note"
	// Warning means that a promise is weakened by an event that occurs now and then: a restart, a fail-over, a full
	// server.
	Warning Severity = "warning"
	// Fault means that locks are lost, or that calls fail, in everyday use.
	Fault Severity = "fault"
)

// rank orders the severities, the worst first.
var rank = map[Severity]int{Fault: 0, Warning: 1, Note: 2, Well: 3}

// Finding is one thing that Check found.
type Finding struct {
	Severity Severity `json:"severity"`
	Node     string   `json:"node,omitempty"` // the server's address; "" if the Finding is not about one server
	Subject  string   `json:"subject"`        // a setting or a right: "maxmemory-policy", "permissions"
	Found    string   `json:"found"`          // what was found
	Means    string   `json:"means"`          // what the Finding means for locks; "" if Well
	Fix      string   `json:"fix"`            // what to change; "" if Well
}

// line returns f as one line.
func (f Finding) line() string {
	where := ""
	if f.Node != "" {
		where = " at " + f.Node
	}
	return fmt.Sprintf("%s: %s%s: %s; %s; %s", f.Severity, f.Subject, where, f.Found, f.Means, f.Fix)
}

// Report is what Check found, the worst first.
type Report []Finding

// String returns a line for each Finding that is not Well, so it is empty if there is nothing to change.
func (r Report) String() string {
	var b strings.Builder
	for _, f := range r {
		if f.Severity != Well {
			b.WriteString(f.line())
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// Err returns nil if no Finding is a Fault. Otherwise Err returns an error that lists the Faults and matches
// joblock.ErrInvalid. Err is for programs that refuse to start in that case.
func (r Report) Err() error {
	var faults []string
	for _, f := range r {
		if f.Severity == Fault {
			faults = append(faults, f.line())
		}
	}
	if faults == nil {
		return nil
	}
	return &joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: "check", Detail: strings.Join(faults, "\n")}
}

// sort puts the worst Findings first. Among Findings of one Severity, those about the same subject come
// together.
func (r Report) sort() {
	slices.SortStableFunc(r, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), strings.Compare(a.Subject, b.Subject))
	})
}
