package layering

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// mostExported bounds what a reader of package joblock has to take in: its exported
// functions, methods, types, constants and variables. What writers of stores or keepers
// need, or the toolkit alone, has packages of its own; see joblock/driver, joblock/jobs
// and internal/core.
const mostExported = 101

func TestPackageJoblockStaysSmall(t *testing.T) {
	names := exported(t, filepath.Join("..", "..", "joblock"))
	if len(names) > mostExported {
		t.Errorf("joblock exports %d identifiers, at most %d are wanted:\n%s", len(names), mostExported, strings.Join(names, "\n"))
	}
	if len(names) < mostExported/2 {
		t.Errorf("counted only %d exported identifiers", len(names))
	}
}

// exported returns what the package in dir exports.
func exported(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") || strings.HasSuffix(f.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, f.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			names = append(names, declared(d)...)
		}
	}
	return names
}

func declared(d ast.Decl) (names []string) {
	note := func(prefix string, id *ast.Ident) {
		if id.IsExported() {
			names = append(names, prefix+id.Name)
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv == nil {
			note("", d.Name)
		} else if recv := receiver(d.Recv.List[0].Type); recv.IsExported() {
			note(recv.Name+".", d.Name)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				note("", s.Name)
			case *ast.ValueSpec:
				for _, id := range s.Names {
					note("", id)
				}
			}
		}
	}
	return names
}

// receiver returns the name of a method's type.
func receiver(e ast.Expr) *ast.Ident {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	}
	return e.(*ast.Ident)
}
