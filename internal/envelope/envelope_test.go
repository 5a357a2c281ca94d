package envelope

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/joblock/toolkit/joblock"
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
		lock, err := locks.TryAcquire(context.Background(), fmt.Sprintf("export: acct-%d %% ü", i), joblock.Owner("a b,c"))
		if err != nil {
			t.Fatal(err)
		}
		if out[i], err = lock.Park(context.Background(), joblock.ParkOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func TestSealedEnvelopeOpensToItself(t *testing.T) {
	for _, n := range []int{1, 2, MaxCarried} {
		want := Envelope{Tokens: tokens(t, n), Retries: n}
		headers, err := want.Seal()
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range headers {
			if !utf8.ValidString(value) {
				t.Errorf("header %s is not UTF-8: asynq refuses such a task", name)
			}
		}
		got, ok, err := Open(headers)
		if err != nil || !ok {
			t.Fatalf("Open = %v, %v", ok, err)
		}
		if got.Retries != want.Retries || fmt.Sprint(got.Tokens) != fmt.Sprint(want.Tokens) {
			t.Errorf("opened %v, sealed %v", got, want)
		}
		for i := range got.Tokens {
			if got.Tokens[i] != want.Tokens[i] {
				t.Errorf("token %d is %v, want %v", i, got.Tokens[i], want.Tokens[i])
			}
		}
	}
}

func TestLocksWithAShorterLife(t *testing.T) {
	all := tokens(t, 4)
	want := Envelope{Tokens: all, UntilStart: all[2:3], FromStart: all[1:2]}
	headers, err := want.Seal()
	if err != nil {
		t.Fatal(err)
	}
	for name := range headers {
		if !slices.Contains(Headers, name) {
			t.Errorf("Headers does not have %s: what is left of it on a task would be read again", name)
		}
	}
	got, ok, err := Open(headers)
	if err != nil || !ok {
		t.Fatalf("Open = %v, %v", ok, err)
	}
	if !slices.Equal(got.Tokens, want.Tokens) || !slices.Equal(got.UntilStart, want.UntilStart) || !slices.Equal(got.FromStart, want.FromStart) {
		t.Errorf("opened %v, sealed %v", got, want)
	}
	// To a build that does not know them all locks are the job's to the end.
	delete(headers, UntilStartHeader)
	delete(headers, FromStartHeader)
	if got, _, err := Open(headers); err != nil || !slices.Equal(got.Tokens, all) || got.UntilStart != nil || got.FromStart != nil {
		t.Errorf("without the headers: %v, %v", got, err)
	}
}

func TestTaskWithoutEnvelope(t *testing.T) {
	for _, headers := range []map[string]string{nil, {}, {RetriesHeader: "3"}, {"trace": "x"}} {
		if _, ok, err := Open(headers); ok || err != nil {
			t.Errorf("Open(%v) = %v, %v; want no envelope", headers, ok, err)
		}
	}
}

func TestTaskWithoutSpareSlot(t *testing.T) {
	headers, err := Envelope{Tokens: tokens(t, 1)}.Seal()
	if err != nil {
		t.Fatal(err)
	}
	delete(headers, RetriesHeader)
	if e, ok, err := Open(headers); e.Retries != -1 || !ok || err != nil {
		t.Errorf("Open = retries %d, %v, %v; want -1", e.Retries, ok, err)
	}
}

func TestZeroTokenIsNotSealed(t *testing.T) {
	zero := make([]joblock.Token, 1)
	for _, e := range []Envelope{{Tokens: zero}, {UntilStart: zero}, {FromStart: zero}} {
		if _, err := e.Seal(); !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("Seal of a zero token: %v, want ErrInvalid", err)
		}
	}
}

func TestBrokenHeadersAreErrInvalid(t *testing.T) {
	good, err := Envelope{Tokens: tokens(t, 1), Retries: 3}.Seal()
	if err != nil {
		t.Fatal(err)
	}
	text := good[TokensHeader]
	other, err := tokens(t, 2)[1].MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]map[string]string{
		"empty":             {TokensHeader: ""},
		"leading space":     {TokensHeader: " " + text},
		"trailing space":    {TokensHeader: text + " "},
		"two spaces":        {TokensHeader: text + "  " + text},
		"comma":             {TokensHeader: text + "," + text},
		"cut":               {TokensHeader: text[:len(text)-1]},
		"binary":            {TokensHeader: "\x95\x01\xff"},
		"too many":          {TokensHeader: strings.Repeat(text+" ", MaxCarried) + text},
		"huge":              {TokensHeader: strings.Repeat("A", 1<<20)},
		"retries no number": {RetriesHeader: "many"},
		"retries empty":     {RetriesHeader: ""},
		"retries negative":  {RetriesHeader: "-1"},
		"retries overflow":  {RetriesHeader: "99999999999999999999"},
		"until start empty": {UntilStartHeader: ""},
		"until start bad":   {UntilStartHeader: text + ","},
		"until start other": {UntilStartHeader: string(other)},
		"from start empty":  {FromStartHeader: ""},
		"from start other":  {FromStartHeader: text + " " + string(other)},
		"from start huge":   {FromStartHeader: strings.Repeat(text+" ", MaxCarried) + text},
	} {
		headers := maps.Clone(good)
		maps.Copy(headers, change)
		_, ok, err := Open(headers)
		if !ok || !errors.Is(err, joblock.ErrInvalid) {
			t.Errorf("%s: Open = %v, %v; want an envelope that is ErrInvalid", name, ok, err)
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

// FuzzOpen: whatever the headers are, Open neither panics nor lets anything
// through that would not be sealed again as it was.
func FuzzOpen(f *testing.F) {
	headers, err := Envelope{Tokens: tokens(f, 2), Retries: 25}.Seal()
	if err != nil {
		f.Fatal(err)
	}
	one, _, _ := strings.Cut(headers[TokensHeader], " ")
	f.Add(headers[TokensHeader], headers[RetriesHeader], one)
	f.Add("", "-1", "")
	f.Fuzz(func(t *testing.T, tokens, retries, untilStart string) {
		e, ok, err := Open(map[string]string{TokensHeader: tokens, RetriesHeader: retries, UntilStartHeader: untilStart})
		if !ok {
			t.Fatal("the header is there, but Open did not see it")
		}
		if err != nil {
			if !errors.Is(err, joblock.ErrInvalid) {
				t.Fatalf("error is %v, want ErrInvalid", err)
			}
			return
		}
		again, err := e.Seal()
		if err != nil || again[TokensHeader] != tokens || again[UntilStartHeader] != untilStart {
			t.Fatalf("opened but sealed differently: %v", err)
		}
	})
}
