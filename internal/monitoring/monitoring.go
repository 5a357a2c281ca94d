// Package monitoring has the Grafana dashboard and the Prometheus alerts for "joblock export". docs/monitoring.md
// describes both.
package monitoring

import _ "embed"

// Dashboard is a dashboard for Grafana 10 or later, as JSON: import the file.
//
//go:embed grafana.json
var Dashboard []byte

// Alerts are rules for Prometheus 2.42 or later, as YAML.
//
//go:embed alerts.yml
var Alerts []byte
