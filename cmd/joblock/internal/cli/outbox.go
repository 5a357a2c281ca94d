package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/ops"
)

func newOutbox(s *server) *cobra.Command {
	var o output
	var check bool
	cmd := &cobra.Command{
		Use:   "outbox",
		Short: "list how far behind the relays of outboxes are, and their errors",
		Long: `Outbox lists the outboxes of module outbox that have reported in the last day. The process that relays the rows of an outbox reports
to Redis about every ten seconds; outbox itself reads no database.

STATE is one of:
  well      a relay works, and keeps up
  behind    the first row has waited for more than a minute
  unread    the database does not answer the relay
  unserved  no relay has reported for 40 seconds: the other columns are from its last report

WAITING is how many rows are not enqueued yet, and OLDEST how long the first of them has been in the table. REFUSED is how many
rows will not be enqueued: their column error says why. RELAY is the process that relays, and SENT how many rows it has
enqueued since it began.`,
		Example: `  joblock outbox
  joblock outbox --check            # for monitoring: exit code 1 unless all is well
  joblock outbox -o json`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.withDesk(cmd, &o, func(ctx context.Context, d *desk, p *printer) error {
				all, err := d.Outboxes(ctx)
				if err != nil {
					return err
				}
				if err := printAll(p, outboxColumns(p, all.Now), rowsIn(all.Outboxes)); err != nil {
					return err
				}
				p.none("no relay of an outbox has reported in the last day")
				var bad []string
				for _, b := range all.Outboxes {
					if b.State != ops.OutboxWell || b.Refused > 0 {
						bad = append(bad, safe(b.Name))
					}
				}
				if check && len(bad) > 0 {
					return &exitError{exitNo, fmt.Errorf("these outboxes have a problem or refused rows: %s", joined(bad))}
				}
				return nil
			})
		},
	}
	o.flags(cmd.Flags())
	cmd.Flags().BoolVar(&check, "check", false, "exit with 1 if an outbox is not well, or has refused rows")
	return cmd
}

func outboxColumns(p *printer, now ops.Time) []column[ops.Outbox] {
	return []column[ops.Outbox]{
		{head: "NAME", text: func(b ops.Outbox) string { return b.Name }},
		{head: "STATE", text: func(b ops.Outbox) string { return string(b.State) }, role: func(b ops.Outbox) role {
			switch b.State {
			case ops.OutboxWell:
				return good
			case ops.OutboxBehind:
				return warning
			}
			return bad
		}},
		{head: "WAITING", text: func(b ops.Outbox) string { return strconv.Itoa(b.Waiting) }},
		{head: "OLDEST", text: func(b ops.Outbox) string {
			if b.Waiting == 0 {
				return ""
			}
			return span(b.Oldest.Duration())
		}},
		{head: "REFUSED", text: func(b ops.Outbox) string { return strconv.Itoa(b.Refused) }},
		{head: "RELAY", text: func(b ops.Outbox) string { return b.Relay }},
		{head: "SENT", text: func(b ops.Outbox) string { return strconv.FormatInt(b.Sent, 10) }},
		{head: "LAST SENT", text: func(b ops.Outbox) string { return when(p, now, b.LastSent) }},
		{head: "DATABASE", text: func(b ops.Outbox) string { return b.Database }},
		{head: "LAST ERROR", text: func(b ops.Outbox) string {
			if b.LastError == "" {
				return ""
			}
			return when(p, now, b.FailedAt) + ": " + b.LastError
		}},
	}
}
