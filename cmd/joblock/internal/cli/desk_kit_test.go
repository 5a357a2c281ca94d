package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// office is what the tests of the operators' commands have: a Redis, locks in it, and asynq.
type office struct {
	*testing.T
	redis *redistest.Server
	locks *joblock.Locker
	tasks *asynq.Client
}

func newOffice(t *testing.T) *office {
	t.Helper()
	o := &office{T: t, redis: redistest.Start(t)}
	rdb := o.redis.Client(t)
	// A record of a free key lasts for twice CallTimeout, and a busy machine may take long to come and look.
	locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), &joblock.Config{Holder: "web-1:77", CallTimeout: patience, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close(context.Background()) })
	o.locks, o.tasks = locks, asynq.NewClientFromRedisClient(rdb)
	return o
}

// acquire takes the lock on key. The lock ends with the test.
func (o *office) acquire(key string, opts ...joblock.AcquireOption) *joblock.Lock {
	o.Helper()
	lock, err := o.locks.TryAcquire(o.Context(), key, opts...)
	testkit.WantNil(o.T, "TryAcquire", err)
	return lock
}

// until waits until ok is true.
func (o *office) until(what string, ok func() bool) {
	o.Helper()
	(&stage{T: o.T}).until(what, ok)
}

// park hands the lock on key over to a job.
func (o *office) park(key, job string) joblock.Token {
	o.Helper()
	token, err := o.acquire(key).Park(o.Context(), joblock.ForJob(job))
	testkit.WantNil(o.T, "Park", err)
	return token
}

// result is what a command has done.
type result struct {
	code           int
	stdout, stderr string
}

// call runs a command in this process, with the Redis of the office.
func (o *office) call(args ...string) result {
	o.Helper()
	return call(append([]string{"--redis", "redis://" + o.redis.Addr(), patiently}, args...)...)
}

// call runs a command in this process.
func call(args ...string) result {
	var stdout, stderr bytes.Buffer
	code := Main(append([]string{"joblock"}, args...), strings.NewReader(""), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// ok runs a command that ends with 0, and returns its standard output.
func (o *office) ok(args ...string) string {
	o.Helper()
	r := o.call(args...)
	if r.code != exitOK {
		o.Fatalf("joblock %q ended with %d: %s", args, r.code, r.stderr)
	}
	return r.stdout
}

// fails runs a command that ends with the given code and says the given text.
func (o *office) fails(code int, says string, args ...string) {
	o.Helper()
	if r := o.call(args...); r.code != code || !strings.Contains(r.stderr, says) {
		o.Errorf("joblock %q ended with %d and said %q, want %d and %q", args, r.code, r.stderr, code, says)
	}
}

const schemaDir = "../../schema"

// schemaOf returns the schema in a file of schemaDir.
func schemaOf(t *testing.T, name string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	files, err := fs.Glob(os.DirFS(schemaDir), "*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := os.Open(filepath.Join(schemaDir, file))
		if err != nil {
			t.Fatal(err)
		}
		doc, err := jsonschema.UnmarshalJSON(f)
		if err := errors.Join(err, f.Close(), c.AddResource(file, doc)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantJSON checks text against the schema in a file of schemaDir, and reads text into v.
func wantJSON(t *testing.T, schema, text string, v any) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if err := schemaOf(t, schema).Validate(doc); err != nil {
		t.Errorf("%v\nin %s", err, text)
	}
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

// wantLines is wantJSON for each line of text.
func wantLines(t *testing.T, schema, text string) (n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		var v any
		wantJSON(t, schema, line, &v)
		n++
	}
	return n
}
