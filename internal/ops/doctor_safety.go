package ops

import (
	"slices"
	"strings"
)

// Safety says whether the servers keep locks safe, as far as the doctor can tell, and why.
type Safety struct {
	Word    string `json:"word"`              // see SafeYes
	Because string `json:"because"`           // without a full stop; never ""
	Subject string `json:"subject,omitempty"` // the Subject of the Finding that decides, if one does; Node is its Node
	Node    string `json:"node,omitempty"`
}

// The values of Safety.Word. Those that begin with "yes, but" name the event in which locks are lost, and how often to
// expect it.
const (
	SafeYes             = "yes"
	SafeButRestart      = "yes, but a restart of Redis, which is routine, frees held locks"
	SafeButMaybeRestart = "yes, but perhaps a restart of Redis, which is routine, frees held locks"
	SafeButCrash        = "yes, but a crash of Redis, which is uncommon, frees held locks"
	SafeButFailover     = "yes, but a fail-over, which is uncommon, can free the newest locks"
	SafeButMachine      = "yes, but a crash of the machine, which is rare, frees the locks of its last second"
	SafeNo              = "no"
	SafeUnknown         = "unknown"
)

// events lists the findings that name an event in which locks are lost, with the Safety.Word of that event. The most
// likely event comes first.
var events = []lossEvent{
	{"persistence", Warning, SafeButRestart},
	{"persistence", Note, SafeButMaybeRestart}, // the server does not report its persistence
	{"appendonly", Warning, SafeButCrash},
	{"min-replicas-to-write", Warning, SafeButFailover},
	{"replica lag", "", SafeButFailover},
	{"replication", "", SafeButFailover},
	{"appendfsync", "", SafeButMachine},
}

// lossEvent is an event in which locks are lost, and the findings that name it.
type lossEvent struct {
	subject  string
	severity Severity // "" matches any
	word     string   // the Safety.Word
}

// lossOf returns the index of f in events, or -1.
func lossOf(f *Finding) int {
	return slices.IndexFunc(events, func(e lossEvent) bool {
		return e.subject == f.Subject && (e.severity == "" || e.severity == f.Severity)
	})
}

// because returns the text of Safety.Because if f decides.
func (f Finding) because() string {
	where := f.Subject
	if f.Node != "" {
		where += " at " + f.Node
	}
	return where + ": " + strings.TrimSuffix(f.Found, ".")
}

// Deciding returns the Finding that determines Safe, or nil.
func (c Report) Deciding() *Finding {
	for i := range c.Findings {
		if f := &c.Findings[i]; f.Subject == c.Safe.Subject && f.Node == c.Safe.Node && f.because() == c.Safe.Because {
			return f
		}
	}
	return nil
}

// elsewhere are the subjects of findings that are not about the servers of the locks.
var elsewhere = []string{"keeper", "cron", "asynq", "journal", "index of jobs", "prefix", "locks", "pauses"}

// SafetyOf judges the servers by the findings about them. A Fault means no: it breaks locks in everyday use. Among the
// findings about what a restart, a crash or a failover loses, the finding with the most likely event decides. If a server
// could not be checked, the answer is unknown.
func SafetyOf(findings []Finding, checks []Probe) Safety {
	judge := func(word string, f *Finding) Safety { return Safety{word, f.because(), f.Subject, f.Node} }
	var dark, lossy *Finding
	likely := len(events)
	for i := range findings {
		f := &findings[i]
		switch {
		case slices.Contains(elsewhere, f.Subject):
		case f.Subject == "servers", f.Subject == "writes", f.Subject == "version" && f.Severity == Warning, f.Severity == Note && f.Subject == "permissions":
			if dark == nil {
				dark = f // it says itself that something is not known
			}
		case f.Severity == Fault:
			return judge(SafeNo, f)
		default: // a warning without an event means that calls fail or are late, but no lock is lost
			if i := lossOf(f); i >= 0 && i < likely {
				lossy, likely = f, i
			}
		}
	}
	switch looked := slices.ContainsFunc(checks, func(k Probe) bool { return !slices.Contains(elsewhere, k.Subject) }); {
	case dark != nil:
		return judge(SafeUnknown, dark)
	case !looked:
		return Safety{Word: SafeUnknown, Because: "this server does not look at the servers of the locks"}
	case lossy != nil:
		return judge(events[likely].word, lossy)
	}
	return Safety{Word: SafeYes, Because: "the doctor has found nothing at the servers of the locks that breaks a promise"}
}
