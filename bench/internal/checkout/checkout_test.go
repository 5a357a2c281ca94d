package checkout

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/joblock/toolkit/bench/internal/rig"
)

func TestDriverOfACheckout(t *testing.T) {
	dir, err := Here(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := entries(t, dir)
	program := filepath.Join(t.TempDir(), "driver")
	if err := Build(t.Context(), dir, program); err != nil {
		t.Fatal(err)
	}
	if after := entries(t, dir); after != before {
		t.Errorf("the checkout holds %s, and held %s before", after, before)
	}
	t.Run("does pairs", func(t *testing.T) { driverDoesPairs(t, program) })
	t.Run("tells of errors", func(t *testing.T) { driverTellsOfErrors(t, program) })
}

func driverDoesPairs(t *testing.T, program string) {
	ctx := t.Context()
	srv, err := rig.Start(ctx, rig.DefaultProgram)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := srv.Stop(); err != nil {
			t.Error(err)
		}
	}()
	d, err := Start(ctx, program, srv.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, goroutines := range []int{1, 4} {
		a, err := d.Do(Order{Prefix: "p", Keys: 8, Pairs: 16, Goroutines: goroutines})
		if err != nil || a.Elapsed <= 0 || a.CPU <= 0 {
			t.Errorf("%d goroutines: %+v, %v", goroutines, a, err)
		}
	}
	u, err := srv.Usage(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n := u.Of("evalsha").Number; n < 64 {
		t.Errorf("the server has run %d scripts for 32 pairs", n)
	}
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	if _, err := d.Do(Order{}); err == nil {
		t.Error("a driver that was stopped takes an order")
	}
}

func driverTellsOfErrors(t *testing.T, program string) {
	d, err := Start(t.Context(), program, "127.0.0.1:1") // where nobody listens
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Do(Order{Prefix: "p", Keys: 1, Pairs: 1, Goroutines: 1}); err == nil {
		t.Error("no error")
	}
	if err := d.Stop(); err != nil {
		t.Error(err)
	}
}

func TestOnlyACheckoutIsBuilt(t *testing.T) {
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "go.mod"), []byte("module example.org/other\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{other: "want a checkout", filepath.Join(other, "none"): "none"} {
		err := Build(t.Context(), dir, filepath.Join(other, "driver"))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", dir, err, want)
		}
	}
	if got := Describe(t.Context(), other); got != "unknown" {
		t.Errorf("the commit of no repository is %q", got)
	}
}

// entries returns the names in a directory.
func entries(t *testing.T, dir string) string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
