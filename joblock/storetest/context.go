package storetest

import (
	"context"
	"errors"

	"github.com/joblock/toolkit/joblock/driver"
)

var contextCases = []testCase{
	{"a call under an ended context is an error and changes nothing", func(k *kit) {
		h := k.hold("key", "me")
		before := k.inspect("key")
		ctx, cancel := context.WithCancel(k.ctx)
		cancel()
		term := byFence("key", "me", h.fence)
		for call, do := range map[string]func() error{
			"Acquire": func() error { _, err := k.Store.Acquire(ctx, k.acquireReq("other", "me")); return err },
			"Take": func() error {
				_, err := k.Store.Take(ctx, []driver.TakeRequest{k.takeReq("other", "me", "q/job")})
				return err
			},
			"Resume": func() error {
				_, err := k.Store.Resume(ctx, []driver.ResumeRequest{k.resumeReq("key", "me", "")})
				return err
			},
			"Park": func() error {
				_, err := k.Store.Park(ctx, []driver.ParkRequest{k.parkReq(term, "q/job")})
				return err
			},
			"Renew": func() error {
				_, err := k.Store.Renew(ctx, []driver.RenewRequest{k.renewReq(term)})
				return err
			},
			"Release": func() error {
				_, err := k.Store.Release(ctx, []driver.ReleaseRequest{k.releaseReq(term)})
				return err
			},
			"Reserve": func() error {
				_, err := k.Store.Reserve(ctx, []driver.ReserveRequest{k.reserveReq("key", "q/job")})
				return err
			},
			"Due": func() error { _, err := k.Store.Due(ctx, driver.DueRequest{Limit: 10, Claim: long}); return err },
			"Settle": func() error {
				return k.Store.Settle(ctx, []driver.Settlement{{Entry: driver.Entry{Key: "key", Job: "q/job", Mark: 1}}})
			},
			"Entries": func() error { _, err := k.Store.Entries(ctx, driver.EntriesRequest{Count: 10}); return err },
			"SealKeys": func() error {
				_, err := k.Store.SealKeys(ctx, driver.SealKeysRequest{Fresh: [driver.SealKeyBytes]byte{1}})
				return err
			},
			"Admit": func() error {
				_, err := k.Store.Admit(ctx, []driver.AdmitRequest{k.startReq("key", "q/job")})
				return err
			},
			"Inspect": func() error {
				_, err := k.Store.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}})
				return err
			},
			"List": func() error { _, err := k.Store.List(ctx, driver.ListRequest{Count: 10}); return err },
		} {
			if err := do(); !errors.Is(err, context.Canceled) {
				k.Errorf("%s: error %v, want context.Canceled", call, err)
			}
		}
		k.unchanged("a cancelled call", before)
		k.wantState("other", driver.StateFree)
		if keys := k.sealKeys(2); keys[0].Secret != secretOf(2) {
			k.Error("a cancelled call has made a seal key")
		}
	}},
}
