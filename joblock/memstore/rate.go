package memstore

import (
	"context"
	"maps"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// rates has the rate of each key.
type rates struct {
	keys    map[string]*driver.Rate
	sweepAt int // number of keys at which Admit drops those that have expired
}

// Admit implements driver.Store. The batch is one atomic step.
func (s *store) Admit(ctx context.Context, reqs []driver.AdmitRequest) ([]driver.AdmitReply, error) {
	at, err := s.enter(ctx)
	if err != nil {
		return make([]driver.AdmitReply, len(reqs)), err
	}
	defer s.mu.Unlock()
	now := time.UnixMicro(at.us)
	replies := make([]driver.AdmitReply, len(reqs))
	for i, req := range reqs {
		replies[i] = s.rates.of(req.Key, now).Admit(now, req)
	}
	return replies, nil
}

// of returns the rate of key.
func (r *rates) of(key string, now time.Time) *driver.Rate {
	if rate := r.keys[key]; rate != nil {
		return rate
	}
	if r.keys == nil {
		r.keys = make(map[string]*driver.Rate)
	}
	if len(r.keys) >= max(sweepMin, r.sweepAt) {
		maps.DeleteFunc(r.keys, func(_ string, rate *driver.Rate) bool { return !now.Before(rate.Expires(now)) })
		r.sweepAt = 2 * len(r.keys)
	}
	rate := new(driver.Rate)
	r.keys[key] = rate
	return rate
}
