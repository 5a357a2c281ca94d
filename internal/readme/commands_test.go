package readme

import (
	"encoding/json"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/testkit"
)

// ran are the commands that a test runs, as they stand or with other names, by their page ("": any) and how they begin.
var ran = []struct{ page, begins, test string }{
	{"", "go get github.com/joblock/toolkit", "published.TestPagesInAnEmptyModule"},
	{"", "go install github.com/joblock/toolkit/cmd/joblock@latest", "published.TestPagesInAnEmptyModule"},
	{"README.md", "go run ./examples/quickstart", "examples/quickstart.TestStory"},
	{"README.md", "go run -C examples/observed .", "examples/observed.TestEverythingIsObserved"},
	{"README.md", "joblock explain", "cli.TestOnCall"},
	{"bench/README.md", "go test", "bench.TestBenchmarksRun"},
	{"deploy/Dockerfile", "joblock", "cli.TestRunInAContainer"},
	{"deploy/systemd/joblock-server.service", "joblock serve", "cli.TestServe"},
	{"deploy/systemd/nightly-report.service", "joblock run", "cli.TestRun"},
	{"docs/compat.md", "terraform", "compat.TestTerraformClient"},
	{"docs/cron.md", "go run ./examples/scheduler", "examples/scheduler.TestStory"},
	{"docs/deploy.md", "joblock run --no-wait", "cli.TestRun"},
	{"docs/deploy.md", "joblock run nightly --", "cli.TestRunInAContainer"},
	{"docs/deploy.md", "joblock serve", "cli.TestServe"},
	{"docs/monitoring.md", "joblock serve", "cli.TestWhoGetsTheMetrics"},
	{"docs/monitoring.md", "curl", "cli.TestWhoGetsTheMetrics"},
	{"docs/monitoring.md", "joblock export", "cli.TestExport"},
	{"docs/monitoring.md", "promtool test rules", "monitoring.TestPromtool"},
	{"docs/on-call.md", "joblock", "cli.TestOnCall"},
	{"docs/operate.md", "go run ./examples/holders", "examples/holders.TestEveryLockIsListed"},
	{"docs/pausing.md", "joblock", "cli.TestPages"},
	{"docs/scripts.md", "", "cli.TestPages"},
	{"docs/server.md", "", "cli.TestServerPage"},
	{"docs/start.md", "go mod init", "published.TestPagesInAnEmptyModule"},
	{"docs/start.md", "go run .", "examples/start.TestProgram"},
	{"docs/start.md", "curl", "examples/start.TestProgram"},
	{"docs/start.md", "joblock explain", "cli.TestCommandsOfThePages"},
}

// neverRan are the commands that no test runs, by how they begin, with the reason. The list may only become shorter.
var neverRan = map[string]string{
	"docker":           "needs a daemon; cli.TestRunInAContainer runs the command as the first process of a container",
	"git clone":        "needs the repository that a release makes public",
	"helm install":     "needs a cluster; make chart renders the chart with the flags of the page",
	"kubectl":          "needs a cluster",
	"make -C .. bench": "half an hour on a quiet machine; bench.TestBenchmarksRun runs each benchmark once",
	"make image":       "needs docker",
	"redis-cli":        "a command of Redis",
	"systemctl":        "needs systemd as the first process; TestUnitsAreSandboxed looks at the units",
}

// atHand are commands of every shell.
var atHand = strings.Fields("cd echo exit export mkdir printf rm test trap")

// What the pages tell people to run is there to be run, and a test runs it. A mention of a command of joblock, of make or
// of go need not be run: the parser of joblock is asked by TestCommandsOfThePages of cmd/joblock.
func TestCommandsExist(t *testing.T) {
	tests, makefile := readTests(t), read(t, "Makefile")
	used := make(map[string]bool)
	for _, c := range testkit.Commands(t, root) {
		line := strings.Join(c.Words, " ")
		switch c.Words[0] {
		case "make":
			for _, word := range c.Words[1:] {
				if regexp.MustCompile(`^[a-z-]{2,}$`).MatchString(word) && !strings.Contains(makefile, "\n"+word+":") {
					t.Errorf("%s: there is no target %s", c, word)
				}
			}
		case "go":
			if why := wrong(t, c); why != "" {
				t.Errorf("%s: %s", c, why)
			}
		}
		if slices.Contains(atHand, c.Words[0]) || !c.Whole && slices.Contains([]string{"joblock", "make", "go"}, c.Words[0]) {
			continue
		}
		found := false
		for _, row := range ran {
			if (row.page == "" || row.page == c.Page) && strings.HasPrefix(line, row.begins) {
				found, used[row.page+" "+row.begins] = true, true
			}
		}
		for begins := range neverRan {
			if !found && strings.HasPrefix(line, begins) {
				found, used[begins] = true, true
			}
		}
		if !found {
			t.Errorf("%s: no test is known to run it", c)
		}
	}
	for _, row := range ran {
		if why := tests.missing(row.test); why != "" {
			t.Errorf("%s: %s", row.test, why)
		}
		if !used[row.page+" "+row.begins] {
			t.Errorf("no page has %q %q any more", row.page, row.begins)
		}
	}
	for begins := range neverRan {
		if !used[begins] {
			t.Errorf("no page has %q any more, or a test runs it", begins)
		}
	}
	if len(neverRan) > 8 {
		t.Errorf("%d commands are run by no test, at most 8 are meant", len(neverRan))
	}
}

// wrong says what a command of go names that is not there.
func wrong(t *testing.T, c testkit.Command) string {
	t.Helper()
	dir := "."
	if strings.HasPrefix(c.Page, "bench/") {
		dir = "bench"
	}
	benchmark := ""
	for i, word := range c.Words[1:] {
		word, _, _ = strings.Cut(word, "@")
		of, ours := strings.CutPrefix(word, "github.com/joblock/toolkit")
		switch before := c.Words[i]; {
		case before == "-bench" && word != ".":
			benchmark = word
			continue
		case before == "-C", strings.HasPrefix(word, "./") && word != "./...":
			dir = path.Join(dir, word)
		case ours:
			dir = "." + strings.TrimSuffix(of, "/...")
		default:
			continue
		}
		if files, err := filepath.Glob(root + dir + "/*.go"); err != nil || len(files) == 0 {
			return "no Go in " + dir
		}
	}
	if benchmark == "" {
		return ""
	}
	files, err := filepath.Glob(root + dir + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err != nil {
			t.Fatal(err)
		} else if strings.Contains(string(text), "\nfunc Benchmark"+benchmark+"(") {
			return ""
		}
	}
	return "no such benchmark in " + dir
}

// The routes of the lock server that the pages name are in its document. Paths that no client should send are those of attacks.
func TestRoutesExist(t *testing.T) {
	var document struct {
		Paths map[string]map[string]any
	}
	if err := json.Unmarshal([]byte(read(t, "server/openapi.json")), &document); err != nil {
		t.Fatal(err)
	}
	parameter := regexp.MustCompile(`\{\w+\}`)
	routes := make(map[string]bool)
	for name, methods := range document.Paths {
		name = parameter.ReplaceAllString(name, "{}")
		routes[" "+name] = true
		for method := range methods {
			routes[strings.ToUpper(method)+" "+name] = true
		}
	}
	found := 0
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile(`(?:\b(GET|POST) |["`+"`"+`R])(/v1/[\w/{}.%-]*[\w}])`).FindAllStringSubmatch(read(t, page), -1) {
			found++
			if strings.Contains(m[2], "..") || strings.Contains(m[2], "//") {
				continue
			}
			if !routes[m[1]+" "+parameter.ReplaceAllString(m[2], "{}")] {
				t.Errorf("%s names %s, which the lock server does not have", page, strings.TrimSpace(m[1]+" "+m[2]))
			}
		}
	}
	if found < 70 {
		t.Errorf("found only %d routes", found)
	}
}
