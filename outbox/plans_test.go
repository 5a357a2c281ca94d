package outbox

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
)

// fullScan has, for each database, the sign of a plan that reads a whole table.
var fullScan = map[Dialect]*regexp.Regexp{
	Postgres: regexp.MustCompile(`Seq Scan`),
	MySQL:    regexp.MustCompile(`"access_type": "(ALL|index)"`),
	SQLite:   regexp.MustCompile(`SCAN joblock_outbox(?: AS \w+)?\s*$`),
}

// No query of a relay reads the whole table, however many rows are pending, wait, and were sent.
func TestNoQueryReadsTheWholeTable(t *testing.T) {
	t.Parallel()
	k := newKit(t, nil)
	const rows, chunk = 20_000, 500
	for from := 0; from < rows; from += chunk {
		var args []any
		for i := from; i < from+chunk; i++ {
			state, due, expires := i%2, 0, 0
			switch {
			case state == 1:
				expires = 1 << 42
			case i%200 == 0:
				due = 1 << 42
			}
			args = append(args, uuid.NewString(), fmt.Sprint("key", i), "work", []byte(strings.Repeat("x", 200)), "{}", state, due, expires, 0, "")
		}
		k.exec("INSERT INTO joblock_outbox (uid, order_key, task_type, payload, job, state, due_ms, expires_ms, created_ms, error) VALUES "+
			strings.Repeat(",(?,?,?,?,?,?,?,?,?,?)", chunk)[1:], args...)
	}
	explain := map[Dialect]string{Postgres: "EXPLAIN ", MySQL: "EXPLAIN FORMAT=JSON ", SQLite: "EXPLAIN QUERY PLAN "}[k.dialect]
	analyze := map[Dialect]string{Postgres: "ANALYZE", MySQL: "ANALYZE TABLE joblock_outbox", SQLite: "ANALYZE"}[k.dialect]
	for _, known := range []bool{false, true} { // statistics
		if known {
			k.exec(analyze)
		}
		queries := map[string]string{
			"due": strings.Replace(dueRows, "?", "200", 1), "expired": strings.Replace(expiredRows, "?", "500", 1),
			"oldest": oldestRow, "refused": refusedRows, "uid": "SELECT 1 FROM joblock_outbox WHERE uid = 'x'",
		}
		if known { // without statistics PostgreSQL takes the table for a small one
			queries["sent"] = "UPDATE joblock_outbox SET state = 1 WHERE id IN (" + strings.Repeat("7,", maxBatch) + "8)"
			queries["delete"] = "DELETE FROM joblock_outbox WHERE id IN (" + strings.Repeat("7,", cleanRows) + "8)"
		}
		for name, query := range queries {
			if plan := k.plan(explain + k.dialect.sql(query)); fullScan[k.dialect].MatchString(plan) {
				t.Errorf("%s, with statistics %t, reads the whole table:\n%s", name, known, plan)
			}
		}
	}
}

// plan returns the output of an EXPLAIN.
func (k *kit) plan(query string) string {
	k.t.Helper()
	rows := must(k.db.Query(query))(k.t)
	defer rows.Close()
	cells := make([]any, len(must(rows.Columns())(k.t)))
	for i := range cells {
		cells[i] = new(any)
	}
	var plan strings.Builder
	for rows.Next() {
		if err := rows.Scan(cells...); err != nil {
			k.t.Fatal(err)
		}
		last := *cells[len(cells)-1].(*any)
		if text, ok := last.([]byte); ok {
			last = string(text)
		}
		fmt.Fprintln(&plan, last)
	}
	if err := rows.Err(); err != nil {
		k.t.Fatal(err)
	}
	return plan.String()
}
