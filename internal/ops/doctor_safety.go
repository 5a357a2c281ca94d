package ops

import (
	"cmp"
	"slices"
)

// Safety says whether the servers keep locks safe, as far as the doctor can tell, and why.
type Safety struct {
	Word    string // yes, no or unknown
	Because string // without a full stop
}

// besides are the subjects of findings that are not about the servers of the locks.
var besides = []string{"keeper", "cron", "asynq", "journal", "index of jobs", "prefix", "locks"}

// Safety judges by the findings about the servers: a fault breaks locks in everyday use, a warning weakens a promise in rare
// events. What could not be looked at may be either.
func (c Checkup) Safety() Safety {
	of := func(f Finding) string { return f.Subject + ": " + f.Found + ": " + f.Means }
	var rare, dark string
	for _, f := range c.Findings { // the worst first
		switch {
		case slices.Contains(besides, f.Subject):
		case f.Subject == "servers", f.Subject == "version" && f.Severity == Warning, f.Severity == Note && (f.Subject == "permissions" || f.Subject == "persistence"):
			dark = cmp.Or(dark, of(f)) // they say themselves that something is not known
		case f.Severity == Fault:
			return Safety{"no", of(f)}
		case f.Severity == Warning:
			rare = cmp.Or(rare, of(f))
		}
	}
	switch looked := slices.ContainsFunc(c.Checks, func(k Checked) bool { return !slices.Contains(besides, k.Subject) }); {
	case dark != "":
		return Safety{"unknown", dark}
	case !looked:
		return Safety{"unknown", "this server does not look at the servers of the locks"}
	case rare != "":
		return Safety{"yes, except in rare events", rare}
	}
	return Safety{"yes", "the doctor has found nothing at their servers that breaks a promise"}
}
