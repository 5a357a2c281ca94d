package envelope

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// tokens returns n tokens as a hand-over has them: of parked locks.
func tokens(t testing.TB, n int) []joblock.Token {
	t.Helper()
	locks, err := joblock.New(memstore.New(&memstore.Config{Notice: memstore.NoticeSilent}), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := locks.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	out := make([]joblock.Token, n)
	for i := range out {
		// Keys and owners of any text: the envelope must not depend on theirs.
		lock, err := locks.TryAcquire(context.Background(), fmt.Sprintf("export: acct-%d ü", i), joblock.Owner("a b,c"))
		if err != nil {
			t.Fatal(err)
		}
		if out[i], err = lock.Park(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

const (
	job      = "default/t-1"
	taskType = "export"
)

// ring makes the seals of a process of its own.
func ring(t testing.TB) *seal.Ring {
	t.Helper()
	r := seal.NewRing(seal.Config{Sources: [][]byte{[]byte("the same in all of them")},
		Load: func(context.Context, driver.SealKeysRequest) ([]driver.SealKey, error) {
			return []driver.SealKey{{}}, nil
		}})
	t.Cleanup(func() { r.Close(); r.Wait() })
	return r
}

func sealed(t testing.TB, r *seal.Ring, e Envelope) map[string]string {
	t.Helper()
	text, err := e.Seal(t.Context(), r, job, taskType)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{Header: text, "trace": "t"}
}

func TestSealedEnvelopeOpensToItself(t *testing.T) {
	for _, n := range []int{1, 2, MaxCarried} {
		all := tokens(t, n)
		want := Envelope{
			Tokens: all, Retries: n, UntilStart: all[n/2:], FromStart: all[:n/2],
			Sequence: &Sequence{Token: all[n-1], Halt: n == 1, Waits: n == 2, NotBefore: time.UnixMilli(int64(n-1) * 1_000_001)},
		}
		if n == 1 {
			want.Sequence.NotBefore = time.Time{}
		}
		headers := sealed(t, ring(t), want)
		if !utf8.ValidString(headers[Header]) {
			t.Error("the header is not UTF-8: asynq refuses such a task")
		}
		for _, name := range []string{job, ""} {
			got, ok, err := Open(t.Context(), ring(t).Open, Task{name, taskType, headers})
			if err != nil || !ok || got.Job != job {
				t.Fatalf("Open = %q, %v, %v", got.Job, ok, err)
			}
			if may := MayWait(headers); may == nil || may.Waits != want.Sequence.Waits {
				t.Errorf("at first sight the job waits as %+v, want %+v", may, want.Sequence)
			}
			if *got.Sequence != *want.Sequence {
				t.Errorf("opened %+v, sealed %+v", got.Sequence, want.Sequence)
			}
			if got.Retries != want.Retries || !slices.Equal(got.Tokens, want.Tokens) ||
				!slices.Equal(got.UntilStart, want.UntilStart) || !slices.Equal(got.FromStart, want.FromStart) {
				t.Errorf("opened %v, sealed %v", got, want)
			}
		}
	}
}

func TestTaskWithoutEnvelope(t *testing.T) {
	for _, headers := range []map[string]string{nil, {}, {"trace": "x"}} {
		task := Task{job, taskType, headers}
		if _, ok, err := Open(t.Context(), ring(t).Open, task); ok || err != nil {
			t.Errorf("Open(%v) = %v, %v; want no envelope", headers, ok, err)
		}
		if got := Strip(headers); len(got) != len(headers) {
			t.Errorf("Strip(%v) = %v", headers, got)
		}
	}
}

func TestStripTakesOnlyTheEnvelope(t *testing.T) {
	headers := map[string]string{Header: "x", "trace": "t"}
	if got := Strip(headers); len(got) != 1 || got["trace"] != "t" || len(headers) != 2 {
		t.Errorf("%v, of %v", got, headers)
	}
	if got := Strip(map[string]string{Header: "x"}); got != nil {
		t.Errorf("%v, want nil as of a task without headers", got)
	}
}

// An envelope is of one job and of one type of task, whoever has copied it.
func TestEnvelopeOfAnotherTaskIsDistrusted(t *testing.T) {
	headers := sealed(t, ring(t), Envelope{Tokens: tokens(t, 1)})
	for _, task := range []Task{
		{"default/t-2", taskType, headers}, {"other/t-1", taskType, headers}, {job, "import", headers}, {"", "import", headers},
	} {
		_, ok, err := Open(t.Context(), ring(t).Open, task)
		var d *Distrust
		if !ok || !errors.As(err, &d) || d.Cause != Copied || !strings.Contains(err.Error(), job) {
			t.Errorf("%s of type %s: %v, %v", task.Job, task.Type, ok, err)
		}
	}
}

func TestDistrustSaysWhy(t *testing.T) {
	good := sealed(t, ring(t), Envelope{Tokens: tokens(t, 1)})[Header]
	others := seal.NewRing(seal.Config{Sources: [][]byte{nil},
		Load: func(context.Context, driver.SealKeysRequest) ([]driver.SealKey, error) {
			return []driver.SealKey{{}}, nil
		}})
	t.Cleanup(func() { others.Close(); others.Wait() })
	foreign := sealed(t, others, Envelope{Tokens: tokens(t, 1)})[Header]
	odd := func(text string) string {
		value, err := ring(t).Seal(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
	token, err := tokens(t, 1)[0].MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		value string
		want  Cause
	}{
		"empty":            {"", Unread},
		"a token alone":    {string(token), Unread},
		"huge":             {strings.Repeat("A", 1<<20), Unread},
		"changed":          {strings.Replace(good, "export", "Export", 1), Forged},
		"another's key":    {foreign, Unknown},
		"no JSON":          {odd("text"), Unread},
		"no tokens":        {odd(`{"job":"default/t-1","type":"export"}`), Unread},
		"too many tokens":  {odd(`{"tokens":["` + strings.Repeat(`a","`, MaxCarried) + `a"]}`), Unread},
		"no such token":    {odd(`{"untilStart":[1],"tokens":["` + string(token) + `"]}`), Unread},
		"negative place":   {odd(`{"fromStart":[-1],"tokens":["` + string(token) + `"]}`), Unread},
		"no such sequence": {odd(`{"sequence":{"token":1},"tokens":["` + string(token) + `"]}`), Unread},
		"negative retries": {odd(`{"retries":-2,"tokens":["` + string(token) + `"]}`), Unread},
		"broken token":     {odd(`{"tokens":["` + string(token[1:]) + `"]}`), Unread},
	} {
		_, ok, err := Open(t.Context(), ring(t).Open, Task{job, taskType, map[string]string{Header: c.value}})
		var d *Distrust
		if !ok || !errors.As(err, &d) || d.Cause != c.want {
			t.Errorf("%s: %v, %v; want %s", name, ok, err, c.want)
		} else if strings.Contains(err.Error(), string(token)) {
			t.Errorf("%s: the error shows a token: %v", name, err)
		}
	}
}

// The store that does not answer is no reason for distrust.
func TestUnansweredIsNoDistrust(t *testing.T) {
	down := errors.New("down")
	r := seal.NewRing(seal.Config{Sources: [][]byte{nil},
		Load: func(context.Context, driver.SealKeysRequest) ([]driver.SealKey, error) { return nil, down }})
	t.Cleanup(func() { r.Close(); r.Wait() })
	headers := sealed(t, ring(t), Envelope{Tokens: tokens(t, 1)})
	_, ok, err := Open(t.Context(), r.Open, Task{job, taskType, headers})
	var d *Distrust
	if !ok || !errors.Is(err, down) || errors.As(err, &d) {
		t.Errorf("Open = %v, %v; want the store's error", ok, err)
	}
}

func TestWhatIsNotATokenIsNotSealed(t *testing.T) {
	zero := make([]joblock.Token, 1)
	for _, e := range []Envelope{{Tokens: zero}, {UntilStart: zero}, {Tokens: tokens(t, 1), FromStart: zero}} {
		if _, err := e.Seal(t.Context(), ring(t), job, taskType); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("Seal: %v, want ErrInvalid", err)
		}
	}
}

func TestJobNamesAreReadableAndDistinct(t *testing.T) {
	if got := Job("default", "a/b"); got != "default/a/b" {
		t.Errorf("Job = %q", got)
	}
	seen := map[string][2]string{}
	for _, task := range [][2]string{
		{"a/b", "c"}, {"a", "b/c"}, {"a%2Fb", "c"}, {"a", "%2Fb/c"}, {"a%", "2Fb/c"}, {"a%25", "c"}, {"a%", "c"},
	} {
		job := Job(task[0], task[1])
		if other, dup := seen[job]; dup {
			t.Errorf("tasks %q and %q have the same name %q", task, other, job)
		}
		seen[job] = task
		queue, id, ok := ParseJob(job)
		if got := [2]string{queue, id}; got != task || !ok {
			t.Errorf("ParseJob(%q) = %q, %v; want %q", job, got, ok, task)
		}
	}
}

func TestNamesThatAreNoJobs(t *testing.T) {
	for _, job := range []string{"", "x", "default/", "a%2fb/c", "a%2/c", "50%/c"} {
		if queue, id, ok := ParseJob(job); ok {
			t.Errorf("ParseJob(%q) = %q, %q; want none", job, queue, id)
		}
	}
}

func TestAggregateNamesItsLead(t *testing.T) {
	for _, lead := range []string{"t-1", "a:b", "aggregate:x:y"} {
		id := AggregateID(lead)
		if got, ok := LeadOf(id); !ok || got != lead {
			t.Errorf("LeadOf(%q) = %q, %v; want %q", id, got, ok, lead)
		}
		if AggregateID(lead) == id {
			t.Error("two aggregates have the same ID")
		}
	}
	for _, id := range []string{"", "t-1", "aggregate:", "aggregate:x", "aggregate:x:"} {
		if lead, ok := LeadOf(id); ok {
			t.Errorf("LeadOf(%q) = %q, want none", id, lead)
		}
	}
}

// FuzzOpen: whatever the header is, Open neither panics nor lets through what was not
// sealed.
func FuzzOpen(f *testing.F) {
	r := ring(f)
	good := sealed(f, r, Envelope{Tokens: tokens(f, 2), Retries: 25})[Header]
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add("")
	f.Fuzz(func(t *testing.T, value string) {
		_, ok, err := Open(t.Context(), r.Open, Task{job, taskType, map[string]string{Header: value}})
		var d *Distrust
		if !ok || value != good && !errors.As(err, &d) {
			t.Fatalf("Open = %v, %v", ok, err)
		}
	})
}
