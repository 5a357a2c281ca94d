package routes

import (
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// A Field is a field of a request that is not in the body. Its tag says where it is:
//
//	path:"name"     in the path
//	query:"name"    in the query
//	header:"Name"   in a header
//	match:"lock"    in If-Match, as the fence of a lock
//	match:"task"    in If-Match, as the step of a task
type Field struct {
	Index  []int
	In     string // path, query, header or match
	Name   string
	Least  int // of a number
	Most   int
	Schema string // the tag jsonschema
}

var fieldsOf sync.Map // of []Field, by reflect.Type

// Fields returns the fields of a request that are not in the body.
func Fields(t reflect.Type) []Field {
	if known, ok := fieldsOf.Load(t); ok {
		return known.([]Field)
	}
	all := []Field{}
	for _, f := range reflect.VisibleFields(t) {
		for _, in := range []string{"path", "query", "header", "match"} {
			name := f.Tag.Get(in)
			if name == "" {
				continue
			}
			field := Field{Index: f.Index, In: in, Name: name, Most: 1<<31 - 1, Schema: f.Tag.Get("jsonschema")}
			for _, bound := range strings.Split(field.Schema, ",") {
				if text, ok := strings.CutPrefix(bound, "minimum="); ok {
					field.Least, _ = strconv.Atoi(text)
				}
				if text, ok := strings.CutPrefix(bound, "maximum="); ok {
					field.Most, _ = strconv.Atoi(text)
				}
			}
			all = append(all, field)
		}
	}
	fieldsOf.Store(t, all)
	return all
}

// HasBody reports whether a request of the type has a body: a field with the tag json.
func HasBody(t reflect.Type) bool {
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			return true
		}
	}
	return false
}
