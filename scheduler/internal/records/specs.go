package records

import (
	"sync"

	"github.com/joblock/toolkit/scheduler/spec"
)

// maxParsed bounds Specs. Specs in ledgers differ from those of a node only during deploys.
const maxParsed = 1000

// Specs parses specs, and caches the results, because loading a zone takes long. The zero Specs is ready for use.
type Specs struct {
	mu     sync.Mutex
	parsed map[string]spec.Spec
}

// Parse parses a spec whose text names its zone.
func (s *Specs) Parse(text string) (spec.Spec, error) {
	s.mu.Lock()
	parsed, ok := s.parsed[text]
	s.mu.Unlock()
	if ok {
		return parsed, nil
	}
	parsed, err := spec.Parse(text, nil)
	if err != nil {
		return parsed, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parsed == nil || len(s.parsed) >= maxParsed {
		s.parsed = make(map[string]spec.Spec)
	}
	s.parsed[text] = parsed
	return parsed, nil
}
