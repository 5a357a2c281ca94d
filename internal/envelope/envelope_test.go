package envelope

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/memstore"
)

// tokens returns n tokens as a hand-over has them: of parked locks.
func tokens(t testing.TB, n int) []joblock.Token {
	t.Helper()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
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
			Tokens: all, Retries: n, UntilStart: all[n/2:], FromStart: all[:n/2], Newest: all[n/2:],
			Sequence: &Sequence{Token: all[n-1], Halt: n == 1, Waits: n == 2, NotBefore: time.UnixMilli(int64(n-1) * 1_000_001)},
		}
		if n == 1 {
			want.Sequence.NotBefore = time.Time{}
		} else {
			want.Chain = &chain.Chain{Step: n, Queue: "q", ID: "ü x", Prev: "q/ü x", Next: []chain.Step{{Type: "a b", Payload: []byte{0, 255}, Queue: "q", Retries: 3}}}
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
			if !reflect.DeepEqual(got.Chain, want.Chain) {
				t.Errorf("opened %+v, sealed %+v", got.Chain, want.Chain)
			}
			if got.Retries != want.Retries || !slices.Equal(got.Tokens, want.Tokens) ||
				!slices.Equal(got.UntilStart, want.UntilStart) || !slices.Equal(got.FromStart, want.FromStart) || !slices.Equal(got.Newest, want.Newest) {
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

// An envelope is of one job and of one type of task, even if another program has copied it.
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
	token, err := tokens(t, 1)[0].MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		value string
		want  Cause
	}{
		"empty":         {"", Malformed},
		"a token alone": {string(token), Malformed},
		"huge":          {strings.Repeat("A", 1<<20), Malformed},
		"changed":       {strings.Replace(good, "export", "Export", 1), Forged},
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

// Whatever is genuine and cannot be read is of a newer build, and no reason for distrust: the task would run without its
// locks.
func TestGenuineTextThatCannotBeRead(t *testing.T) {
	text, err := tokens(t, 1)[0].MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	token := string(text)
	later := "lQK" + token[len("lQG"):] // version 2: base64 of MessagePack
	if _, err := joblock.ParseToken(later); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Fatalf("the later token: %v", err)
	}
	rest := fmt.Sprint(" ", len(job), " ", job, taskType)
	for name, text := range map[string]string{
		"nothing":            "",
		"no words":           "text",
		"another version":    "2" + words(0, "-", "-", "-", token)[1:],
		"one word":           "2 ",
		"few words":          "1 0 - - - - - " + token + " 1",
		"a word more":        "1 0 - - - - - x " + token + rest,
		"a number more":      "2 0 - - - - - " + token + " 3" + rest,
		"a later token":      words(0, "-", "-", "-", later),
		"no tokens":          words(0, "-", "-", "-", ""),
		"too many tokens":    words(0, "-", "-", "-", strings.Repeat(token+",", MaxCarried)+token),
		"no such token":      words(0, "-", "1", "-", token),
		"negative place":     words(0, "-", "-", "-1", token),
		"no place":           words(0, "-", "-", "x", token),
		"too many places":    words(0, "-", "0,0", "-", token),
		"no such sequence":   words(0, "1,0,0,0,0", "-", "-", token),
		"short sequence":     words(0, "0,0,0,0", "-", "-", token),
		"long sequence":      words(0, "0,0,0,0,0,name,0", "-", "-", token),
		"no limit's name":    words(0, "0,0,0,0,0,", "-", "-", token),
		"bad limit's name":   words(0, "0,0,0,0,0,%zz", "-", "-", token),
		"no sequence":        words(0, token, "-", "-", token),
		"another halt":       words(0, "0,2,0,0,0", "-", "-", token),
		"another wait":       words(0, "0,0,0,-1,0", "-", "-", token),
		"half a cooldown":    cooling(0, "-", "-", "-", "0", token),
		"a cooldown of 0":    cooling(0, "-", "-", "-", "0,0", token),
		"a long cooldown":    cooling(0, "-", "-", "-", "0,31622400001", token),
		"no such cooldown":   cooling(0, "-", "-", "-", "1,1000", token),
		"a cooldown twice":   cooling(0, "-", "-", "-", "0,1000,0,1000", token+","+token),
		"no cooldown":        cooling(0, "-", "-", "-", "0,x", token),
		"negative retries":   words(-2, "-", "-", "-", token),
		"no members":         "1 0, - - - - - " + token + rest,
		"zero members":       "1 0,0 - - - - - " + token + rest,
		"no retries":         "1 " + token + words(0, "-", "-", "-", token)[3:],
		"long job":           "1 0 - - - - - " + token + " 999 " + job + taskType,
		"negative job":       "1 0 - - - - - " + token + " -1 " + job + taskType,
		"broken token":       words(0, "-", "-", "-", token[1:]),
		"the earliest form":  words(0, "-", "-", "-", token)[2:],
		"a very long number": strings.Repeat("9", 1<<20) + " ",
	} {
		value, err := ring(t).Seal(t.Context(), text)
		if err != nil {
			t.Fatal(err)
		}
		task := Task{job, taskType, map[string]string{Header: value}}
		_, ok, err := Open(t.Context(), ring(t).Open, task)
		var n *Unreadable
		var d *Distrust
		if !ok || !errors.As(err, &n) || n.Cause != Newer || errors.As(err, &d) {
			t.Errorf("%s: %v, %v; want an *Unreadable", name, ok, err)
			continue
		}
		if strings.Contains(err.Error(), token) || len(err.Error()) > 400 {
			t.Errorf("%s: the error shows a token, or is too long: %.500s", name, err)
		}
		if _, ok := Peek(task); ok {
			t.Errorf("%s: Peek has read it", name)
		}
		d = nil
		task.Headers[Header] = value + "x"
		if _, _, err := Open(t.Context(), ring(t).Open, task); !errors.As(err, &d) {
			t.Errorf("%s, and not genuine: %v; want a *Distrust", name, err)
		}
	}
}

// words returns the text of an envelope of these words.
func words(retries int, sequence, untilStart, fromStart, tokens string) string {
	return cooling(retries, sequence, untilStart, fromStart, "-", tokens)
}

func cooling(retries int, sequence, untilStart, fromStart, cooldowns, tokens string) string {
	return fmt.Sprint("1 ", retries, " ", sequence, " ", untilStart, " ", fromStart, " - ", cooldowns, " ", tokens, " ", len(job), " ", job, taskType)
}

func TestTextOfAnEnvelope(t *testing.T) {
	all := tokens(t, 3)
	texts := make([]string, len(all))
	for i, token := range all {
		text, err := token.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	for want, e := range map[string]Envelope{
		words(3, "-", "-", "-", texts[0]):                             {Tokens: all[:1], Retries: 3},
		words(-1, "-", "0", "1,2", strings.Join(texts, ",")):          {Tokens: all, Retries: -1, UntilStart: all[:1], FromStart: all[1:]},
		words(3, "-", "0", "!1", strings.Join(texts[:2], ",")):        {Tokens: all[:2], Retries: 3, UntilStart: all[:1], FromStart: all[1:2], Cancel: true},
		words(3, "-", "0", "!=1", strings.Join(texts[:2], ",")):       {Tokens: all[:2], Retries: 3, UntilStart: all[:1], FromStart: all[1:2], Cancel: true, OwnQueue: true},
		"1 3,7" + words(3, "-", "-", "-", texts[0])[len("1 3"):]:      {Tokens: all[:1], Retries: 3, Members: 7},
		words(0, "1,1,7,0,0", "-", "-", strings.Join(texts[:2], ",")): {Tokens: all[:2], Sequence: &Sequence{Token: all[1], Halt: true, Limit: 7}},
		cooling(0, "-", "0", "1", "1,300000,2,1", strings.Join(texts, ",")): {
			Tokens: all, UntilStart: all[:1], FromStart: all[1:2], Cooldowns: []Cooldown{{all[1], 5 * time.Minute}, {all[2], time.Millisecond}},
		},
		strings.Replace(words(3, "-", "0", "1", strings.Join(texts[:2], ",")), " 0 1 - ", " 0 1 0 ", 1): {
			Tokens: all[:2], Retries: 3, UntilStart: all[:1], FromStart: all[1:2], Newest: all[:1],
		},
		words(0, "0,0,0,1,1700000000001", "-", "-", texts[0]): {
			Tokens: all[:1], Sequence: &Sequence{Token: all[0], Waits: true, NotBefore: time.UnixMilli(1700000000001)},
		},
	} {
		got, err := seal.Text(sealed(t, ring(t), e)[Header])
		if err != nil || got != want {
			t.Errorf("%v\nis  %q, %v\nwant %q", e, got, err, want)
		}
	}
}

// The names of jobs and types may have any characters.
func TestNamesWithSpacesStayApart(t *testing.T) {
	e := Envelope{Tokens: tokens(t, 1)}
	seen := map[string]bool{}
	for _, names := range [][2]string{{"q/a b", "c"}, {"q/a", " bc"}, {"q/a bc", ""}, {"q/a\n", "b 3 c"}, {"", "q/a bc"}} {
		text, err := e.Seal(t.Context(), ring(t), names[0], names[1])
		if err != nil {
			t.Fatal(err)
		}
		if seen[text] {
			t.Errorf("%q has the text of another one", names)
		}
		seen[text] = true
		got, _, err := Open(t.Context(), ring(t).Open, Task{names[0], names[1], map[string]string{Header: text}})
		if err != nil || got.Job != names[0] {
			t.Errorf("%q: opened %q, %v", names, got.Job, err)
		}
	}
}

// MayWait believes what is not sealed, and is asked about any header.
func TestFirstLookAtOddHeaders(t *testing.T) {
	waiting := sealed(t, ring(t), Envelope{Tokens: tokens(t, 1)})[Header]
	for _, value := range []string{"", "x", "a.b.c.d.e", waiting, strings.Repeat(".", 200), strings.Repeat(" ", 200)} {
		if got := MayWait(map[string]string{Header: value}); got != nil {
			t.Errorf("%.40q: %+v, want nil", value, got)
		}
	}
	at := strings.Index(waiting, ".1 0 - ")
	for word, want := range map[string]bool{"0,0,0,1,0": true, "0,0,0,1,0,7": true, "0,0,0,1,0,7,x": true, "0,0,0,0,0,1": false, "0,0,0,2,0": false} {
		for _, version := range []string{"1", "2"} { // a later version keeps these numbers where they are
			value := waiting[:at] + "." + version + " 0 " + word + " - - "
			if got := MayWait(map[string]string{Header: value}); got == nil || got.Waits != want {
				t.Errorf("%s: %+v, want %v", value[at:], got, want)
			}
		}
	}
	headers := map[string]string{Header: waiting[:at] + ".1 0 " + strings.Repeat(",", 1<<20) + " - - "}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := MayWait(headers)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; got == nil || got.Waits || n > 1<<20 {
		t.Errorf("a million commas: %+v, with %d bytes of memory", got, n)
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

// A header that another process may verify counts as unreadable here, not as absent.
func TestUnverifiedIsNoDistrust(t *testing.T) {
	good := sealed(t, ring(t), Envelope{Tokens: tokens(t, 1)})[Header]
	others := seal.NewRing(seal.Config{Sources: [][]byte{nil},
		Load: func(context.Context, driver.SealKeysRequest) ([]driver.SealKey, error) {
			return []driver.SealKey{{}}, nil
		}})
	t.Cleanup(func() { others.Close(); others.Wait() })
	for value, want := range map[string]Cause{
		sealed(t, others, Envelope{Tokens: tokens(t, 1)})[Header]: Unknown,
		"2" + good[1:]:  Newer,
		"2.other.parts": Newer,
	} {
		_, ok, err := Open(t.Context(), ring(t).Open, Task{job, taskType, map[string]string{Header: value}})
		var d *Distrust
		var u *Unreadable
		if !ok || errors.As(err, &d) || !errors.As(err, &u) || u.Cause != want {
			t.Errorf("%.40q: %v, %v; want an *Unreadable because of %q", value, ok, err, want)
		}
	}
}

// FuzzOpen: whatever the header is, Open neither panics nor lets through what was not
// sealed.
func FuzzOpen(f *testing.F) {
	r := ring(f)
	all := tokens(f, 2)
	good := sealed(f, r, Envelope{Tokens: all, Retries: 25, UntilStart: all[:1], Sequence: &Sequence{Token: all[1], Waits: true}})[Header]
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add("")
	f.Fuzz(func(t *testing.T, value string) {
		_, ok, err := Open(t.Context(), r.Open, Task{job, taskType, map[string]string{Header: value}})
		var d *Distrust
		var n *Unreadable
		if !ok || value != good && !errors.As(err, &d) && !errors.As(err, &n) {
			t.Fatalf("Open = %v, %v", ok, err)
		}
	})
}

// FuzzRead: whatever was sealed, reading neither panics nor takes much memory, and what was read is sealed to what reads
// the same.
func FuzzRead(f *testing.F) {
	all := tokens(f, 2)
	for _, e := range []Envelope{
		{Tokens: all, Retries: 25, UntilStart: all[:1], FromStart: all[1:]},
		{Tokens: all, Retries: -1, Members: 2, Cooldowns: []Cooldown{{all[1], time.Second}}},
		{Tokens: all[:1], Sequence: &Sequence{Token: all[0], Halt: true, Limit: 3, LimitName: "a, b", Waits: true, NotBefore: time.UnixMilli(1)}},
		{Tokens: all, FromStart: all[1:], Cancel: true, OwnQueue: true},
		{Tokens: all, FromStart: all[1:], Newest: all[:1], Cancel: true},
	} {
		text, err := e.text(job, taskType)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add("1 0 - - - - -  0 ")
	f.Fuzz(func(t *testing.T, text string) {
		e, taskType, err := read(text)
		if err != nil {
			return
		}
		again, err := e.text(e.Job, taskType)
		if err != nil {
			t.Fatal(err)
		}
		same, sameType, err := read(again)
		if err != nil || sameType != taskType || !reflect.DeepEqual(same, e) {
			t.Errorf("%q was read as %+v, and sealed as %q: %+v, %v", text, e, again, same, err)
		}
	})
}
