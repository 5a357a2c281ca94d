package client

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/ops"
)

// Callers can name each type that a call takes or returns, or that a field of such a type has, and each of its constants.
func TestCallersCanNameAll(t *testing.T) {
	t.Parallel()
	const hidden = "../../internal/ops"
	named := aliases(t, ".") // of package ops
	reached := make(map[string]bool)
	seen := make(map[reflect.Type]bool)
	var walk func(reflect.Type)
	walk = func(x reflect.Type) {
		if seen[x] {
			return
		}
		seen[x] = true
		switch path := x.PkgPath(); {
		case path == reflect.TypeFor[ops.Lock]().PkgPath():
			reached[x.Name()] = true
			if !named[x.Name()] {
				t.Errorf("package client has no name for ops.%s", x.Name())
			}
		case strings.Contains(path, "/internal/"):
			t.Errorf("package client shows %s, which is of package %s", x, path)
		case path != "" && path != "iter" && !strings.HasPrefix(path, "github.com/joblock/toolkit/"):
			return
		}
		switch x.Kind() {
		case reflect.Struct:
			for i := range x.NumField() {
				if f := x.Field(i); f.IsExported() {
					walk(f.Type)
				}
			}
		case reflect.Map:
			walk(x.Key())
			walk(x.Elem())
		case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Chan:
			walk(x.Elem())
		case reflect.Func:
			for i := range x.NumIn() {
				walk(x.In(i))
			}
			for i := range x.NumOut() {
				walk(x.Out(i))
			}
		}
		if x.Name() == "" || x.Kind() == reflect.Interface {
			return
		}
		for p, i := reflect.PointerTo(x), 0; i < p.NumMethod(); i++ {
			walk(p.Method(i).Type)
		}
	}
	walk(reflect.TypeFor[Client]())
	walk(reflect.TypeFor[Problem]())
	if !reached["CronPause"] || !reached["SequenceState"] { // of a field, and of what an iterator yields
		t.Fatalf("reached are only %v", reached)
	}
	for _, name := range constants(t, hidden, reached) {
		if !named[name] {
			t.Errorf("package client has no name for the constant ops.%s", name)
		}
	}
}

// aliases returns the names of package ops that the declarations of the package in dir make public.
func aliases(t *testing.T, dir string) map[string]bool {
	t.Helper()
	found := make(map[string]bool)
	note := func(e ast.Expr) {
		if s, ok := e.(*ast.SelectorExpr); ok && s.X.(*ast.Ident).Name == "ops" {
			found[s.Sel.Name] = true
		}
	}
	specs(t, dir, func(s ast.Spec) {
		switch s := s.(type) {
		case *ast.TypeSpec:
			if s.Assign.IsValid() && s.Name.IsExported() {
				note(s.Type)
			}
		case *ast.ValueSpec:
			for i, v := range s.Values {
				if s.Names[i].IsExported() {
					note(v)
				}
			}
		}
	})
	return found
}

// constants returns the exported constants that the package in dir has of some types.
func constants(t *testing.T, dir string, of map[string]bool) (names []string) {
	t.Helper()
	specs(t, dir, func(s ast.Spec) {
		v, ok := s.(*ast.ValueSpec)
		if !ok {
			return
		}
		if id, ok := v.Type.(*ast.Ident); ok && of[id.Name] && v.Names[0].IsExported() {
			names = append(names, v.Names[0].Name)
		}
	})
	if len(names) < 40 {
		t.Fatalf("package ops has only the constants %v", names)
	}
	return names
}

// specs calls do with each declaration of a package outside of its tests.
func specs(t *testing.T, dir string, do func(ast.Spec)) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), dir+"/"+e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok {
				for _, s := range g.Specs {
					do(s)
				}
			}
		}
	}
}
