package seal

import (
	"bytes"
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// shelf is a store of keys.
type shelf struct {
	mu    sync.Mutex // guards what follows
	keys  []driver.SealKey
	loads int
	err   error
}

func (s *shelf) load(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loads++
	if err := cmp.Or(s.err, ctx.Err()); err != nil {
		return nil, err
	}
	for _, k := range req.Known {
		if !slices.Contains(s.keys, k) {
			s.keys = append(s.keys, k)
		}
	}
	if len(s.keys) == 0 {
		s.keys = []driver.SealKey{{Secret: req.Fresh, Since: time.Now()}}
	}
	slices.SortFunc(s.keys, func(a, b driver.SealKey) int {
		return cmp.Or(a.Since.Compare(b.Since), bytes.Compare(a.Secret[:], b.Secret[:]))
	})
	return slices.Clone(s.keys), nil
}

func (s *shelf) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = nil
}

func (s *shelf) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *shelf) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loads
}

// ring makes one on s, with the store's keys or with secrets; "" stands for the former.
func (s *shelf) ring(t *testing.T, secrets ...string) *Ring {
	t.Helper()
	sources := [][]byte{nil}
	if len(secrets) > 0 {
		sources = nil
		for _, text := range secrets {
			if text == "" {
				sources = append(sources, nil)
			} else {
				sources = append(sources, []byte(text))
			}
		}
	}
	r := NewRing(Config{Load: s.load, Sources: sources})
	t.Cleanup(func() { r.Close(); r.Wait() })
	return r
}

func seal(t *testing.T, r *Ring, text string) string {
	t.Helper()
	sealed, err := r.Seal(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

func wantOpen(t *testing.T, r *Ring, sealed string, want Opened, wantErr error) {
	t.Helper()
	got, err := r.Open(t.Context(), sealed)
	if got != want || !errors.Is(err, wantErr) {
		t.Errorf("Open: %+v, %v; want %+v, %v", got, err, want, wantErr)
	}
}

func TestWhatOneSealsTheOthersOpenWithoutFurtherCalls(t *testing.T) {
	var s shelf
	web, worker := s.ring(t), s.ring(t)
	for i := range 100 {
		text := fmt.Sprintf("text %d. with. dots", i)
		wantOpen(t, worker, seal(t, web, text), Opened{Text: text}, nil)
	}
	if n := s.count(); n != 2 {
		t.Errorf("%d calls of the store, want one for each Ring", n)
	}
}

func TestManySealAndOpenAtATime(t *testing.T) {
	r := new(shelf).ring(t)
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			for i := range 500 {
				text := fmt.Sprintf("text %d of %d", i, n)
				sealed, err := r.Seal(t.Context(), text)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := r.Open(t.Context(), sealed); err != nil || got.Text != text {
					t.Errorf("%q opens as %q, %v", text, got.Text, err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestWhatIsNotAsItWasSealedIsRefused(t *testing.T) {
	var s, other shelf
	r := s.ring(t)
	good := seal(t, r, "text")
	parts := strings.SplitN(good, ".", 5)
	change := func(i int, part string) string {
		p := slices.Clone(parts)
		p[i] = part
		return strings.Join(p, ".")
	}
	for name, c := range map[string]struct {
		sealed string
		want   error
	}{
		"empty":                   {"", ErrMalformed},
		"four parts":              {strings.Join(parts[:4], "."), ErrMalformed},
		"a later version":         {change(0, "2"), ErrNewer},
		"a much later version":    {change(0, "1024"), ErrNewer},
		"a later kind of seal":    {"2.x", ErrNewer},
		"version zero":            {change(0, "0"), ErrMalformed},
		"version one, padded":     {change(0, "01"), ErrMalformed},
		"no version":              {change(0, "12345"), ErrMalformed},
		"a word for a version":    {change(0, "v2"), ErrMalformed},
		"a signed version":        {change(0, "+2"), ErrMalformed},
		"a longer name":           {change(1, parts[1]+"0"), ErrMalformed},
		"a shorter MAC":           {change(3, parts[3][1:]), ErrMalformed},
		"no dot after the key":    {good[:storeAt-1] + "x" + good[storeAt:], ErrMalformed},
		"no dot after the store":  {good[:macAt-1] + "x" + good[macAt:], ErrMalformed},
		"no dot after the MAC":    {good[:textAt-1] + "x" + good[textAt:], ErrMalformed},
		"no base64":               {change(3, strings.Repeat("!", macLen)), ErrMismatch},
		"a MAC of its own":        {change(3, strings.Repeat("A", macLen)), ErrMismatch},
		"another text":            {change(4, "Text"), ErrMismatch},
		"a longer text":           {good + ".", ErrMismatch},
		"another store's name":    {change(2, strings.Repeat("0", idLen)), ErrMismatch},
		"a key of no ring":        {change(1, strings.Repeat("0", idLen)), ErrUnknownKey},
		"sealed in another store": {seal(t, other.ring(t), "text"), ErrUnknownKey},
		"sealed with a secret":    {seal(t, s.ring(t, "sixteen bytes..."), "text"), ErrUnknownKey},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { wantOpen(t, s.ring(t), c.sealed, Opened{}, c.want) })
		})
	}
	for i := range len(good) {
		bad := []byte(good)
		bad[i] ^= 1
		if _, err := r.OpenKnown(t.Context(), string(bad)); err == nil {
			t.Errorf("opened with byte %d changed", i)
		}
	}
	wantOpen(t, r, good, Opened{Text: "text"}, nil)
}

func TestSecretsOutrankTheStoresKeysAndRotate(t *testing.T) {
	synctest.Test(t, secretsOutrankTheStoresKeysAndRotate)
}

func secretsOutrankTheStoresKeysAndRotate(t *testing.T) {
	const old, new = "the old secret of all", "the new secret of all"
	var s, other shelf
	stored := seal(t, s.ring(t), "text")
	byOld, byNew := seal(t, s.ring(t, old), "text"), seal(t, s.ring(t, new, old), "text")
	for _, c := range []struct {
		secrets              []string
		stored, byOld, byNew bool
	}{
		{[]string{""}, true, false, false},
		{[]string{"", old}, true, true, false},
		{[]string{old, ""}, true, true, false},
		{[]string{old}, false, true, false},
		{[]string{new, old}, false, true, true},
		{[]string{new}, false, false, true},
	} {
		r := s.ring(t, c.secrets...)
		for sealed, want := range map[string]bool{stored: c.stored, byOld: c.byOld, byNew: c.byNew} {
			if _, err := r.Open(t.Context(), sealed); (err == nil) != want || err != nil && !errors.Is(err, ErrUnknownKey) {
				t.Errorf("%q opens %.40s: %v, want %t", c.secrets, sealed, err, want)
			}
		}
	}
	// With another store, Open says so, with a secret too.
	wantOpen(t, other.ring(t, old), byOld, Opened{Text: "text", Elsewhere: true}, nil)
	wantOpen(t, s.ring(t, old), byOld, Opened{Text: "text"}, nil)
}

// With a secret it is enough to know that; whether the stores are the same is not worth
// waiting for.
func TestASecretOpensWhileTheStoreIsAway(t *testing.T) {
	const secret = "the secret of all of them"
	var s shelf
	sealed := seal(t, s.ring(t, secret), "text")
	r := s.ring(t, secret)
	s.fail(errors.New("down"))
	wantOpen(t, r, sealed, Opened{Text: "text"}, nil)
}

func TestAnUnknownKeyIsNotDecidedWithoutTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		web := s.ring(t)
		sealed := seal(t, web, "text")
		down := errors.New("down")
		s.fail(down)
		late := s.ring(t)
		wantOpen(t, late, sealed, Opened{}, down)
		s.fail(nil)
		wantOpen(t, late, sealed, Opened{Text: "text"}, nil)

		var other shelf
		stranger := seal(t, other.ring(t), "text")
		s.fail(down)
		wantOpen(t, late, stranger, Opened{}, down)
		wantOpen(t, late, sealed, Opened{Text: "text"}, nil)
		time.Sleep(time.Hour)
		wantOpen(t, late, sealed, Opened{Text: "text"}, nil) // and a reading in the background fails
	})
}

// Those who come after a flush find the key again as soon as one who knows it has been
// in use for a moment, and everybody agrees on what to seal with.
func TestAFlushedKeyIsPutBackByWhoKnowsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		web := s.ring(t)
		before := seal(t, web, "text")
		time.Sleep(time.Minute)
		seal(t, web, "text") // in use: a reading in the background
		synctest.Wait()
		s.flush()
		worker := s.ring(t)
		wantOpen(t, worker, before, Opened{}, ErrUnknownKey)
		mine := seal(t, worker, "text")
		wantOpen(t, web, mine, Opened{Text: "text"}, nil) // the search for it puts the old one back
		time.Sleep(readPause)
		wantOpen(t, worker, before, Opened{Text: "text"}, nil)
		wantOpen(t, s.ring(t), before, Opened{Text: "text"}, nil)
		if a, b := seal(t, web, "x"), seal(t, worker, "x"); a != b {
			t.Errorf("sealed differently: %s, %s", a, b)
		}

		s.flush()
		time.Sleep(refresh)
		seal(t, web, "text") // being in use is enough
		synctest.Wait()
		wantOpen(t, s.ring(t), before, Opened{Text: "text"}, nil)
	})
}

func TestAFloodOfUnknownKeysCostsOneLookASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s shelf
		r := s.ring(t)
		good := seal(t, r, "text")
		time.Sleep(time.Minute)
		before, began := s.count(), time.Now()
		var open sync.WaitGroup
		for i := range 100 {
			open.Go(func() {
				for j := range 10 {
					wantOpen(t, r, fmt.Sprintf("1.%016x.%016x.%s.text", i*1000+j, 0, strings.Repeat("A", macLen)), Opened{}, ErrUnknownKey)
				}
			})
		}
		open.Wait()
		took := time.Since(began)
		if n := s.count() - before; n > int(took/readPause)+1 {
			t.Errorf("%d readings in %s", n, took)
		}
		if took > 11*readPause {
			t.Errorf("ten in a row took %s", took)
		}
		// The same one again costs nothing for a second.
		before, began = s.count(), time.Now()
		for range 1000 {
			wantOpen(t, r, fmt.Sprintf("1.%016x.%016x.%s.text", 99009, 0, strings.Repeat("A", macLen)), Opened{}, ErrUnknownKey)
		}
		if n := s.count() - before; n > 2 || time.Since(began) > 2*readPause {
			t.Errorf("%d readings in %s for one unknown key", n, time.Since(began))
		}
		wantOpen(t, r, good, Opened{Text: "text"}, nil)
		if len(r.strangers) > maxStrangers {
			t.Errorf("%d unknown keys are remembered", len(r.strangers))
		}
	})
}

// A large header must not make each worker keep megabytes.
func TestALargeTextTakesNoMemory(t *testing.T) {
	var s shelf
	r := s.ring(t)
	good := seal(t, r, "text")
	var before, after runtime.MemStats
	large := good + strings.Repeat("x", 8<<20)
	runtime.ReadMemStats(&before)
	wantOpen(t, r, large, Opened{}, ErrMismatch)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("to verify a text of %d bytes takes %d", len(large), n)
	}
	for _, n := range []int{0, 1, 980, 981, 982, 983, 1023, 1024, 1025, 2048, 5000} {
		text := strings.Repeat("ab", n)[:n]
		h := hmac.New(sha256.New, []byte("key"))
		h.Write([]byte("head " + text))
		signer := signer{macs: &sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, []byte("key"))} }}}
		if got := signer.derive("head ", text); !bytes.Equal(got, h.Sum(nil)) {
			t.Errorf("%d bytes: the MAC differs from that of all of the text", n)
		}
	}
}

func TestAnUnknownKeyIsRememberedWithoutItsText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the reading for a key that is not known comes after a pause
		const size = 8 << 20
		var s, other shelf
		r := s.ring(t)
		heap := func() int64 {
			var m runtime.MemStats
			runtime.GC()
			runtime.GC() // the first leaves what is in pools
			runtime.ReadMemStats(&m)
			return int64(m.HeapAlloc)
		}
		stranger := seal(t, other.ring(t), "text")
		seal(t, r, "text")
		before := heap()
		wantOpen(t, r, stranger+strings.Repeat("x", size), Opened{}, ErrUnknownKey)
		if n := heap() - before; n > size/2 {
			t.Errorf("%d bytes are kept of a header of %d", n, size)
		}
		runtime.KeepAlive(r)
	})
}

func TestALookEndsWithItsCallerAndWithClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := NewRing(Config{Sources: [][]byte{nil}, Load: func(ctx context.Context, _ driver.SealKeysRequest) ([]driver.SealKey, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := r.Seal(ctx, "text"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Seal: %v", err)
		}
		go func() { time.Sleep(time.Minute); r.Close() }()
		if err := r.Ready(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("Ready while closing: %v", err)
		}
		r.Wait()
		if err := r.Ready(t.Context()); !errors.Is(err, context.Canceled) {
			t.Errorf("Ready after Close: %v", err)
		}
	})
}

// Processes that share the store's keys derive the same bytes, and those with another secret do not.
func TestDerive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s, other shelf
		derive := func(cfg Config, text string) string {
			r := NewRing(cfg)
			defer r.Wait()
			defer r.Close()
			got, err := r.Derive(t.Context(), text)
			if err != nil || len(got) != 32 {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			return string(got)
		}
		of := func(s *shelf, sources ...[]byte) Config {
			return Config{Load: s.load, Sources: sources, Where: func() string { return "here" }}
		}
		secret := []byte("0123456789abcdef")
		first := derive(of(&s, nil), "call")
		if derive(of(&s, nil), "call") != first {
			t.Error("two processes derive different bytes")
		}
		if derive(of(&s, secret), "call") != derive(of(&other, secret), "call") {
			t.Error("a secret of one's own does not count")
		}
		for name, got := range map[string]string{
			"another text": derive(of(&s, nil), "call2"), "another store": derive(of(&other, nil), "call"), "a secret": derive(of(&s, secret), "call"),
		} {
			if got == first {
				t.Errorf("%s: the same bytes", name)
			}
		}
		s.err = errors.New("down")
		r := NewRing(of(&s, nil))
		defer r.Wait()
		defer r.Close()
		if _, err := r.Derive(t.Context(), "call"); !errors.Is(err, s.err) {
			t.Errorf("without the store: %v", err)
		}
	})
}
