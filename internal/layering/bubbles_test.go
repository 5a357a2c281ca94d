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
	used    map[ast.Expr]bool          // what is no use of a name, or is noted already
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
		typ: make(map[ast.Expr]ast.Expr), used: make(map[ast.Expr]bool), structs: make(map[string]*ast.StructType),
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
	var declared, values []ast.Expr
	switch n := n.(type) {
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE {
			declared, values = n.Lhs, n.Rhs
		}
	case *ast.RangeStmt:
		if n.Tok == token.DEFINE {
			declared = []ast.Expr{n.Key, n.Value}
		}
	case *ast.ValueSpec:
		declared, values = exprs(n.Names), n.Values
	case *ast.FuncType:
		for _, field := range n.Params.List {
			declared = append(declared, exprs(field.Names)...)
		}
	}
	for i, e := range declared {
		if id, ok := e.(*ast.Ident); ok {
			s.locals[id.Name] = true
			s.clocks[id.Name] = s.clocks[id.Name] || len(values) == len(declared) && s.isElapsed(values[i])
		}
	}
	return true
}

func exprs(ids []*ast.Ident) (out []ast.Expr) {
	for _, id := range ids {
		out = append(out, id)
	}
	return out
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
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			e = kv.Value
			if field, ok := kv.Key.(*ast.Ident); ok && elem == nil {
				s.give("sel:"+field.Name, e)
				continue
			}
		}
		if elem != nil {
			s.typ[e] = elem
			s.goes[e] = append(s.goes[e], s.element[c])
		} else if i < len(fields) {
			s.give("sel:"+fields[i], e)
		}
	}
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

// assign notes where the values go to that are assigned to variables and fields. That is no use of these.
func (s *tier) assign(to, values []ast.Expr) {
	for i, l := range to {
		key := ""
		switch l := l.(type) {
		case *ast.Ident:
			key = s.key(l)
		case *ast.SelectorExpr:
			key = "sel:" + l.Sel.Name
		default:
			continue
		}
		s.used[l] = true
		if len(values) == len(to) {
			s.give(key, values[i])
		}
	}
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
			s.used[c.Key] = true
			if value, ok := c.Value.(*ast.Ident); ok {
				s.used[value] = true
				s.element[c.X] = s.key(value)
				if id, ok := c.X.(*ast.Ident); ok {
					s.used[id] = true
					s.need("element:"+s.key(id), s.key(value))
				}
			}
		case *ast.AssignStmt:
			s.assign(c.Lhs, c.Rhs)
		case *ast.ValueSpec:
			s.assign(exprs(c.Names), c.Values)
		case *ast.CompositeLit:
			s.composite(c)
		case *ast.KeyValueExpr:
			if id, ok := c.Key.(*ast.Ident); ok {
				s.used[id] = true
			}
		case *ast.IndexExpr:
			if id, ok := c.X.(*ast.Ident); ok {
				s.used[id] = true
				use("element:"+s.key(id), c)
				use(s.key(id), c)
			}
		case *ast.SelectorExpr:
			pkg, name := s.named(c)
			switch s.used[c.Sel] = true; {
			case slices.Contains(neverCalled[pkg], name):
				find(outside, path.Base(pkg)+"."+name)
			case slices.Contains(inBubble[pkg], name):
				find(at, pkg+"."+name)
			case pkg == "" && !s.used[c]:
				use("sel:"+name, c)
			case within(pkg, module):
				use("name:"+name, c)
			}
		case *ast.Ident:
			if s.used[c] {
				break
			}
			if pkg, name := s.named(c); pkg != "" {
				find(outside, path.Base(pkg)+"."+name)
			}
			use(s.key(c), c)
			use("element:"+s.key(c), c)
		}
		return true
	})
}
