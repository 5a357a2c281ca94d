package layering

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The picture of the architecture is drawn from this text.
const picture = "../../docs/architecture.dot"

var (
	roomNode  = regexp.MustCompile(`(?m)^\s*"([\w/]+)" \[class=room`)
	roomArrow = regexp.MustCompile(`(?m)^\s*"([\w/]+)" -> "([\w/]+)"`)
	step      = regexp.MustCompile(`<B>([\w/]+\.(?:go|lua))</B><BR/>([\w.]+)?`)
)

// Every arrow between rooms is an import, and every import is an arrow, or a way of
// several arrows: the picture leaves out what follows from the rest.
func TestPictureShowsTheImports(t *testing.T) {
	text := readFile(t, picture)
	g := load(t)
	var rooms []string
	for _, m := range roomNode.FindAllStringSubmatch(text, -1) {
		rooms = append(rooms, m[1])
		if _, ok := g[full(m[1])]; !ok {
			t.Errorf("the picture shows %s, which is no package", m[1])
		}
	}
	if len(rooms) < 10 {
		t.Fatalf("found only %d rooms", len(rooms))
	}
	for _, pkg := range g.own() {
		if !strings.Contains(pkg, "internal") && !strings.HasPrefix(pkg, "examples") && !slices.Contains(rooms, pkg) {
			t.Errorf("the picture does not show %s", pkg)
		}
	}
	// A room's internal packages are parts of it.
	imports := func(room, other string) bool {
		return slices.ContainsFunc(g.own(), func(pkg string) bool {
			return (pkg == room || within(pkg, room+"/internal")) && slices.Contains(g[full(pkg)].Imports, full(other))
		})
	}
	drawn := map[string][]string{}
	for _, m := range roomArrow.FindAllStringSubmatch(text, -1) {
		if !imports(m[1], m[2]) {
			t.Errorf("an arrow goes from %s to %s, which it does not import", m[1], m[2])
		}
		drawn[m[1]] = append(drawn[m[1]], m[2])
	}
	for _, from := range rooms {
		for _, to := range rooms {
			if imports(from, to) && !reaches(drawn, from, to) {
				t.Errorf("%s imports %s, and no arrow goes there", from, to)
			}
		}
	}
}

func reaches(arrows map[string][]string, from, to string) bool {
	return slices.ContainsFunc(arrows[from], func(next string) bool { return next == to || reaches(arrows, next, to) })
}

// Every step of a way is a function, or a file, that exists.
func TestPictureNamesWhatExists(t *testing.T) {
	steps := step.FindAllStringSubmatch(readFile(t, picture), -1)
	if len(steps) < 10 {
		t.Fatalf("found only %d steps", len(steps))
	}
	for _, m := range steps {
		name := filepath.Join("..", "..", m[1])
		if m[2] == "" || !strings.HasSuffix(name, ".go") {
			if _, err := os.Stat(name); err != nil {
				t.Error(err)
			}
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		if !declares(file, m[2]) {
			t.Errorf("%s does not declare %s", m[1], m[2])
		}
	}
}

// declares reports whether the file has a function, a method or a type of that name;
// a method's is "Type.Method".
func declares(file *ast.File, name string) bool {
	return slices.ContainsFunc(file.Decls, func(d ast.Decl) bool {
		switch d := d.(type) {
		case *ast.FuncDecl:
			own := d.Name.Name
			if d.Recv != nil {
				typ := d.Recv.List[0].Type
				if star, ok := typ.(*ast.StarExpr); ok {
					typ = star.X
				}
				if id, ok := typ.(*ast.Ident); ok {
					own = id.Name + "." + own
				}
			}
			return own == name
		case *ast.GenDecl:
			return slices.ContainsFunc(d.Specs, func(s ast.Spec) bool {
				typ, ok := s.(*ast.TypeSpec)
				return ok && typ.Name.Name == name
			})
		}
		return false
	})
}

// The picture is of the text as it is now; make picture draws it.
func TestPictureIsOfTheText(t *testing.T) {
	mark := fmt.Sprintf("drawn from a text with SHA-256 %x", sha256.Sum256([]byte(readFile(t, picture))))
	if svg := readFile(t, strings.TrimSuffix(picture, ".dot")+".svg"); !strings.Contains(svg, mark) {
		t.Error("docs/architecture.svg is not of docs/architecture.dot as it stands: run make picture")
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
