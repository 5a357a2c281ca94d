package redisstore

import (
	"fmt"
	"slices"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

// Severity says how much a Finding matters.
type Severity uint8

// The severities.
const (
	// Well: nothing has to change. The Finding only says what was looked at; see Examine.
	Well Severity = iota
	// Note: the Finding is good to know, and nothing has to change.
	Note
	// Warning: the Finding weakens a promise in an event that comes now and then: a restart, a fail-over, a full server.
	Warning
	// Fault: the Finding breaks locks or calls in everyday use.
	Fault
)

var severityNames = [...]string{"well", "note", "warning", "fault"}

// String returns the severity's name in lower case.
func (s Severity) String() string {
	if int(s) < len(severityNames) {
		return severityNames[s]
	}
	return fmt.Sprintf("Severity(%d)", uint8(s))
}

// MarshalText returns the same as String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Finding is one thing that Check found.
type Finding struct {
	Severity Severity `json:"severity"`
	Node     string   `json:"node,omitempty"` // the server's address; "" if the Finding is not about one server
	Subject  string   `json:"subject"`        // a setting or a right: "maxmemory-policy", "permissions"
	Found    string   `json:"found"`          // what was found
	Means    string   `json:"means"`          // what the Finding means for locks; "" if Well
	Fix      string   `json:"fix"`            // what to change; "" if Well
}

// String returns the finding as one line.
func (f Finding) String() string {
	where := ""
	if f.Node != "" {
		where = " at " + f.Node
	}
	if f.Severity == Well {
		return fmt.Sprintf("%s: %s%s: %s", f.Severity, f.Subject, where, f.Found)
	}
	return fmt.Sprintf("%s: %s%s: %s; %s; %s", f.Severity, f.Subject, where, f.Found, f.Means, f.Fix)
}

// Report is what Check found, the worst first.
type Report []Finding

// String returns a line for each finding.
func (r Report) String() string {
	var b strings.Builder
	for _, f := range r {
		b.WriteString(f.String())
		b.WriteByte('\n')
	}
	return b.String()
}

// Err returns nil if no Finding is a Fault. Otherwise Err returns an error that lists the Faults and matches
// joblock.ErrInvalid. Err is for programs that refuse to start in that case.
func (r Report) Err() error {
	var faults []string
	for _, f := range r {
		if f.Severity == Fault {
			faults = append(faults, f.String())
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
		if a.Severity != b.Severity {
			return int(b.Severity) - int(a.Severity)
		}
		return strings.Compare(a.Subject, b.Subject)
	})
}
