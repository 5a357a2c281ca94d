package pages

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// A slowly is a Desk whose walks have gone over everything before they tell the first row, two seconds later.
type slowly struct{ *fake }

func endingLate[T any](rows iter.Seq2[T, error], told func(float64)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		told(1)
		time.Sleep(2 * time.Second)
		rows(yield)
	}
}

func (s slowly) Locks(ctx context.Context, q ops.LocksQuery) iter.Seq2[ops.Lock, error] {
	return endingLate(s.fake.Locks(ctx, q), q.Progress)
}

func (s slowly) Jobs(ctx context.Context, q ops.JobsQuery) iter.Seq2[ops.Job, error] {
	return endingLate(s.fake.Jobs(ctx, q), q.Progress)
}

func (s slowly) Sequences(ctx context.Context, q ops.SequencesQuery) iter.Seq2[ops.Sequence, error] {
	return endingLate(s.fake.Sequences(ctx, q), q.Progress)
}

func (s slowly) Statuses(context.Context, ...string) ([]ops.Lock, error) { return nil, nil }

// A viewer is a stream of a page, without the connection.
type viewer struct {
	*testing.T
	h    *Handler
	path string
	s    *stream
	out  *httptest.ResponseRecorder
	kept sticky
}

func (h *Handler) viewer(t *testing.T, path string) *viewer {
	out := httptest.NewRecorder()
	return &viewer{T: t, h: h, path: path, out: out, s: &stream{w: out, rc: http.NewResponseController(out), seed: maphash.MakeSeed(), sent: make(map[string]uint64)}}
}

// next returns what the stream sends now, by the ids of the parts.
func (v *viewer) next() map[string]string {
	v.Helper()
	r := httptest.NewRequest(http.MethodGet, "http://localhost/live", nil)
	name, query, _ := strings.Cut(v.path, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		v.Fatal(err)
	}
	if name == "" {
		name = "overview"
	}
	v.out.Body = new(bytes.Buffer)
	if err := v.s.look(v.h, r, v.h.page(name), someone, q, &v.kept, tick); err != nil {
		v.Fatal(err)
	}
	parts := make(map[string]string)
	if text, ok := strings.CutPrefix(v.out.Body.String(), "data: "); ok {
		var m message
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			v.Fatal(err)
		}
		for _, p := range m.Parts {
			parts[p.ID] = p.HTML
		}
	}
	return parts
}

// While the first walk is under way, no page says that there is nothing. What the walk finds is then in the list, and a list
// has the rows that its count tells of.
func TestListsWhileTheFirstWalkIsUnderWay(t *testing.T) {
	for path, c := range map[string]struct{ list, row, empty string }{
		"locks":     {"l-list", `href="lock?key=k%3a1"`, "No lock is held"},
		"jobs":      {"j-list", `href="job?job=q%2f1"`, "No job has a lock"},
		"sequences": {"q-list", `href="lock?key=k%3a1"`, "No job waits in a line"},
		"limits":    {"m-list", `href="lock?key=geo"`, "No permit is taken"},
		"":          {"o-oldest", `href="lock?key=k%3a1"`, "No holder runs"},
	} {
		t.Run("page "+path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l := ops.Lock{Key: "k:1", State: joblock.StateHeld, Fence: 1, Since: ops.Time{Time: time.Now()}}
				f := &fake{
					locks:     []ops.Lock{l, {Key: keyspace.Permit("geo", 1), Role: ops.RolePermit, Group: "geo", Number: 1, State: joblock.StateHeld}},
					jobs:      []ops.Job{{Job: "q/1", Key: "k:1", Lock: l, Task: ops.Task{Queue: "q", State: "retry"}}},
					sequences: []ops.Sequence{{Key: "k:1", State: ops.SequenceStuck, Job: "q/1"}},
				}
				h, err := New(Config{Desk: slowly{f}, Recorded: true})
				if err != nil {
					t.Fatal(err)
				}
				defer h.Close()
				all := []string{c.empty, "100 %", "No lock has lost", "There are no waiters.", "No job has a lock"}
				wantPage(t, h.get(path, someone).Body.String(), false, all...)
				v := h.viewer(t, path)
				first := v.next()
				wantPage(t, first[c.list], false, append(all, c.row)...)
				if path != "" {
					wantPage(t, first[c.list], true, "The first look is under way")
				}
				time.Sleep(3 * time.Second)
				then := v.next()
				wantPage(t, then[c.list], true, c.row)
				wantPage(t, then[c.list], false, "under way")
				wantPage(t, h.get(path, someone).Body.String(), false, "under way", "So far")
			})
		})
	}
}

// Counts and rows change together. A row that changes alone is sent alone, and one that is in a list is not sent twice.
func TestRowsChangeWithTheirCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		of := func(n int, state ops.SequenceState) (all []ops.Sequence) {
			for i := range n {
				all = append(all, ops.Sequence{Key: fmt.Sprint("k:", i), State: state, Waiting: 30 - 10*i})
			}
			return all
		}
		h := newHandler(t, f)
		v := h.viewer(t, "sequences")
		row := func(n int) string { return idOf("q", fmt.Sprint("k:", n)) }
		after := func(all []ops.Sequence) map[string]string {
			synctest.Wait()
			h.sequences.mu.Lock() // before each walk the walker has it
			f.sequences = slices.Clone(all)
			h.sequences.mu.Unlock()
			time.Sleep(5 * time.Second)
			return v.next()
		}
		v.next()
		parts := after(of(2, ops.SequenceWaiting))
		wantPage(t, parts["q-sum"], true, "2 sequences")
		wantPage(t, parts["q-list"], true, row(0), row(1))
		wantPage(t, parts["q-list"], false, "No job waits")
		if parts[row(0)] != "" {
			t.Error("a row is sent with its list, and alone")
		}
		three := of(3, ops.SequenceWaiting)
		parts = after(three)
		wantPage(t, parts["q-sum"], true, "3 sequences")
		wantPage(t, parts["q-list"], true, row(2))
		three[1].Waiting = 21
		if parts = after(three); parts["q-list"] != "" || parts["q-sum"] != "" || !strings.Contains(parts[row(1)], "<b>21</b>") {
			t.Errorf("a row that has changed: %v", parts)
		}
		parts = after(three[1:])
		wantPage(t, parts["q-sum"], true, "2 sequences")
		wantPage(t, parts["q-list"], false, row(0))
		parts = after(nil)
		wantPage(t, parts["q-list"], true, "No job waits in a line")
	})
}

// A place in the list of sequences that is gone is not the end of the list.
func TestPlaceThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, &fake{sequences: []ops.Sequence{{Key: "k:1", State: ops.SequenceWaiting}}, locks: many(3)})
		wantPage(t, h.get("sequences?after=gone", someone).Body.String(), true, "lock?key=k%3a1")
		wantPage(t, h.get("sequences?after=k:1", someone).Body.String(), true, "There is no more here", "First page")
	})
}
