package layering

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/joblock/toolkit"

// root stands for the package at the module's root, where others have their path below it.
const root = "toolkit"

// nested are the directories of the modules below the root that users import from.
var nested = []string{"joblock/otelobserver", "joblock/promobserver", "outbox", "server", "server/compat"}

// others are the modules without packages for users: the command, and those that are only built in a checkout.
var others = []string{"bench", "cmd/joblock", "examples/fencing", "examples/moving", "examples/observed", "examples/outbox", "examples/routers", "internal/published", "server/browser"}

// pkg is what go list says about a package, as far as it is needed here.
type pkg struct {
	ImportPath string
	Name       string
	Standard   bool
	Imports    []string // of the files that are no tests
	Module     *struct{ Path string }
}

// graph has every package of the modules that users import from, and all that those need.
type graph map[string]pkg

// load asks the go command, once for all tests. Packages that do not compile are taken along: what they import is known
// all the same.
func load(t *testing.T) graph {
	t.Helper()
	g, err := loaded()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return g
}

var loaded = sync.OnceValues(func() (graph, error) {
	g := make(graph)
	for _, dir := range append([]string{"."}, nested...) {
		if err := g.load(filepath.Join("..", "..", dir)); err != nil {
			return nil, err
		}
	}
	return g, nil
})

func (g graph) load(dir string) error {
	cmd := exec.Command("go", "list", "-e", "-deps",
		"-json=ImportPath,Name,Standard,Imports,Module", "./...")
	cmd.Dir = dir
	// One platform for all, so that the answer does not depend on the machine.
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, stderr.String())
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		g[p.ImportPath] = p
	}
}

// own returns our own packages, sorted, by path relative to the root.
func (g graph) own() []string {
	var out []string
	for path := range g {
		if within(path, module) {
			out = append(out, short(path))
		}
	}
	slices.Sort(out)
	return out
}

// path returns how the package at from comes to import, directly or not, a package for
// which bad says yes, as a chain of import paths; nil if it does not.
func (g graph) path(from string, bad func(string) bool) []string {
	type node struct {
		path string
		via  *node
	}
	seen := map[string]bool{from: true}
	for queue := []*node{{path: from}}; len(queue) > 0; queue = queue[1:] {
		at := queue[0]
		if at.path != from && bad(at.path) {
			var chain []string
			for ; at != nil; at = at.via {
				chain = append(chain, at.path)
			}
			slices.Reverse(chain)
			return chain
		}
		for _, next := range g[at.path].Imports {
			if !seen[next] {
				seen[next] = true
				queue = append(queue, &node{next, at})
			}
		}
	}
	return nil
}

// modules returns the modules of others that are compiled into a program that imports the
// package, sorted.
func (g graph) modules(path string) []string {
	var out []string
	g.path(path, func(dep string) bool {
		if m := g[dep].Module; m != nil && !within(m.Path, module) && !slices.Contains(out, m.Path) {
			out = append(out, m.Path)
		}
		return false
	})
	slices.Sort(out)
	return out
}

// within reports whether path is the package or module base, or below it.
func within(path, base string) bool {
	return path == base || strings.HasPrefix(path, base+"/")
}

// short returns a path of ours relative to the root, and the path of others as it is.
func short(path string) string {
	if path == module {
		return root
	}
	return strings.TrimPrefix(path, module+"/")
}

// full returns the import path of what short returns rel for.
func full(rel string) string {
	if rel == root {
		return module
	}
	return module + "/" + rel
}

func chainText(chain []string) string {
	names := make([]string, len(chain))
	for i, p := range chain {
		names[i] = short(p)
	}
	return strings.Join(names, " -> ")
}
