package layering

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	msgpack = "github.com/vmihailenco/msgpack/v5"
	uuid    = "github.com/google/uuid"
	goredis = "github.com/redis/go-redis/v9"
	asynq   = "github.com/hibiken/asynq"
	rapid   = "pgregory.net/rapid"
	mini    = "github.com/alicebob/miniredis/v2"
	porcup  = "github.com/anishathalye/porcupine"
	otel    = "go.opentelemetry.io"

	prometheus = "github.com/prometheus/client_golang"
)

// rule says what the packages at and below a path may import in addition to the standard
// library. Of several rules the one with the longest path counts. An entry ending in
// "/..." stands for everything at and below it; others for one package of this module,
// or for a whole other module.
type rule struct {
	at    string
	allow []string
}

var rules = []rule{
	{"joblock", []string{"joblock/driver", "joblock/event", "internal/core", "internal/keyspace", msgpack}},
	{"internal/core", []string{"joblock/driver", "joblock/event", "internal/controls", "internal/jitter", "internal/keyspace", "internal/seal", "internal/sleep", msgpack, uuid}},
	{"joblock/driver", nil},
	{"joblock/event", []string{"joblock/driver"}},
	{"joblock/limit", []string{"joblock", "joblock/driver", "joblock/event", "internal/jitter", "internal/core", "internal/keyspace"}},
	{"joblock/rate", []string{"joblock", "internal/core", "internal/rates", "internal/sleep"}},
	{"internal/rates", []string{"joblock/driver", "joblock/event", "internal/core", "internal/keyspace", "internal/sleep"}},
	{"joblock/fallback", []string{"joblock", "joblock/driver", "joblock/event", "joblock/memstore", "internal/core"}},
	{"joblock/memo", []string{"joblock", "joblock/driver", "internal/core"}},
	{"joblock/singleflight", []string{"joblock", "joblock/driver", "internal/core", msgpack}},
	{"joblock/jobs", []string{"joblock", "joblock/driver", "joblock/event", "internal/core"}},
	{"joblock/redisstore", []string{"joblock", "joblock/driver", "joblock/redisstore/...", "internal/keyspace", "internal/scriptstep", "internal/hashtag", goredis}},
	{"joblock/memstore", []string{"joblock/driver"}},
	{"joblock/storetest", []string{"joblock/driver"}},
	{"joblock/joblocktest", []string{"joblock", "joblock/driver", "joblock/memstore", "internal/faultstore"}},
	{"joblock/slogobserver", []string{"joblock/event"}},
	{"joblock/journal", []string{"joblock", "joblock/driver", "joblock/event", "scheduler", "internal/eventlog", "internal/keyspace", goredis, uuid}},
	{"joblock/promobserver", []string{"joblock", "joblock/event", "internal/metric", prometheus}},
	{"joblock/otelobserver", []string{"joblock", "joblock/event", "internal/metric", otel + "/otel/attribute", otel + "/otel/codes", otel + "/otel/metric", otel + "/otel/propagation", otel + "/otel/trace"}},
	{"handoff", []string{"joblock", "joblock/driver", "joblock/event", "joblock/jobs", "joblock/limit", "internal/...", asynq, uuid}},
	{"outbox", []string{"handoff", "joblock", "joblock/driver", "internal/core", "internal/enqueue", "internal/keyspace", "internal/sleep", "internal/workerstats", asynq, uuid}},
	{"outbox/pgxbox", []string{"github.com/jackc/pgx/v5"}},
	{root, []string{"internal/life", "joblock", "joblock/driver", "joblock/redisstore", "handoff", "worker", asynq, goredis}},
	{"worker", []string{"joblock", "joblock/driver", "joblock/event", "joblock/jobs", "joblock/limit", "joblock/rate", "worker/...", "internal/...", asynq, uuid}},
	{"scheduler", []string{"joblock", "joblock/driver", "joblock/memo", "scheduler/spec", "scheduler/internal/...", "internal/jitter", "internal/sleep"}},
	{"scheduler/admin", []string{"joblock", "joblock/memo", "scheduler", "scheduler/spec", "scheduler/internal/ledger", "scheduler/internal/records", "internal/sleep"}},
	{"scheduler/asynqtick", []string{"handoff", "joblock", "scheduler", "scheduler/admin", "scheduler/spec", "scheduler/internal/records", asynq, goredis}},
	{"scheduler/spec", nil},
	{"scheduler/internal/ledger", []string{"scheduler/spec", "scheduler/internal/codec"}},
	{"scheduler/internal/policy", []string{"scheduler/internal/ledger"}},
	{"scheduler/internal/codec", nil},
	{"scheduler/internal/records", []string{"joblock", "joblock/driver", "joblock/memo", "scheduler/spec", "scheduler/internal/ledger", "scheduler/internal/policy", "scheduler/internal/roster", "internal/core", "internal/keyspace"}},
	{"scheduler/internal/roster", []string{"scheduler/internal/codec"}},
	{"internal", []string{"joblock", "joblock/...", "internal/...", asynq, goredis, uuid}},
	{"internal/ops", []string{"joblock", "joblock/...", "scheduler", "scheduler/admin", "scheduler/spec", "internal/...", asynq, goredis}},
	{"internal/metric", []string{"joblock/event"}},
	{"internal/monitoring", nil},
	{"internal/scriptstep", []string{"joblock/driver", goredis}},
	{"internal/certs", []string{"internal/files"}},
	{"internal/files", nil},
	{"internal/controls", []string{"internal/keyspace"}},
	{"internal/jitter", nil},
	{"internal/life", nil},
	{"internal/seal", []string{"internal/sleep", "joblock/driver"}},
	{"internal/sleep", nil},
	{"internal/storemodel", []string{"joblock/driver", "joblock/storetest", "internal/ministore", rapid}},
	{"internal/ministore", []string{"joblock/driver"}},
	{"internal/testkit", []string{"internal/jitter"}},
	{"internal/testkit/lockkit", []string{"joblock", "joblock/driver", "joblock/memstore", "internal/jitter", "internal/faultstore", "internal/testkit"}},
	{"internal/testkit/envelopekit", []string{"internal/envelope", "internal/seal"}},
	{"internal/redistest", []string{goredis, mini}},
	{"internal/sqltest", nil},
	{"internal/history", []string{"joblock", "joblock/driver", "joblock/jobs", "internal/core", "internal/keyspace", porcup}},
	{"server", []string{"handoff", "joblock", "joblock/driver", "joblock/limit", "joblock/redisstore", "internal/certs", "internal/core", "internal/enqueue", "internal/envelope", "internal/files", "internal/keyspace", "internal/ops", "internal/sleep", "server/internal/...", asynq, goredis, "golang.org/x/time"}},
	{"server/metrics", []string{"joblock", "joblock/driver", "joblock/redisstore", "scheduler/admin", "server", "internal/metric", "internal/ops", "internal/sleep", prometheus}},
	{"server/internal/pages", []string{"joblock", "joblock/driver", "joblock/event", "internal/cmdline", "internal/keyspace", "internal/ops"}},
	{"server/internal/problem", []string{"joblock", "joblock/driver"}},
	{"server/internal/routes", []string{"joblock", "joblock/driver", "internal/ops"}},
	{"server/internal/foreign", []string{"joblock", "internal/ops", "server/internal/problem"}},
	{"server/compat", []string{"joblock", "joblock/driver", "internal/core", "internal/ops", "server", "server/internal/foreign", "server/internal/problem", "server/compat/forrst"}},
	{"server/compat/forrst", []string{"joblock", "joblock/driver", "internal/core", uuid}},
	{"examples", []string{root, "joblock/...", "handoff", "worker/...", "scheduler/...", "examples/...", asynq, goredis, mini}},
}

// testOnly must not be reachable from what users compile.
var testOnly = []string{
	mini, porcup, "go.uber.org/goleak", rapid, otel + "/otel/sdk",
	module + "/internal/testkit", module + "/internal/redistest", module + "/internal/sqltest", module + "/internal/history", module + "/internal/faultstore", module + "/internal/storemodel", module + "/internal/ministore", module + "/joblock/joblocktest", module + "/joblock/storetest",
}

// mayReachTests are the packages that exist for tests, and the examples: one that brings
// its own miniredis runs on a machine without Redis.
var mayReachTests = []string{"internal/redistest", "internal/sqltest", "internal/faultstore", "internal/history", "internal/ministore", "internal/storemodel", "internal/testkit", "internal/torture", "joblock/joblocktest", "joblock/storetest", "examples"}

// neverMeet are packages that only programs compose: none of them may reach another.
var neverMeet = []string{"handoff", "worker", "scheduler"}

// unreachable lists what the core must not reach even indirectly.
var unreachable = map[string][]string{
	"joblock":              {goredis, asynq, otel, prometheus},
	"joblock/memstore":     {goredis, asynq, otel, prometheus},
	"joblock/storetest":    {goredis, asynq, otel, prometheus},
	"joblock/redisstore":   {asynq, otel, prometheus},
	"joblock/slogobserver": {goredis, asynq, otel, prometheus},
	"joblock/otelobserver": {goredis, asynq},
	"joblock/promobserver": {goredis, asynq, otel},
	"joblock/journal":      {asynq, otel, prometheus},
	"joblock/joblocktest":  {goredis, asynq, otel, prometheus},
	"handoff":              {otel, prometheus},
	root:                   {otel, prometheus},
	"outbox":               {otel, prometheus, "github.com/jackc"},
	"worker":               {otel, prometheus},
	"scheduler":            {goredis, asynq, otel, prometheus},
	"scheduler/admin":      {goredis, asynq, otel, prometheus},
	"scheduler/asynqtick":  {otel, prometheus},
	"server/compat/forrst": {goredis, asynq, otel, prometheus},
}

// check returns one sentence for each broken rule.
func check(g graph) []string {
	var broken []string
	for _, rel := range g.own() {
		broken = append(broken, checkImports(g, rel)...)
		broken = append(broken, checkReach(g, rel)...)
	}
	return broken
}

// checkImports compares the direct imports with the allow list of the package's rule.
func checkImports(g graph, rel string) []string {
	r, ok := ruleFor(rel)
	if !ok {
		return []string{fmt.Sprintf("%s: no rule says what it may import; add one to rules", rel)}
	}
	var broken []string
	for _, imp := range g[full(rel)].Imports {
		if g[imp].Standard || imp == "C" || slices.ContainsFunc(r.allow, func(a string) bool { return allows(a, imp) }) {
			continue
		}
		broken = append(broken, fmt.Sprintf("%s imports %s, which the rule for %s does not allow; it may import %s",
			rel, short(imp), r.at, strings.Join(r.allow, ", ")))
	}
	return broken
}

// checkReach looks for what must not be reached by any way.
func checkReach(g graph, rel string) []string {
	bad := slices.Clone(unreachable[rel])
	if !slices.ContainsFunc(mayReachTests, func(base string) bool { return within(rel, base) }) {
		bad = append(bad, testOnly...)
	}
	if slices.Contains(neverMeet, rel) {
		for _, other := range neverMeet {
			if other != rel {
				bad = append(bad, module+"/"+other)
			}
		}
	}
	var broken []string
	for _, b := range bad {
		if chain := g.path(full(rel), func(p string) bool { return within(p, b) }); chain != nil {
			broken = append(broken, fmt.Sprintf("%s must not reach %s, but: %s", rel, short(b), chainText(chain)))
		}
	}
	return broken
}

func ruleFor(rel string) (best rule, ok bool) {
	for _, r := range rules {
		if within(rel, r.at) && len(r.at) > len(best.at) {
			best, ok = r, true
		}
	}
	return best, ok
}

func allows(entry, imp string) bool {
	if base, tree := strings.CutSuffix(entry, "/..."); tree {
		return within(imp, full(base))
	}
	if first, _, _ := strings.Cut(entry, "/"); strings.Contains(first, ".") {
		return within(imp, entry)
	}
	return imp == full(entry)
}

func TestImportDirections(t *testing.T) {
	g := load(t)
	if len(g.own()) < 3 {
		t.Fatalf("go list found only %v", g.own())
	}
	for _, sentence := range check(g) {
		t.Error(sentence)
	}
}

func TestBrokenRulesAreNamed(t *testing.T) {
	const m = module + "/"
	for _, tc := range []struct {
		name  string
		graph map[string][]string
		want  []string // parts of the sentences, in order
	}{
		{"nothing wrong", map[string][]string{
			m + "joblock":            {"time", msgpack},
			m + "joblock/redisstore": {m + "joblock", goredis + "/internal"},
			m + "handoff":            {m + "joblock", m + "internal/envelope", asynq},
			m + "internal/envelope":  {m + "joblock"},
		}, nil},
		{"core imports redis", map[string][]string{m + "joblock": {goredis}}, []string{
			"joblock imports " + goredis + ", which the rule for joblock does not allow",
			"joblock must not reach " + goredis + ", but: joblock -> " + goredis,
		}},
		{"packages that only programs compose", map[string][]string{
			m + "worker":          {m + "internal/shared"},
			m + "internal/shared": {m + "handoff"},
			m + "handoff":         {asynq},
		}, []string{
			"internal/shared imports handoff, which the rule for internal does not allow",
			"worker must not reach handoff, but: worker -> internal/shared -> handoff",
		}},
		{"test code behind a helper", map[string][]string{
			m + "worker":             {m + "internal/x"},
			m + "internal/x":         {m + "internal/redistest"},
			m + "internal/redistest": {mini + "/server"},
		}, []string{
			"internal/x must not reach " + mini + ", but:",
			"internal/x must not reach internal/redistest, but: internal/x -> internal/redistest",
			"worker must not reach " + mini + ", but:",
			"worker must not reach internal/redistest, but: worker -> internal/x -> internal/redistest",
		}},
		{"the root is no rule for what is below it", map[string][]string{
			module:          {m + "joblock", m + "handoff"},
			m + "elsewhere": nil,
			m + "joblock":   {module},
		}, []string{
			"elsewhere: no rule says what it may import",
			"joblock imports toolkit, which the rule for joblock does not allow",
		}},
		{"the root reaches what it must not", map[string][]string{module: {prometheus}}, []string{
			"toolkit imports " + prometheus + ", which the rule for toolkit does not allow",
			"toolkit must not reach " + prometheus + ", but: toolkit -> " + prometheus,
		}},
		{"a name that only begins alike", map[string][]string{m + "joblocks": nil},
			[]string{"joblocks: no rule says what it may import"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			g := graph{"time": {ImportPath: "time", Standard: true}}
			for path, imports := range tc.graph {
				g[path] = pkg{ImportPath: path, Imports: imports}
			}
			got := check(g)
			if len(got) != len(tc.want) {
				t.Fatalf("check() = %q, want %d sentences", got, len(tc.want))
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("sentence %d: %q, want %q", i, got[i], want)
				}
			}
		})
	}
}
