package server

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/testkit"
)

var update = flag.Bool("update", false, "rewrite the schemas of the Desk's types in openapi.json")

// The types of package ops that answers have. The schemas of these types, and of the types in their fields, are made of
// the Go types; everything else in openapi.json is written by hand.
var deskTypes = []any{
	ops.Lock{}, ops.Explanation{}, ops.Waiter{}, ops.Permits{}, ops.Forced{}, ops.Job{}, ops.Task{}, ops.CronJob{}, ops.CronTick{},
	ops.CronNode{}, ops.CronPlan{}, ops.Acted{}, ops.Keeper{}, ops.Safety{}, ops.Finding{}, ops.Checked{}, ops.AuditEntry{}, ops.Event{}, ops.History{},
	ops.Sequence{},
}

// The document has every field of the Desk's types. After a change of these types run: go test -run Desk -update
func TestDocumentHasTheTypesOfTheDesk(t *testing.T) {
	made := schemas{}
	for _, v := range deskTypes {
		made.of(reflect.TypeOf(v))
	}
	var doc map[string]any
	testkit.WantNil(t, "Unmarshal", json.Unmarshal(openAPI, &doc))
	known := doc["components"].(map[string]any)["schemas"].(map[string]any)
	for name, schema := range made {
		if old, ok := known[name].(map[string]any); ok && old["description"] != nil {
			schema.(map[string]any)["description"] = old["description"]
		}
		want, err := json.Marshal(schema)
		testkit.WantNil(t, "Marshal", err)
		got, err := json.Marshal(known[name])
		testkit.WantNil(t, "Marshal", err)
		if !bytes.Equal(got, want) && !*update {
			t.Errorf("the schema %s is not that of ops.%s; run: go test -run Desk -update", name, name)
		}
		known[name] = schema
	}
	if *update {
		text, err := json.MarshalIndent(doc, "", " ")
		testkit.WantNil(t, "MarshalIndent", err)
		testkit.WantNil(t, "WriteFile", os.WriteFile("openapi.json", append(text, '\n'), 0o644))
	}
}

// The type schemas has schemas by name.
type schemas map[string]any

// of returns the schema of a type. That of a struct goes into s, and is referred to.
func (s schemas) of(t reflect.Type) any {
	ref := func(name string) any { return map[string]any{"$ref": "#/components/schemas/" + name} }
	switch {
	case t == reflect.TypeFor[ops.Time]():
		return ref("Time")
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[ops.Millis]():
		return map[string]any{"type": "integer"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return map[string]any{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.Slice:
		return map[string]any{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Struct:
		if s[t.Name()] == nil {
			s.add(t)
		}
		return ref(t.Name())
	}
	panic("no schema for " + t.String())
}

func (s schemas) add(t reflect.Type) {
	properties, required := map[string]any{}, []string{}
	s[t.Name()] = map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		properties[name] = s.of(f.Type)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	s[t.Name()].(map[string]any)["required"] = required
}
