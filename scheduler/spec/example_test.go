package spec_test

import (
	"fmt"
	"time"

	"github.com/joblock/toolkit/scheduler/spec"
)

func ExampleParse() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		panic(err)
	}
	for _, text := range []string{"0/15 9-17 * * mon-fri", "TZ=Asia/Tokyo @daily", "@every 90s", "0 25 * * *"} {
		s, err := spec.Parse(text, berlin)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(s)
	}
	// Output:
	// CRON_TZ=Europe/Berlin */15 9-17 * * 1-5
	// CRON_TZ=Asia/Tokyo 0 0 * * *
	// @every 1m30s
	// spec "0 25 * * *": hour is "25", must be 0 to 23
}

// On 30 March 2025 there is no half past two in Berlin, on 26 October there are two.
func ExampleSpec_Next() {
	daily, err := spec.Parse("CRON_TZ=Europe/Berlin 30 2 * * *", nil)
	if err != nil {
		panic(err)
	}
	for _, day := range []time.Time{
		time.Date(2025, 3, 29, 12, 0, 0, 0, time.UTC),
		time.Date(2025, 10, 25, 12, 0, 0, 0, time.UTC),
	} {
		first := daily.Next(day)
		second := daily.Next(first)
		fmt.Println(first.In(daily.Zone()).Format(time.RFC850))
		fmt.Println(second.In(daily.Zone()).Format(time.RFC850))
	}
	// Output:
	// Sunday, 30-Mar-25 03:00:00 CEST
	// Monday, 31-Mar-25 02:30:00 CEST
	// Sunday, 26-Oct-25 02:30:00 CEST
	// Monday, 27-Oct-25 02:30:00 CET
}

func ExampleSpec_Words() {
	for _, text := range []string{
		"CRON_TZ=Europe/Berlin 0 3 * * 5L",
		"*/5 9-17 * * mon-fri; except 12-24..01-02",
		"@every 6h offset 10m",
	} {
		s, err := spec.Parse(text, nil)
		if err != nil {
			panic(err)
		}
		fmt.Println(s.Words())
	}
	// Output:
	// at 03:00 on the last Friday of each month, Europe/Berlin
	// every 5 minutes from 09:00 to 17:59 from Monday to Friday, UTC, except 24 December to 2 January
	// every 6 hours, from 00:10 UTC
}

func ExampleSpec_Forecast() {
	s, err := spec.Parse("CRON_TZ=Europe/Berlin 30 2 * * *", nil)
	if err != nil {
		panic(err)
	}
	for _, f := range s.Forecast(time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC), 3) {
		fmt.Printf("%s %q\n", f.At.Format("2 Jan 15:04 MST"), f.Note)
	}
	// Output:
	// 28 Mar 02:30 CET ""
	// 29 Mar 03:00 CEST "the clock goes from 02:00 to 03:00: the tick of 02:30 comes at 03:00"
	// 30 Mar 02:30 CEST ""
}
