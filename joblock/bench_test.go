package joblock_test

import (
	"testing"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/memstore"
)

// What this package adds to the cost of a store.

func benchLocker(b *testing.B) *joblock.Locker {
	b.Helper()
	locks, err := joblock.New(memstore.New(&memstore.Config{Silent: true}), nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = locks.Close(b.Context()) })
	return locks
}

func BenchmarkAcquireRelease(b *testing.B) {
	locks := benchLocker(b)
	b.ReportAllocs()
	for b.Loop() {
		lock, err := locks.TryAcquire(b.Context(), "key")
		if err != nil {
			b.Fatal(err)
		}
		if err := lock.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParkResume(b *testing.B) {
	locks := benchLocker(b)
	lock, err := locks.TryAcquire(b.Context(), "key")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		token, err := lock.Park(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		if lock, err = locks.Resume(b.Context(), token); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRenew(b *testing.B) {
	locks := benchLocker(b)
	lock, err := locks.TryAcquire(b.Context(), "key")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := lock.Renew(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
