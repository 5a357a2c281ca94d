//go:build unix

package fencing

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	_ "github.com/lib/pq"
	_ "github.com/ncruces/go-sqlite3/driver"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/joblocktest"
)

// The tests run on SQLite, and on PostgreSQL where it is installed.
func TestDatabases(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) *sql.DB{
		"sqlite": func(t *testing.T) *sql.DB {
			return open(t, "sqlite3", "file:"+filepath.Join(t.TempDir(), "test.db")+"?_pragma=busy_timeout(30000)&_txlock=immediate")
		},
		"postgres": func(t *testing.T) *sql.DB { return open(t, "postgres", postgres(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := open(t)
			t.Run("the paused holder overwrites no row", func(t *testing.T) { overwritesNoRow(t, db) })
			t.Run("transactions of two holders", func(t *testing.T) { transactions(t, db) })
		})
	}
}

func open(t *testing.T, driver, source string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if _, err := db.ExecContext(t.Context(), Schema); err != nil {
		t.Fatal(err)
	}
	return db
}

// postgres starts a PostgreSQL of the test's own, on a socket in a directory of its own, and returns its address.
func postgres(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		t.Skip("PostgreSQL is not installed; apt-get install postgresql")
	}
	bin := filepath.Dir(found[len(found)-1])
	dir, err := os.MkdirTemp("", "fencing") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(filepath.Join(bin, name), args...)
		if os.Geteuid() == 0 { // which PostgreSQL refuses
			if err := exec.Command("chown", "-R", "daemon", dir).Run(); err != nil {
				t.Skip("root, and no chown: ", err)
			}
			cmd = exec.Command("runuser", append([]string{"-u", "daemon", "--", filepath.Join(bin, name)}, args...)...)
		}
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
	}
	data := filepath.Join(dir, "data")
	run("initdb", "-D", data, "-U", "tester", "-A", "trust", "--no-sync")
	run("pg_ctl", "-D", data, "-w", "-l", filepath.Join(dir, "log"),
		"-o", "-c listen_addresses='' -c fsync=off -c unix_socket_directories="+dir, "start")
	t.Cleanup(func() { run("pg_ctl", "-D", data, "-m", "immediate", "stop") })
	return "host=" + dir + " user=tester dbname=postgres sslmode=disable"
}

// twoHolders returns the fences of two holders of one lock: the first was paused, lost the lock, and does not know yet.
func twoHolders(t *testing.T) (paused, present int64) {
	t.Helper()
	k := joblocktest.New(t, nil)
	key := joblock.Key("balance", "acct-7")
	first, err := k.Locks.TryAcquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	k.Lose(key)
	second, err := k.Locks.Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return first.Fence(), second.Fence()
}

func overwritesNoRow(t *testing.T, db *sql.DB) {
	paused, present := twoHolders(t)
	ctx := t.Context()
	balance := func() (amount int64) {
		t.Helper()
		if err := db.QueryRowContext(ctx, `SELECT amount FROM balances WHERE account = 'acct-7'`).Scan(&amount); err != nil {
			t.Fatal(err)
		}
		return amount
	}
	for _, step := range []struct {
		amount, fence int64
		want          error
	}{
		{100, paused, nil}, // before the pause
		{250, present, nil},
		{101, paused, ErrFenced}, // after the pause
		{260, present, nil},      // the present holder goes on
	} {
		if err := SetBalance(ctx, db, "acct-7", step.amount, step.fence); !errors.Is(err, step.want) {
			t.Errorf("write %d: %v, want %v", step.amount, err, step.want)
		}
	}
	if got := balance(); got != 260 {
		t.Errorf("balance %d", got)
	}
	// What happens without the comparison.
	if _, err := db.ExecContext(ctx, `UPDATE balances SET amount = 101 WHERE account = 'acct-7'`); err != nil {
		t.Fatal(err)
	}
	if got := balance(); got != 101 {
		t.Errorf("without a fence the balance is %d: the test shows no race", got)
	}
}

// Both holders work at the same time, in transactions of two writes. Whichever is first, all of the present one is there
// in the end, and if the paused one came second, nothing of it ever was.
func transactions(t *testing.T, db *sql.DB) {
	paused, present := twoHolders(t)
	ctx := t.Context()
	transfer := func(fence int64, amount int64) error {
		return Fenced(ctx, db, "ledger", fence, func(tx *sql.Tx) error {
			for _, account := range []string{"a", "b"} {
				if _, err := tx.ExecContext(ctx, `
					INSERT INTO balances (account, amount, fence) VALUES ($1, $2, 0)
					ON CONFLICT (account) DO UPDATE SET amount = excluded.amount`, account, amount); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for round := range 10 {
		if _, err := db.ExecContext(ctx, `DELETE FROM fences`); err != nil {
			t.Fatal(err)
		}
		var both sync.WaitGroup
		errs := make([]error, 2)
		both.Go(func() { errs[0] = transfer(paused, -1) })
		both.Go(func() { errs[1] = transfer(present, int64(round)) })
		both.Wait()
		if errs[1] != nil || errs[0] != nil && !errors.Is(errs[0], ErrFenced) {
			t.Fatalf("paused: %v; present: %v", errs[0], errs[1])
		}
		rows, err := db.QueryContext(ctx, `SELECT amount FROM balances WHERE account IN ('a', 'b')`)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for rows.Next() {
			var amount int64
			if err := rows.Scan(&amount); err != nil || amount != int64(round) {
				t.Errorf("round %d: amount %d, %v", round, amount, err)
			}
			n++
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil || n != 2 {
			t.Errorf("%d rows, %v", n, err)
		}
	}
	if err := transfer(paused, -1); !errors.Is(err, ErrFenced) {
		t.Errorf("the paused holder comes second: %v", err)
	}
}

// bucket is a stand-in for an object store with conditional writes.
type bucket struct {
	mu     sync.Mutex // guards what follows
	body   []byte
	fence  string
	before func() // called before a write is looked at, once
}

func (b *bucket) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	before := b.before
	if r.Method == http.MethodPut {
		b.before = nil
	}
	b.mu.Unlock()
	if r.Method == http.MethodPut && before != nil {
		before()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	etag := fmt.Sprintf(`"%x"`, sha256.Sum256([]byte(b.fence+string(b.body))))
	switch {
	case r.Method == http.MethodHead && b.body == nil:
		w.WriteHeader(http.StatusNotFound)
	case r.Method == http.MethodHead:
		w.Header().Set("ETag", etag)
		w.Header().Set("X-Amz-Meta-Fence", b.fence)
	case r.Header.Get("If-None-Match") == "*" && b.body != nil, r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != etag:
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		b.body, b.fence = body, r.Header.Get("X-Amz-Meta-Fence")
	}
}

func TestThePausedHolderOverwritesNoObject(t *testing.T) {
	t.Parallel()
	paused, present := twoHolders(t)
	b := &bucket{}
	store := httptest.NewServer(b)
	defer store.Close()
	put := func(body string, fence int64) error {
		return Put(context.WithoutCancel(t.Context()), store.Client(), store.URL+"/export.csv", []byte(body), fence)
	}
	if err := put("one", paused); err != nil {
		t.Fatal(err)
	}
	// The present holder writes between the look and the write of the paused one.
	b.before = func() {
		if err := put("two", present); err != nil {
			t.Error(err)
		}
	}
	if err := put("old", paused); !errors.Is(err, ErrFenced) {
		t.Errorf("the paused holder: %v", err)
	}
	if err := put("three", present); err != nil || string(b.body) != "three" {
		t.Errorf("the present holder: %v, %q", err, b.body)
	}
}

func TestThePausedHolderOverwritesNoFile(t *testing.T) {
	paused, present := twoHolders(t)
	path := filepath.Join(t.TempDir(), "export.csv")
	for _, step := range []struct {
		body  string
		fence int64
		want  error
	}{{"one", paused, nil}, {"two", present, nil}, {"old", paused, ErrFenced}, {"three", present, nil}} {
		if err := WriteFile(path, []byte(step.body), step.fence); !errors.Is(err, step.want) {
			t.Errorf("write %q: %v, want %v", step.body, err, step.want)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "three" {
		t.Errorf("%q, %v", got, err)
	}
	for round := range int64(200) { // two at the same time
		var writers sync.WaitGroup
		for _, fence := range []int64{present + 2*round + 1, present + 2*round} {
			writers.Go(func() { _ = WriteFile(path, fmt.Append(nil, fence), fence) })
		}
		writers.Wait()
		if got, err := os.ReadFile(path); err != nil || string(got) != fmt.Sprint(present+2*round+1) {
			t.Fatalf("round %d: %q, %v", round, got, err)
		}
	}
}
