package spec_test

import (
	"testing"
	"time"
)

func BenchmarkSpec(b *testing.B) {
	at := time.Date(2025, 10, 26, 0, 30, 0, 0, time.UTC) // during a change
	for _, bench := range []struct{ name, spec string }{
		{"minutes", "TZ=Europe/Berlin */5 * * * *"},
		{"daily", "TZ=Europe/Berlin 30 2 * * *"},
		{"monthly", "TZ=Europe/Berlin 30 2 1 * *"},
		{"leap day", "TZ=Europe/Berlin 0 0 29 2 *"},
		{"never", "TZ=Europe/Berlin 0 0 30 2 *"},
		{"every", "@every 1m"},
	} {
		s := parse(b, bench.spec)
		b.Run("next/"+bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Next(at)
			}
		})
		b.Run("prev/"+bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Prev(at)
			}
		})
		b.Run("parse/"+bench.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				parse(b, bench.spec)
			}
		})
	}
}
