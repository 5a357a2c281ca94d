package envelope

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	for _, n := range []int{1, 2, MaxTokens} {
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
	if _, err := (Envelope{Tokens: make([]joblock.Token, 1)}).Seal(); !errors.Is(err, joblock.ErrInvalid) {
		t.Errorf("Seal of a zero token: %v, want ErrInvalid", err)
	}
}

func TestBrokenHeadersAreErrInvalid(t *testing.T) {
	good, err := Envelope{Tokens: tokens(t, 1), Retries: 3}.Seal()
	if err != nil {
		t.Fatal(err)
	}
	text := good[TokensHeader]
	for name, change := range map[string]map[string]string{
		"empty":             {TokensHeader: ""},
		"leading space":     {TokensHeader: " " + text},
		"trailing space":    {TokensHeader: text + " "},
		"two spaces":        {TokensHeader: text + "  " + text},
		"comma":             {TokensHeader: text + "," + text},
		"cut":               {TokensHeader: text[:len(text)-1]},
		"binary":            {TokensHeader: "\x95\x01\xff"},
		"too many":          {TokensHeader: strings.Repeat(text+" ", MaxTokens) + text},
		"huge":              {TokensHeader: strings.Repeat("A", 1<<20)},
		"retries no number": {RetriesHeader: "many"},
		"retries empty":     {RetriesHeader: ""},
		"retries negative":  {RetriesHeader: "-1"},
		"retries overflow":  {RetriesHeader: "99999999999999999999"},
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
	}
}

// FuzzOpen: whatever the headers are, Open neither panics nor lets anything
// through that would not be sealed again as it was.
func FuzzOpen(f *testing.F) {
	headers, err := Envelope{Tokens: tokens(f, 2), Retries: 25}.Seal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(headers[TokensHeader], headers[RetriesHeader])
	f.Add("", "-1")
	f.Fuzz(func(t *testing.T, tokens, retries string) {
		e, ok, err := Open(map[string]string{TokensHeader: tokens, RetriesHeader: retries})
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
		if err != nil || again[TokensHeader] != tokens {
			t.Fatalf("opened but sealed differently: %v", err)
		}
	})
}
