package layering

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// Calls that the fast tier does not make at all, and those that it makes only in a bubble, by import path.
var (
	neverCalled = map[string][]string{
		redistest: {"Start", "StartClock", "StartCluster", "StartSentinel", "StartTLS", "StartUpgradedCluster"},
		"os":      {"StartProcess"},
		"os/exec": {"Command", "CommandContext"},
	}
	inBubble = map[string][]string{
		"time":    {"After", "AfterFunc", "NewTicker", "NewTimer", "Sleep", "Tick"},
		"context": {"WithDeadline", "WithDeadlineCause", "WithTimeout", "WithTimeoutCause"},
	}
)

const redistest = module + "/internal/redistest"

// Keys of what synctest.Test calls, and of what go test calls.
const (
	bubble  = "bubble"
	outside = "outside"
)

var calledByGoTest = regexp.MustCompile(`^(Test|Benchmark|Fuzz|Example|init$)`)

// tier is what is known of the test files of one directory. A key stands for a piece of code, or for a name: what a
// name stands for is in a bubble if all uses of it are. Names are compared as text, so the uses of two methods of one
// name count for both.
type tier struct {
	needs   map[string][][]string      // by key: of each list one key has to be in a bubble
	goes    map[ast.Expr][]string      // the keys of the parameters, variables and fields that have the value
	element map[ast.Expr]string        // the key that the elements of a composite literal go to
	typ     map[ast.Expr]ast.Expr      // of a composite literal in another one
	structs map[string]*ast.StructType // by name
	found   []struct{ key, sentence string }

	// Of the declaration at hand.
	imports map[string]string // path by name
	file    string
	decl    string          // its name in sentences
	locals  map[string]bool // the names declared in it
	clocks  map[string]bool // the variables that have a measured duration
}

// checkTier returns what the tests of one directory do against the rules: "file: function: call".
func checkTier(t *testing.T, files map[string]string) (broken []string) {
	t.Helper()
	s := &tier{
		needs: make(map[string][][]string), goes: make(map[ast.Expr][]string), element: make(map[ast.Expr]string),
		typ: make(map[ast.Expr]ast.Expr), structs: make(map[string]*ast.StructType),
	}
	parsed := make(map[string]*ast.File)
	for name, text := range files {
		if !inFastTier(text) {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		parsed[name] = f
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				if typ, ok := spec.Type.(*ast.StructType); ok {
					s.structs[spec.Name.Name] = typ
				}
			}
			return true
		})
	}
	for name, f := range parsed {
		s.file, s.imports = name, make(map[string]string)
		for _, imp := range f.Imports {
			p, err := strconv.Unquote(imp.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			as := path.Base(p)
			if imp.Name != nil {
				as = imp.Name.Name
			}
			s.imports[as] = p
		}
		for _, d := range f.Decls {
			s.declaration(d)
		}
	}
	// At first all is taken to be in a bubble. Each round finds what cannot be.
	out := map[string]bool{outside: true}
	isOut := func(key string) bool { return out[key] || key != bubble && len(s.needs[key]) == 0 }
	for again := true; again; {
		again = false
		for key, lists := range s.needs {
			if !out[key] && slices.ContainsFunc(lists, func(keys []string) bool {
				return !slices.ContainsFunc(keys, func(k string) bool { return !isOut(k) })
			}) {
				out[key], again = true, true
			}
		}
	}
	for _, f := range s.found {
		if isOut(f.key) {
			broken = append(broken, f.sentence)
		}
	}
	return broken
}

func (s *tier) declaration(d ast.Decl) {
	s.locals, s.clocks = make(map[string]bool), make(map[string]bool)
	switch d := d.(type) {
	case *ast.FuncDecl:
		ast.Inspect(d, s.learn)
		s.decl = d.Name.Name
		key := "name:" + s.decl
		if d.Recv != nil {
			recv := receiver(d.Recv.List[0].Type).Name
			s.decl = recv + "." + s.decl
			key = "method:" + s.decl
			s.need(key, "sel:"+d.Name.Name, "name:"+recv)
		} else if calledByGoTest.MatchString(s.decl) {
			s.need(key, outside)
		}
		i := 0
		for _, field := range d.Type.Params.List {
			for _, p := range field.Names {
				s.need(fmt.Sprint("param:", d.Name.Name, i), s.key(p))
				i++
			}
		}
		if d.Body != nil {
			s.walk(d.Body, key)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				s.decl = spec.Name.Name
				s.walk(spec.Type, s.key(spec.Name))
			case *ast.ValueSpec:
				s.decl = spec.Names[0].Name
				s.walk(spec, outside)
			}
		}
	}
}

func (s *tier) need(key string, oneOf ...string) { s.needs[key] = append(s.needs[key], oneOf) }

// key returns that of a name.
func (s *tier) key(id *ast.Ident) string {
	if s.locals[id.Name] {
		return "local:" + s.file + ":" + s.decl + ":" + id.Name
	}
	return "name:" + id.Name
}

// learn notes the names that a function declares.
func (s *tier) learn(n ast.Node) bool {
	declare := func(e ast.Expr, value ast.Expr) {
		if id, ok := e.(*ast.Ident); ok && id != nil {
			s.locals[id.Name] = true
			if s.isElapsed(value) {
				s.clocks[id.Name] = true
			}
		}
	}
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, l := range n.Lhs {
			if len(n.Lhs) == len(n.Rhs) && n.Tok == token.DEFINE {
				declare(l, n.Rhs[i])
			} else if n.Tok == token.DEFINE {
				declare(l, nil)
			}
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			declare(n.Key, nil)
			declare(n.Value, nil)
		}
	case *ast.ValueSpec:
		for _, id := range n.Names {
			declare(id, nil)
		}
	case *ast.FuncType:
		for _, field := range n.Params.List {
			for _, id := range field.Names {
				declare(id, nil)
			}
		}
	}
	return true
}

// named returns the import path, or "", and the name of what an expression names.
func (s *tier) named(e ast.Expr) (pkg, name string) {
	switch e := e.(type) {
	case *ast.Ident:
		if path.Dir(s.file) == short(redistest) && slices.Contains(neverCalled[redistest], e.Name) {
			pkg = redistest
		}
		return pkg, e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok && !s.locals[x.Name] {
			pkg = s.imports[x.Name]
		}
		return pkg, e.Sel.Name
	case *ast.IndexExpr: // with a type argument
		return s.named(e.X)
	case *ast.CallExpr:
		return s.named(e.Fun)
	}
	return "", ""
}

// isElapsed reports whether e is a stretch of time that a clock has measured.
func (s *tier) isElapsed(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return s.clocks[e.Name]
	case *ast.ParenExpr:
		return s.isElapsed(e.X)
	case *ast.BinaryExpr:
		return s.isElapsed(e.X) || s.isElapsed(e.Y)
	case *ast.CallExpr:
		pkg, name := s.named(e)
		sel, ok := e.Fun.(*ast.SelectorExpr)
		return pkg == "time" && name == "Since" || ok && (s.isElapsed(sel.X) || name == "Sub" && s.isNow(sel.X))
	}
	return false
}

func (s *tier) isNow(e ast.Expr) bool {
	_, ok := e.(*ast.CallExpr)
	pkg, name := s.named(e)
	return ok && pkg == "time" && name == "Now"
}

// give notes that what has the key gets the value.
func (s *tier) give(key string, value ast.Expr) {
	s.goes[value] = append(s.goes[value], key)
	s.element[value] = "element:" + key
}

// composite notes where the values in a composite literal go to.
func (s *tier) composite(c *ast.CompositeLit) {
	typ := c.Type
	if typ == nil {
		typ = s.typ[c]
	}
	var elem ast.Expr
	var fields []string
	switch of := typ.(type) {
	case *ast.ArrayType:
		elem = of.Elt
	case *ast.MapType:
		elem = of.Value
	case *ast.StructType:
		fields = names(of)
	case *ast.Ident:
		fields = names(s.structs[of.Name])
	}
	for i, e := range c.Elts {
		kv, keyed := e.(*ast.KeyValueExpr)
		if keyed {
			e = kv.Value
		}
		if elem != nil {
			s.typ[e] = elem
			s.goes[e] = append(s.goes[e], s.element[c])
		} else if id, ok := fieldOf(kv); ok {
			s.give("sel:"+id, e)
		} else if i < len(fields) && !keyed {
			s.give("sel:"+fields[i], e)
		}
	}
}

func fieldOf(kv *ast.KeyValueExpr) (string, bool) {
	if kv == nil {
		return "", false
	}
	id, ok := kv.Key.(*ast.Ident)
	if !ok {
		return "", false
	}
	return id.Name, true
}

func names(of *ast.StructType) (out []string) {
	if of == nil {
		return nil
	}
	for _, field := range of.Fields.List {
		if len(field.Names) == 0 {
			out = append(out, "") // embedded
		}
		for _, id := range field.Names {
			out = append(out, id.Name)
		}
	}
	return out
}

// walk notes each use of a name in n, which is part of the code with the key at.
func (s *tier) walk(n ast.Node, at string) {
	find := func(key, what string) {
		s.found = append(s.found, struct{ key, sentence string }{key, s.file + ": " + s.decl + ": " + what})
	}
	use := func(key string, e ast.Expr) { s.need(key, append([]string{at}, s.goes[e]...)...) }
	ast.Inspect(n, func(c ast.Node) bool {
		switch c := c.(type) {
		case *ast.FuncLit:
			key := fmt.Sprint("literal:", s.file, c.Pos())
			use(key, c)
			s.walk(c.Body, key)
			return false
		case *ast.FuncType:
			return false
		case *ast.Field:
			s.walk(c.Type, at)
			return false
		case *ast.CallExpr:
			pkg, name := s.named(c)
			for i, arg := range c.Args {
				if pkg == "testing/synctest" && name == "Test" {
					s.give(bubble, arg)
				} else if pkg == "" {
					s.give(fmt.Sprint("param:", name, i), arg)
				}
			}
			if sel, ok := c.Fun.(*ast.SelectorExpr); ok && s.isNow(sel.X) && (name == "Before" || name == "After") {
				find(at, "time.Now()."+name)
			}
		case *ast.BinaryExpr:
			if (c.Op == token.GTR || c.Op == token.GEQ || c.Op == token.NEQ) && s.isElapsed(c.X) ||
				(c.Op == token.LSS || c.Op == token.LEQ || c.Op == token.NEQ) && s.isElapsed(c.Y) {
				find(at, "upper bound")
			}
		case *ast.ForStmt:
			if b, ok := c.Cond.(*ast.BinaryExpr); ok && (b.Op == token.LSS || b.Op == token.LEQ) && s.isElapsed(b.X) {
				find(at, "upper bound")
			}
		case *ast.RangeStmt:
			if value, ok := c.Value.(*ast.Ident); ok {
				s.element[c.X] = s.key(value)
				if id, ok := c.X.(*ast.Ident); ok {
					s.need("element:"+s.key(id), s.key(value))
				} else {
					s.walk(c.X, at)
				}
				s.walk(c.Body, at)
				return false
			}
		case *ast.AssignStmt:
			for i, l := range c.Lhs {
				switch l := l.(type) {
				case *ast.Ident:
					if len(c.Lhs) == len(c.Rhs) {
						s.give(s.key(l), c.Rhs[i])
					}
				case *ast.SelectorExpr:
					if len(c.Lhs) == len(c.Rhs) {
						s.give("sel:"+l.Sel.Name, c.Rhs[i])
					}
					s.walk(l.X, at)
				default:
					s.walk(l, at)
				}
			}
			for _, r := range c.Rhs {
				s.walk(r, at)
			}
			return false
		case *ast.ValueSpec:
			for i, v := range c.Values {
				if len(c.Values) == len(c.Names) {
					s.give(s.key(c.Names[i]), v)
				}
				s.walk(v, at)
			}
			if c.Type != nil {
				s.walk(c.Type, at)
			}
			return false
		case *ast.CompositeLit:
			s.composite(c)
		case *ast.KeyValueExpr:
			s.walk(c.Value, at)
			if _, ok := c.Key.(*ast.Ident); !ok {
				s.walk(c.Key, at)
			}
			return false
		case *ast.IndexExpr:
			if id, ok := c.X.(*ast.Ident); ok {
				use("element:"+s.key(id), c)
				use(s.key(id), c)
				s.walk(c.Index, at)
				return false
			}
		case *ast.SelectorExpr:
			pkg, name := s.named(c)
			switch {
			case slices.Contains(neverCalled[pkg], name):
				find(outside, path.Base(pkg)+"."+name)
			case slices.Contains(inBubble[pkg], name):
				find(at, pkg+"."+name)
			case pkg == "":
				use("sel:"+name, c)
				s.walk(c.X, at)
			case within(pkg, module):
				use("name:"+name, c)
			}
			return false
		case *ast.Ident:
			if pkg, name := s.named(c); pkg != "" {
				find(outside, path.Base(pkg)+"."+name)
			}
			use(s.key(c), c)
			use("element:"+s.key(c), c)
		}
		return true
	})
}
