package measure

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
	"github.com/joblock/toolkit/bench/internal/rig"
)

// Bench is a server to measure against, and how much to do.
type Bench struct {
	Server  *rig.Server
	Program string // of which clusters are started
	Scale   Scale

	// Other is the checkout to measure this one against, nil for none.
	Other *Other

	// Progress hears in a few words what is being measured. It may be nil.
	Progress func(what string)
}

// Measurement makes one section of the report.
type Measurement struct {
	Name  string // of the section
	Aimed bool   // Aims has some of it
	Run   func(context.Context) (*report.Section, error)
}

// Measurements returns all there are, in the order of the report.
func (b *Bench) Measurements() []Measurement {
	all := []Measurement{
		{"uncontended", true, b.uncontended},
		{"against", true, b.against},
		{"handover", true, b.handover},
		{"waiting", false, b.waiting},
		{"order", false, b.order},
		{"renewal", false, b.renewal},
		{"enqueue", true, b.enqueue},
		{"jobs", true, b.jobs},
		{"work", false, b.work},
		{"succession", true, b.succession},
		{"lines", true, b.lines},
		{"slots", true, b.slots},
		{"memos", true, b.memos},
		{"records", true, b.records},
		{"walks", true, b.walks},
		{"operator", true, b.operator},
		{"fleet", true, b.fleet},
		{"growth", false, b.growth},
		{"cluster", true, b.cluster},
	}
	if b.Other == nil {
		all = slices.DeleteFunc(all, func(m Measurement) bool { return m.Name == "against" })
	}
	return all
}

const (
	// leaseTTL is long enough that no renewal comes into a measurement that is
	// not about renewals.
	leaseTTL = time.Minute

	// patience ends a wait for a lock that will not come: a hang is an error. It
	// is also what redislock waits at the most, which needs to be told.
	patience = 2 * time.Minute
)

// say reports progress.
func (b *Bench) say(format string, args ...any) {
	if b.Progress != nil {
		b.Progress(fmt.Sprintf(format, args...))
	}
}

// eachRound runs f once per round and subject on an empty server, the subjects
// in an order that moves on by one every round.
func eachRound[S any](ctx context.Context, b *Bench, rounds int, subjects []S, f func(round int, subject S) error) error {
	for round := range rounds {
		for i := range subjects {
			subject := subjects[(i+round)%len(subjects)]
			if err := b.Server.Flush(ctx); err != nil {
				return err
			}
			if err := f(round, subject); err != nil {
				return fmt.Errorf("round %d, %v: %w", round+1, subject, err)
			}
		}
	}
	return nil
}

// withPeer opens a library for f and closes it.
func (b *Bench) withPeer(name peer.Name, ttl time.Duration, f func(peer.Peer, *rig.Wire) error) error {
	wire := new(rig.Wire)
	p, err := peer.Open(name, peer.Options{Addr: b.Server.Addr(), Wire: wire, TTL: ttl, Again: b.Scale.Again})
	if err != nil {
		return err
	}
	err = f(p, wire)
	if cerr := p.Close(); err == nil {
		err = cerr
	}
	return err
}
