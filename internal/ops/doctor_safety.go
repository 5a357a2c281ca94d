package ops

import (
	"slices"
	"strings"
)

// Safety says whether the servers keep locks safe, as far as the doctor can tell, and why.
type Safety struct {
	Word    string `json:"word"`              // yes; yes, except in rare events; no; or unknown
	Because string `json:"because"`           // without a full stop; never ""
	Subject string `json:"subject,omitempty"` // of the Finding that decides, if one does; and its Node
	Node    string `json:"node,omitempty"`
}

// because returns what Safety.Because says if f decides.
func (f Finding) because() string {
	where := f.Subject
	if f.Node != "" {
		where += " at " + f.Node
	}
	return where + ": " + strings.TrimSuffix(f.Found, ".")
}

// Deciding returns the Finding that decides about Safe, or nil.
func (c Checkup) Deciding() *Finding {
	for i := range c.Findings {
		if f := &c.Findings[i]; f.Subject == c.Safe.Subject && f.Node == c.Safe.Node && f.because() == c.Safe.Because {
			return f
		}
	}
	return nil
}

// besides are the subjects of findings that are not about the servers of the locks.
var besides = []string{"keeper", "cron", "asynq", "journal", "index of jobs", "prefix", "locks"}

// SafetyOf judges by the findings about the servers, the worst first: a fault breaks locks in everyday use, and a warning
// weakens a promise in rare events, as do the notes about what a crash or a fail-over loses. What could not be looked at may be
// either. Checkup.Safe has the result.
func SafetyOf(findings []Finding, checks []Checked) Safety {
	judge := func(word string, f *Finding) Safety { return Safety{word, f.because(), f.Subject, f.Node} }
	var rare, dark *Finding
	for i := range findings {
		f := &findings[i]
		first := func(of **Finding) {
			if *of == nil {
				*of = f
			}
		}
		switch {
		case slices.Contains(besides, f.Subject):
		case f.Subject == "servers", f.Subject == "version" && f.Severity == Warning, f.Severity == Note && (f.Subject == "permissions" || f.Subject == "persistence"):
			first(&dark) // they say themselves that something is not known
		case f.Severity == Fault:
			return judge("no", f)
		case f.Severity == Warning && slices.Contains([]string{"maxmemory", "permissions", "pub/sub"}, f.Subject):
			// Calls fail or come late. No lock is lost.
		case f.Severity == Warning, f.Subject == "replica lag", f.Subject == "replication", f.Subject == "appendfsync":
			first(&rare)
		}
	}
	switch looked := slices.ContainsFunc(checks, func(k Checked) bool { return !slices.Contains(besides, k.Subject) }); {
	case dark != nil:
		return judge("unknown", dark)
	case !looked:
		return Safety{Word: "unknown", Because: "this server does not look at the servers of the locks"}
	case rare != nil:
		return judge("yes, except in rare events", rare)
	}
	return Safety{Word: "yes", Because: "the doctor has found nothing at the servers of the locks that breaks a promise"}
}
