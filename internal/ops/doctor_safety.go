package ops

import "slices"

// Safety says whether the servers keep locks safe, as far as the doctor can tell, and why.
type Safety struct {
	Word    string   // yes; yes, except in rare events; no; or unknown
	Because string   // without a full stop; "" if there is a Finding
	Of      *Finding // that decides, or nil
}

// besides are the subjects of findings that are not about the servers of the locks.
var besides = []string{"keeper", "cron", "asynq", "journal", "index of jobs", "prefix", "locks"}

// Safety judges by the findings about the servers: a fault breaks locks in everyday use, and a warning weakens a promise in
// rare events, as do the notes about what a crash or a fail-over loses. What could not be looked at may be either.
func (c Checkup) Safety() Safety {
	var rare, dark *Finding
	for i := range c.Findings { // the worst first
		f := &c.Findings[i]
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
			return Safety{Word: "no", Of: f}
		case f.Severity == Warning && slices.Contains([]string{"maxmemory", "permissions", "pub/sub"}, f.Subject):
			// Calls fail or come late. No lock is lost.
		case f.Severity == Warning, f.Subject == "replica lag", f.Subject == "replication", f.Subject == "appendfsync":
			first(&rare)
		}
	}
	switch looked := slices.ContainsFunc(c.Checks, func(k Checked) bool { return !slices.Contains(besides, k.Subject) }); {
	case dark != nil:
		return Safety{Word: "unknown", Of: dark}
	case !looked:
		return Safety{Word: "unknown", Because: "this server does not look at the servers of the locks"}
	case rare != nil:
		return Safety{Word: "yes, except in rare events", Of: rare}
	}
	return Safety{Word: "yes", Because: "the doctor has found nothing at the servers of the locks that breaks a promise"}
}
