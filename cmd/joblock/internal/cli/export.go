package cli

import (
	"github.com/spf13/cobra"

	"github.com/joblock/toolkit/internal/monitoring"
)

// exports are the embedded files, by name.
var exports = map[string][]byte{"grafana": monitoring.Dashboard, "alerts": monitoring.Alerts}

func newExport() *cobra.Command {
	return &cobra.Command{
		Use:   "export FILE",
		Short: "print the Grafana dashboard, or the alerts for Prometheus",
		Long: `Export prints a file:

  grafana  a dashboard for Grafana 10 or later, as JSON, to be imported
  alerts   alerts for Prometheus 2.42 or later, as YAML, for rule_files

Both are about the metrics of processes and lock servers, which docs/monitoring.md describes. Export does not connect
to Redis.

Exit codes:
  0   the file was printed
  64  wrong usage`,
		Example: `  joblock export grafana > joblock.json
  joblock export alerts > joblock-alerts.yml`,
		Args:      exactly("FILE"),
		ValidArgs: []string{"grafana", "alerts"},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, ok := exports[args[0]]
			if !ok {
				return usage("FILE is %q, must be grafana or alerts", args[0])
			}
			_, err := cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
