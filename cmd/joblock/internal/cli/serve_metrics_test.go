//go:build linux

package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/metric"
	"github.com/joblock/toolkit/internal/monitoring"
	"github.com/joblock/toolkit/internal/redistest"
)

var metricsAddress = regexp.MustCompile(`msg="serve: serving metrics" address=(\S+)`)

// metricsAt returns where --metrics-listen listens.
func (p *serverProcess) metricsAt() (addr string) {
	p.Helper()
	p.until("the metrics are served", func() bool {
		if m := metricsAddress.FindStringSubmatch(p.stderr.String()); m != nil {
			addr = m[1]
		}
		return addr != ""
	})
	return addr
}

// get sends a request to any address, and returns the status and the text of the answer.
func (p *serverProcess) get(method, url, token, host string) (int, string) {
	p.Helper()
	r, err := http.NewRequestWithContext(p.Context(), method, url, nil)
	if err != nil {
		p.Fatal(err)
	}
	r.Host = host
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := p.client.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		p.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// Metrics are for callers that may read all keys, and at an address of their own for all who can reach it: and there is
// nothing else.
func TestWhoGetsTheMetrics(t *testing.T) {
	t.Parallel()
	s := newStage(t, redistest.Start(t))
	file := filepath.Join(t.TempDir(), "accounts.json")
	reader, some := account(t, file, "reader", "read"), account(t, file, "some", "read", "--prefixes", "a:")
	locker := account(t, file, "locker", "lock")
	p := s.serve("--accounts", file, "--metrics-listen", "127.0.0.1:0", "--host", "locks.internal", "--host", "127.0.0.1")
	own, alone := p.url, "http://"+p.metricsAt()
	if p.token = locker; true {
		p.wants(200, "POST", "/v1/acquire", object{"key": key})
	}
	for _, row := range []struct {
		method, url, token, host string
		status                   int
	}{
		{"GET", own + "/metrics", "", "locks.internal", 401},
		{"GET", own + "/metrics", reader + "x", "locks.internal", 401},
		{"GET", own + "/metrics", some, "locks.internal", 403},
		{"GET", own + "/metrics", locker, "locks.internal", 403},
		{"GET", own + "/metrics", reader, "locks.internal", 200},
		{"GET", own + "/metrics", reader, "evil.example", 421},
		{"GET", alone + "/metrics", "", "", 200},
		{"GET", alone + "/metrics", "", "localhost:1", 200},
		{"GET", alone + "/metrics", "", "[::1]", 200},
		{"GET", alone + "/metrics", "", "LOCKS.internal:99", 200},
		{"GET", alone + "/metrics", "", "evil.example", 421},
		{"GET", alone + "/metrics", "", "127.0.0.1.evil.example:80", 421},
		{"HEAD", alone + "/metrics", "", "", 200},
		{"POST", alone + "/metrics", "", "", 405},
		{"GET", alone + "/", "", "", 404},
		{"GET", alone + "/v1/me", reader, "", 404},
		{"GET", alone + "/metrics/", "", "", 404},
		{"GET", alone + "/x/../metrics", "", "", 404},
	} {
		status, text := p.get(row.method, row.url, row.token, row.host)
		if status != row.status {
			t.Errorf("%s %s as %q: %d, want %d", row.method, row.url, row.host, status, row.status)
		}
		if (status == 200 && row.method == "GET") != strings.Contains(text, "\njoblock_http_requests_total{") {
			t.Errorf("%s %s: %d %.200s", row.method, row.url, status, text)
		}
		for _, secret := range []string{reader, some, locker, key} {
			if strings.Contains(text, secret) {
				t.Errorf("%s has %q", row.url, secret)
			}
		}
	}
	open := newStage(t, s.redis).serve("--insecure", "--metrics-listen", "0.0.0.0:0")
	port := open.metricsAt()
	if status, _ := open.get("GET", "http://127.0.0.1"+port[strings.LastIndexByte(port, ':'):]+"/metrics", "", "pod-7.cluster.internal"); status != 200 {
		t.Errorf("with --insecure, under the name of a pod: %d", status)
	}
}

// What happens to the locks of the clients gets into the journal, unless that is switched off.
func TestServeWritesTheJournal(t *testing.T) {
	t.Parallel()
	s := newStage(t, redistest.Start(t))
	for _, flag := range []string{"--journal=false", "--journal"} {
		p := s.serve(flag)
		lock := p.wants(200, "POST", "/v1/acquire", object{"key": key, "ttl_ms": 60_000})
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/force-release", strings.NewReader(`{"key":"`+key+`","reason":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("If-Match", fmt.Sprintf(`"%.0f"`, lock["fence"]))
		res, err := p.client.Do(r)
		if err != nil || res.StatusCode != 200 {
			t.Fatalf("%v %v", res, err)
		}
		_ = res.Body.Close()
		forced := func() bool {
			o := p.wants(200, "GET", "/v1/events?kind=forced", nil)
			items, _ := o["items"].([]any)
			return len(items) == 1 && items[0].(object)["key"] == key
		}
		if flag == "--journal" {
			s.until("the journal has the event", forced)
		} else if forced() {
			t.Error("without the journal there is an event in it")
		}
		_, text := p.get("GET", p.url+"/metrics", "", "")
		if strings.Contains(text, "\njoblock_journal_dropped_total 0") != (flag == "--journal") {
			t.Errorf("%s: joblock_journal_dropped_total", flag)
		}
	}
}

// selector finds a metric of the toolkit with its matchers in a query.
var selector = regexp.MustCompile(`\bjoblock_\w+(?:\{[^}]*\})?`)

// expressions returns the queries of the dashboard and of the alerts.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	var dashboard any
	if err := json.Unmarshal(monitoring.Dashboard, &dashboard); err != nil {
		t.Fatal(err)
	}
	replace := strings.NewReplacer("$__rate_interval", "1m", "$group", ".*", "$scope", ".*")
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				if text, ok := inner.(string); ok && name == "expr" {
					all = append(all, replace.Replace(text))
				}
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(dashboard)
	for _, part := range strings.Split(string(monitoring.Alerts), "- alert: ")[1:] {
		_, expr, _ := strings.Cut(part, "expr: ")
		expr, _, _ = strings.Cut(expr, "\n        for: ")
		all = append(all, strings.Trim(strings.TrimPrefix(expr, "|"), "'"))
	}
	if len(all) < 60 {
		t.Fatalf("only %d queries", len(all))
	}
	return all
}

// notYet are the series that come only with what does not happen in the demo within seconds.
var notYet = map[string]string{
	`joblock_renewal_late_seconds_bucket`:       "no renewal was late",
	`joblock_cron_overdue_timestamp_seconds`:    "no tick is overdue",
	`joblock_cron_overlaps_timestamp_seconds`:   "no tick overlaps",
	`joblock_cron_disagree_timestamp_seconds`:   "the nodes agree",
	`joblock_keeper_freed_total`:                "the keeper waits for a minute first",
	`joblock_keeper_asked_timestamp_seconds`:    "the keeper reports it after its first round",
	`joblock_outbox_waiting`:                    "the demo has no outbox; so for those below, which the tests of server/metrics have",
	`joblock_outbox_refused`:                    "as above",
	`joblock_outbox_oldest_seconds`:             "as above",
	`joblock_outbox_sent_total`:                 "as above",
	`joblock_outbox_reported_timestamp_seconds`: "as above",
	`joblock_check_findings{severity="fault"}`:  "the doctor finds no fault",
	`joblock_http_requests_total{code=~"5.."}`:  "no request has failed",
}

// A Prometheus scrapes a server of the demo. Every query of the dashboard and of the alerts is one for it, and finds the
// series that it names.
func TestEveryQueryFindsItsSeries(t *testing.T) {
	t.Parallel()
	bin, err := exec.LookPath("prometheus")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("prometheus is missing: .ci/setup.sh installs it")
		}
		t.Skip("prometheus is missing; it is in Debian's package prometheus")
	}
	s := newStage(t, redistest.Start(t))
	p := s.serve("--demo", "--metrics-listen", "127.0.0.1:0", "--metrics-groups", "first-part")
	s.until("a keeper works", func() bool {
		_, o := p.ask("GET", "/v1/keeper", nil)
		places, _ := o["places"].([]any)
		return len(places) > 0 && places[0].(object)["works"] == true
	})
	// What the server's own process counts.
	p.wants(200, "POST", "/v1/acquire", object{"key": "a:1", "ttl_ms": 60_000})
	p.ask("POST", "/v1/acquire", object{"key": "a:1", "wait_ms": 100}) // is refused, or on a busy machine not answered
	lock := p.wants(200, "POST", "/v1/acquire", object{"key": "a:2"})
	p.wants(200, "POST", "/v1/release", object{"token": lock["token"]})
	triggered := false
	s.until("the newsletter is paused and the beat has run", func() bool {
		_, paused := p.ask("GET", "/v1/cron/newsletter", nil)
		status, o := p.ask("GET", "/v1/cron/beat", nil)
		latest, _ := o["latest"].(object)
		if status == 200 && latest == nil && !triggered {
			status, _ := p.ask("POST", "/v1/cron/beat/trigger", object{"reason": "to see it"})
			triggered = status == 200
		}
		return paused["paused"] == true && latest["state"] == "done"
	})

	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("alerts.yml", string(monitoring.Alerts))
	write("prometheus.yml", `
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [alerts.yml]
scrape_configs: [{job_name: joblock, static_configs: [{targets: ["`+p.metricsAt()+`"]}]}]
`)
	cmd := exec.Command(bin, "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	prom := s.launch("prometheus", cmd)
	listening := regexp.MustCompile(`"?Listening on"? address=(127\.0\.0\.1:[1-9][0-9]*)`)
	var at string
	s.until("Prometheus listens", func() bool {
		if m := listening.FindStringSubmatch(prom.stderr.String()); m != nil {
			at = "http://" + m[1]
		}
		return at != ""
	})
	query := func(path string, values url.Values) (result struct {
		Status, Error string
		Data          json.RawMessage
	}) {
		_, text := p.get("GET", at+"/api/v1/"+path+"?"+values.Encode(), "", "")
		_ = json.Unmarshal([]byte(text), &result) // at first it may not be ready
		return result
	}
	known := make(map[string]bool)
	for _, m := range slices.Concat(metric.Process, metric.Cluster, metric.Server) {
		for _, suffix := range []string{"", "_bucket"} {
			known[m.Prometheus()+suffix] = true
		}
	}
	missing := make(map[string]bool)
	all := expressions(t)
	for _, expr := range all {
		for _, text := range selector.FindAllString(expr, -1) {
			name, _, _ := strings.Cut(text, "{")
			if _, later := notYet[text]; known[name] && !later && notYet[name] == "" {
				missing[text] = true
			}
		}
	}
	if len(missing) < 40 {
		t.Fatalf("only %d selectors", len(missing))
	}
	s.until("Prometheus has scraped", func() bool {
		return strings.Contains(string(query("series", url.Values{"match[]": {"joblock_build_info"}}).Data), "joblock_build_info")
	})
	defer func() {
		for text := range missing {
			t.Errorf("nothing has the series %s", text)
		}
	}()
	s.until("all series are there", func() bool {
		for text := range missing {
			if r := query("series", url.Values{"match[]": {text}}); r.Status == "success" && len(r.Data) > 2 {
				delete(missing, text)
			}
		}
		return len(missing) == 0
	})
	for _, expr := range all {
		if r := query("query", url.Values{"query": {expr}}); r.Status != "success" {
			t.Errorf("%s: %s", expr, r.Error)
		}
	}
	if rules := string(query("rules", nil).Data); strings.Contains(rules, `"health":"err"`) || strings.Count(rules, `"name":"Joblock`) < 20 {
		t.Errorf("the rules: %s", rules)
	}
	p.signal(15)
	p.exits(0)
}
