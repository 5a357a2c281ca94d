package memstore

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/joblock/toolkit/joblock/driver"
)

// SealKeys implements driver.Store.
func (s *Store) SealKeys(ctx context.Context, req driver.SealKeysRequest) ([]driver.SealKey, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for _, known := range req.Known {
		has := func(k driver.SealKey) bool { return k.Secret == known.Secret }
		if !slices.ContainsFunc(s.seals, has) {
			s.seals = append(s.seals, known)
		}
	}
	if len(s.seals) == 0 {
		s.seals = []driver.SealKey{{Secret: req.Fresh, Since: now.time()}}
	}
	slices.SortFunc(s.seals, func(a, b driver.SealKey) int {
		return cmp.Or(a.Since.Compare(b.Since), bytes.Compare(a.Secret[:], b.Secret[:]))
	})
	s.seals = s.seals[max(0, len(s.seals)-driver.MaxSealKeys):]
	return slices.Clone(s.seals), nil
}
