package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newDoctor(s *server) *cobra.Command {
	var o output
	var strict bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "say what is wrong, what it means, and what to do",
		Long: `Doctor looks for what endangers locks, jobs and cron jobs: at the servers of the locks (eviction, persistence, rights,
clocks, versions), at the keepers, at the databases of asynq, at sequences that have halted and lines of more than
100, at the nodes and jobs of all schedulers, and at the last hour of the journal: a note says what has happened three
times or more, even if it no longer happens.

Monitoring needs two commands: "joblock doctor --strict", and "joblock jobs ls --suspects --check", which looks at the
lock of each job. "joblock cron ls --check" is for cron jobs alone, and also exits with 1 if a job is paused.

A finding is one of:
  fault    breaks locks, jobs or cron jobs in everyday use
  warning  weakens a promise in an event such as a restart or a fail-over, or delays something
  note     good to know; also what doctor was not allowed to look at

Doctor takes one lock at a key of its own, and changes nothing else. It needs no more rights than a program that uses
locks. In the formats for people the first line says whether the servers keep locks safe, and why: "yes", "no",
"unknown" if something could not be checked, or "yes, but" with the event that frees held locks, and how often to
expect it. For a Redis that keeps nothing on disk the line is "yes, but a restart of Redis, which is routine, frees
held locks". Problems of keepers, cron jobs and queues do not count here, because they endanger no lock. What was
checked and is well is in one line on the standard error; -o wide has a row for each, with what was found.

With -o json: {"v":1, "safe": {"word", "because", "subject", "node"}, "items": [findings],
"checks": [{"status", "subject", "node", "found"}]}, where a status is one of the three above, or "well". If a finding
decides whether locks are safe, "subject" and "node" in "safe" are those of the finding.

Exit codes in addition to those of "joblock help":
  1  there is a fault or, with --strict, a warning`,
		Example: `  joblock doctor
  joblock doctor --strict -o json   # for monitoring
  joblock doctor --asynq redis://queues:6379/1 --asynq redis://queues:6379/2`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A signal cancels the check of the servers, which then removes the lock that it has taken.
			return untilSignal(cmd.Context(), func(ctx context.Context) error {
				cmd.SetContext(ctx)
				return s.withDesk(cmd, &o, func(ctx context.Context, d *desk, p *printer) error {
					keeper, err := d.Keeper(ctx)
					if err != nil && !ops.Denied(err) {
						return err
					}
					if p.format == "table" {
						d.introduce(ctx, p, s, keeper, err)
					}
					checkup, err := d.Doctor(ctx)
					if err := tellReport(p, checkup, err); err != nil {
						return err
					}
					return verdict(checkup.Findings, strict)
				})
			})
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&strict, "strict", false, "exit with 1 also if there is a warning, such as a cron job whose latest run has failed")
	return cmd
}

// introduce prints what doctor checks.
func (d *desk) introduce(ctx context.Context, p *printer, s *server, k ops.Keeper, unread error) {
	p.say("locks   prefix %q", s.prefix)
	if _, databases, err := s.databases(os.Getenv); err == nil {
		var names []string
		for _, a := range databases {
			names = append(names, a.name())
		}
		p.say("asynq   %s", joined(names))
	}
	p.say("keeper  %s", keeperText(k, unread))
	if scopes, err := d.CronScopes(ctx); err == nil && len(scopes) > 0 {
		p.say("cron    scopes %s", quoted(scopes))
	} else if err == nil {
		p.say("cron    no scheduler has run in the last year")
	}
	p.say("")
}

// keeperText returns which keepers keep the locks of jobs.
func keeperText(k ops.Keeper, unread error) string {
	if unread != nil {
		return "could not be read: " + textOf(unread)
	}
	var works []string
	for _, place := range k.Places {
		if !place.Works {
			continue
		}
		text := fmt.Sprintf("%s has worked for %s", place.Holder, span(k.Now.Sub(place.Since.Time)))
		if place.DryRun {
			text += ", and changes nothing (DryRun)"
		}
		works = append(works, text)
	}
	if len(works) == 0 {
		return "none works"
	}
	return fmt.Sprintf("%s; %d stand by", strings.Join(works, "; "), k.StandBy)
}

// tellReport prints the report. If err cut the check short, it prints what was found so far only in the formats for
// people: a program would take it for the whole report, and an empty one for health.
func tellReport(p *printer, c ops.Report, err error) error {
	if err != nil && p.format != "table" {
		return err
	}
	if perr := printReport(p, c); err == nil {
		err = perr
	}
	return err
}

// tellSafety prints whether the servers keep locks safe.
func tellSafety(p *printer, s ops.Safety, width int) {
	as := warning
	switch s.Word {
	case "yes":
		as = good
	case "no":
		as = bad
	}
	because := ", because "
	if s.Subject != "" {
		because += "of "
	}
	const head = "Safe for locks: "
	text := wrap(strings.ReplaceAll(visible(head+s.Word+because+s.Because+"."), "\n", "; "), max(width, 20))
	if rest, ok := strings.CutPrefix(text, head+s.Word); ok { // not if a narrow terminal breaks it into two lines
		text = head + p.paint(s.Word, as) + rest
	}
	fmt.Fprintln(p.out, text)
}

// printReport prints whether locks are safe, findings, and what is well: in sentences, unless the user has asked for another
// format.
func printReport(p *printer, c ops.Report) error {
	findings := c.Findings
	role := func(f ops.Finding) role { return severityRole(f.Severity) }
	wells := slices.DeleteFunc(slices.Clone(c.Checks), func(c ops.Probe) bool { return c.Status != ops.Well })
	switch p.format {
	case "json":
		return printOne(p, nil, c)
	case "wide":
		for _, w := range wells {
			findings = append(findings, ops.Finding{Severity: w.Status, Subject: w.Subject, Node: w.Node, Found: w.Found})
		}
	}
	if p.format != "table" {
		return printAll(p, []column[ops.Finding]{
			{head: "SUBJECT", text: func(f ops.Finding) string { return f.Subject }},
			{head: "SEVERITY", text: func(f ops.Finding) string { return string(f.Severity) }, role: role},
			{head: "NODE", text: func(f ops.Finding) string { return f.Node }},
			{head: "FOUND", text: func(f ops.Finding) string { return f.Found }},
			{head: "MEANS", text: func(f ops.Finding) string { return f.Means }},
			{head: "FIX", text: func(f ops.Finding) string { return f.Fix }},
		}, rowsIn(findings))
	}
	defer printWells(p, wells)
	width := p.width
	if width == 0 {
		width = 100
	}
	checked := c.Safe.Word != "" // otherwise nothing was checked
	if checked {
		tellSafety(p, c.Safe, width)
	}
	for i, f := range findings {
		if checked || i > 0 {
			p.out.WriteByte('\n')
		}
		where := safe(f.Subject)
		if f.Node != "" {
			where += " at " + safe(f.Node)
		}
		p.rows++
		fmt.Fprintf(p.out, "%s: %s\n", p.paint(string(f.Severity), role(f)), where)
		for _, line := range []struct{ head, text string }{{"found", f.Found}, {"means", f.Means}, {"fix", f.Fix}} {
			const indent = 9
			text := wrap(strings.ReplaceAll(visible(line.text), "\n", "; "), max(width-indent, 20))
			fmt.Fprintf(p.out, "  %-7s%s\n", line.head, strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", indent)))
		}
	}
	return p.out.Flush()
}

// printWells prints a line with what was checked and is well.
func printWells(p *printer, wells []ops.Probe) {
	var names []string
	for _, w := range wells {
		if !slices.Contains(names, w.Subject) {
			names = append(names, w.Subject)
		}
	}
	if len(names) == 0 {
		return
	}
	if p.rows > 0 {
		p.say("")
	}
	p.say("well    %s", strings.Join(names, ", "))
}

func severityRole(s ops.Severity) role {
	switch s {
	case ops.Fault:
		return bad
	case ops.Warning:
		return warning
	}
	return plain
}

// verdict returns an error if there is a fault or, if strict is true, a warning.
func verdict(findings []ops.Finding, strict bool) error {
	n := make(map[ops.Severity]int)
	for _, f := range findings {
		n[f.Severity]++
	}
	if n[ops.Fault] == 0 && (!strict || n[ops.Warning] == 0) {
		return nil
	}
	var counts []string
	for _, s := range []ops.Severity{ops.Fault, ops.Warning, ops.Note} {
		if n[s] > 0 {
			counts = append(counts, plural(n[s], string(s)))
		}
	}
	return &exitError{exitNo, errors.New("found " + joined(counts))}
}
