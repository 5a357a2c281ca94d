package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output is what the example has written so far.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start runs the example until the end of the test, and returns where the pages and the application are.
func start(t *testing.T, cfg config) (pages, app string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	out, ended := new(output), make(chan error, 1)
	cfg.app, cfg.pages = "127.0.0.1:0", "127.0.0.1:0"
	go func() { ended <- run(ctx, out, cfg) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the example did not end in order: %v", err)
		}
		if !strings.Contains(out.String(), "ending in order") {
			t.Errorf("it wrote %q", out)
		}
	})
	urls := regexp.MustCompile(`http://[\d.:]+`)
	until(t, "the addresses are printed", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the example ended with %v", err)
		default:
		}
		return strings.Contains(out.String(), "Ctrl-C ends it.")
	})
	found := urls.FindAllString(out.String(), -1)
	return found[0], found[2]
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for over := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(over) {
			t.Fatalf("gave up waiting: %s", what)
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", url, resp.Status, err, text)
	}
	return string(text)
}

// text returns what a page shows: a key may be broken between its parts.
func text(t *testing.T, url string) string {
	t.Helper()
	return regexp.MustCompile(`<[^>]*>`).ReplaceAllString(get(t, url), "")
}

// All that the example promises is there soon: every address it prints, a job's lock on the pages, the metrics of processes
// and of the cluster, and a request with its job as one trace. Then it ends in order.
func TestEverythingIsObserved(t *testing.T) {
	t.Parallel()
	pages, app := start(t, config{work: 400 * time.Millisecond})
	until(t, "the pages show a job's lock and the cron jobs", func() bool {
		return strings.Contains(text(t, pages+"/locks"), "export:acct-") && strings.Contains(text(t, pages+"/cron"), "rollup")
	})
	until(t, "the journal has events", func() bool { return strings.Contains(text(t, pages+"/events"), "export:acct-") })
	for name, at := range map[string]string{
		`joblock_events_total{error_type="",joblock_event="parked",joblock_key_group="export"} [1-9]`:    app,
		`joblock_events_total{error_type="",joblock_event="resumed",joblock_key_group="webhooks"} [1-9]`: app,
		`joblock_keeper_working 1`: pages, `joblock_keeper_standby 1`: pages, `joblock_cron_nodes{scope="shop"} 2`: pages,
		`joblock_cron_runs_total{job="rollup",result="done",scope="shop"}`: pages,
	} {
		series := regexp.MustCompile(`(?m)^` + strings.NewReplacer("{", `\{`, "}", `\}`).Replace(name))
		until(t, "a scrape has "+name, func() bool { return series.MatchString(get(t, at+"/metrics")) })
	}
	one := regexp.MustCompile(`(?m)^POST /exports/acct-\d .*\n(  +.*\n)*?    joblock run export .*\n(      .*\n)*?      read the bank's statements`)
	until(t, "a request and its job are one trace", func() bool { return one.MatchString(get(t, app+"/traces")) })
}

// What cannot start says so, and leaves nothing.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	_, app := start(t, config{work: 400 * time.Millisecond})
	u, err := url.Parse(app)
	if err != nil {
		t.Fatal(err)
	}
	var out output
	if err := run(t.Context(), &out, config{app: "127.0.0.1:0", pages: u.Host}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v, want that the address is in use", err)
	}
}

// With JOBLOCK_PICTURES=DIR the test makes the picture of README.md, in a real browser.
func TestPicture(t *testing.T) {
	dir := os.Getenv("JOBLOCK_PICTURES")
	if dir == "" {
		t.Skip("JOBLOCK_PICTURES is not set")
	}
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := start(t, config{})
	until(t, "there is something to see", func() bool {
		locks := text(t, pages+"/locks")
		return strings.Contains(locks, "export:acct-") && strings.Contains(locks, "webhooks:shop-") && strings.Contains(locks, "parked")
	})
	file := filepath.Join(dir, "observed.png")
	args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--lang=en-GB", "--window-size=1180,560",
		"--timeout=8000", "--user-data-dir=" + t.TempDir(), "--screenshot=" + file, pages + "/locks"}
	out, err := exec.CommandContext(t.Context(), chromium, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if info, err := os.Stat(file); err != nil || info.Size() < 10_000 || info.Size() > 200_000 {
		t.Errorf("the picture is %+v, %v", info, err)
	}
}
