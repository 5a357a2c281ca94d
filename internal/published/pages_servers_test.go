//go:build servers

package published

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// try is a command of a page, in an empty module, and the program that the page gives with it.
type try struct {
	page, command string

	// program is a main package. A line "page N" stands for the Go block N of the page, counted from one. Without a
	// program the command installs the command joblock.
	program string
}

const install = "go install github.com/joblock/toolkit/cmd/joblock@latest"

var tries = []try{
	{"docs/deploy.md", install, ""},
	{"docs/on-call.md", install, ""},
	{"docs/scripts.md", install, ""},
	{"docs/start.md", install, ""},
	{"docs/start.md", "go get github.com/joblock/toolkit", "page 1"},
	{"docs/locks.md", "go get github.com/joblock/toolkit/joblock/redisstore", "page 1"},
	{"README.md", "go get github.com/joblock/toolkit", `package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	redisOpt := asynq.RedisClientOpt{}
	tasks := asynq.NewServeMux()
	ctx, id, task := context.Background(), "7", asynq.NewTask("invoice", nil)
page 1
page 2
	_ = func(w http.ResponseWriter, r *http.Request) {
page 3
	}
}
`},
	{"docs/outbox.md", "go get github.com/joblock/toolkit github.com/joblock/toolkit/outbox/pgxbox github.com/jackc/pgx/v5/pgxpool", `package main

import (
	"context"
	"encoding/json"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/outbox"
	"github.com/joblock/toolkit/outbox/pgxbox"
)

// Shop sells.
type Shop struct {
	Pool *pgxpool.Pool
	Box  *outbox.Outbox
}

// Ship is the payload of a job.
type Ship struct{ Order int64 }

page 1

func main() {}
`},
	{"docs/monitoring.md", "go get github.com/joblock/toolkit github.com/joblock/toolkit/joblock/promobserver", `package main

import (
	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/joblock/toolkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/promobserver"
)

func main() {
	o, err := promobserver.New(prometheus.DefaultRegisterer, nil)
	if err != nil {
		panic(err)
	}
	if _, err := toolkit.New(asynq.RedisClientOpt{}, &toolkit.Config{Locks: &joblock.Config{Observer: o}}); err != nil {
		panic(err)
	}
}
`},
	{"docs/monitoring.md", "go get github.com/joblock/toolkit/server/metrics github.com/joblock/toolkit/joblock/redisstore", `package main

import (
	"context"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/scheduler"
	"github.com/joblock/toolkit/server/metrics"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func rollup(context.Context) error { return nil }

func main() {
	mux, ctx := http.NewServeMux(), context.Background()
	store, err := redisstore.New(redis.NewClient(&redis.Options{}), nil)
	check(err)
	locks, err := joblock.New(store, nil)
	check(err)
page 1
page 2
}
`},
	{"docs/operate.md", "go get github.com/joblock/toolkit/joblock/otelobserver github.com/joblock/toolkit/joblock/redisstore", `package main

import (
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/joblock/otelobserver"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/joblock/slogobserver"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	rdb, logger := redis.NewClient(&redis.Options{}), slog.Default()
	_, _ = otelobserver.New(nil, nil)
	_ = event.Observers
page 2
	_ = locks
}
`},
}

var (
	goCommand = regexp.MustCompile(`go (?:get|install)(?: github\.com/joblock/toolkit[\w./@-]*)+(?: github\.com/jackc/[\w./@-]+)?`)
	goBlock   = regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	pageLine  = regexp.MustCompile(`(?m)^page \d+$`)
)

// What the pages for users say about getting the modules is enough, word for word, for what the pages show next.
func TestPagesInAnEmptyModule(t *testing.T) {
	proxy := publish(t)
	env := goEnv(t, proxy)
	pages := readPages(t)
	for page, text := range pages {
		for _, command := range goCommand.FindAllString(text, -1) {
			if !slices.ContainsFunc(tries, func(y try) bool { return y.page == page && y.command == command }) {
				t.Errorf("%s says %q, which is not tried", page, command)
			}
		}
	}
	installed := false
	for _, y := range tries {
		t.Run(y.page, func(t *testing.T) {
			if !slices.Contains(goCommand.FindAllString(pages[y.page], -1), y.command) {
				t.Fatalf("%s does not say %q", y.page, y.command)
			}
			dir := t.TempDir()
			if y.program != "" {
				run(t, dir, env, "go mod init example.org/mine")
				run(t, dir, env, y.command)
				write(t, filepath.Join(dir, "main.go"), fill(t, y.program, pages[y.page]))
				run(t, dir, env, "go build -o /dev/null .")
				return
			}
			if installed {
				return // the same command on another page
			}
			installed = true
			run(t, dir, append(env, "GOBIN="+dir), y.command)
			said := run(t, dir, env, filepath.Join(dir, "joblock")+" version")
			if !strings.HasPrefix(said, "joblock "+version(t)+" ") {
				t.Errorf("the installed command says that it is %q, want version %s", said, version(t))
			}
		})
	}
}

// fill puts the Go blocks of a page into a program.
func fill(t *testing.T, program, page string) string {
	t.Helper()
	blocks := goBlock.FindAllStringSubmatch(page, -1)
	return pageLine.ReplaceAllStringFunc(program, func(line string) string {
		var n int
		if _, err := fmt.Sscanf(line, "page %d", &n); err != nil || n < 1 || n > len(blocks) {
			t.Fatalf("%q: the page has %d Go blocks", line, len(blocks))
		}
		return blocks[n-1][1]
	})
}

// readPages returns the text of each page for users by its name.
func readPages(t *testing.T) map[string]string {
	t.Helper()
	pages := make(map[string]string)
	for _, pattern := range []string{"README.md", "docs/*.md"} {
		names, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(filepath.Join(root, name))
			if err != nil {
				t.Fatal(err)
			}
			pages[name] = string(text)
		}
	}
	if len(pages) < 10 {
		t.Fatalf("read only %d pages", len(pages))
	}
	return pages
}

// goEnv returns the environment of a user whose module proxy has our modules, and of others what this machine has. The
// module cache is a new one, because the versions in the proxy are of this checkout only.
func goEnv(t *testing.T, proxy string) []string {
	t.Helper()
	var known []string
	for _, name := range []string{"GOMODCACHE", "GOPROXY"} {
		out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
		if err != nil {
			t.Fatalf("go env %s: %v", name, err)
		}
		known = append(known, strings.TrimSpace(string(out)))
	}
	cache := filepath.Join(t.TempDir(), "mod")
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly -modcacherw -trimpath -buildvcs=false", "GOSUMDB=off",
		"GOMODCACHE="+cache, "GOPROXY=file://"+proxy+",file://"+filepath.Join(known[0], "cache", "download")+","+known[1])
}

// run runs a command of words without quotes and returns what it prints.
func run(t *testing.T, dir string, env []string, command string) string {
	t.Helper()
	words := strings.Fields(command)
	cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
