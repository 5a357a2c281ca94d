package ministore

import (
	"context"

	"github.com/joblock/toolkit/joblock/driver"
)

// Admit implements driver.Store. A driver.Rate knows what each request does.
func (s *Store) Admit(ctx context.Context, reqs []driver.AdmitRequest) ([]driver.AdmitReply, error) {
	now, err := s.enter(ctx)
	if err != nil {
		return make([]driver.AdmitReply, len(reqs)), err
	}
	defer s.exit()
	replies := make([]driver.AdmitReply, len(reqs))
	for i, req := range reqs {
		if s.rates[req.Key] == nil {
			s.rates[req.Key] = new(driver.Rate)
		}
		replies[i] = s.rates[req.Key].Admit(now, req)
	}
	return replies, nil
}
