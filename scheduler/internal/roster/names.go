package roster

import (
	"encoding/json"
	"fmt"
	"maps"

	"github.com/joblock/toolkit/scheduler/internal/codec"
)

const (
	// Pages is the number of pages, which never changes. A memo has 64 KiB, so there is room for 16,000 names of 128
	// bytes, or for 60,000 names of usual length.
	Pages = 32

	// Fresh is the number of days for which a name need not be added again.
	Fresh = 7

	keptDays = 366 + Fresh // a ledger is kept for 366 days after the last write, by a node that keeps the name fresh
	version  = 1
)

// Names is a page of the names of jobs.
type Names struct {
	Version int              `json:"v"`
	Jobs    map[string]int64 `json:"jobs"` // the day on which a node with the job last added the name, counted from 1970
}

// Page returns the number of the page for the name of a job.
func Page(name string) int { return int(codec.Hash(name) % Pages) }

// DecodeNames reads a memo. An empty memo has no names. In the result, Jobs is never nil.
func DecodeNames(memo []byte) (Names, error) {
	n := Names{Version: version}
	err := decode(memo, &n, &n.Version, "list of jobs")
	if n.Jobs == nil {
		n.Jobs = make(map[string]int64)
	}
	return n, err
}

// Encode returns the memo that DecodeNames reads.
func (n Names) Encode() []byte { return codec.Encode(n) }

// Has reports whether name is in n, and was added recently enough that Add may leave it out on the given day.
func (n Names) Has(name string, day int64) bool {
	added, ok := n.Jobs[name]
	return ok && day < added+Fresh
}

// Add adds names, and removes the names of jobs that no longer have a ledger.
func (n Names) Add(names []string, day int64) {
	maps.DeleteFunc(n.Jobs, func(_ string, added int64) bool { return day > added+keptDays })
	for _, name := range names {
		n.Jobs[name] = day
	}
}

// decode reads JSON into out, whose version is then at v. what is for the error.
func decode(memo []byte, out any, v *int, what string) error {
	if len(memo) == 0 {
		return nil
	}
	if err := json.Unmarshal(memo, out); err != nil {
		return fmt.Errorf("scheduler: the %s cannot be read: %w", what, err)
	}
	if *v != version {
		return fmt.Errorf("scheduler: the %s has version %d, this node knows %d", what, *v, version)
	}
	return nil
}
