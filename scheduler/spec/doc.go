// Package spec parses cron specs and computes when they tick. It has no clock, no state and no dependencies. Package
// scheduler uses package spec. Programs can use it to check a spec, or to show when a spec ticks next.
//
// # Syntax
//
//	30 2 * * 1-5           minute, hour, day of month, month, day of week
//	*/10 30 2 * * 1-5      six fields: second, minute, hour, day of month, month, day of week
//	@hourly @daily (or @midnight) @weekly @monthly @yearly (or @annually)
//	@every 1m30s           the multiples of a period since 1970-01-01 00:00:00 UTC
//
// A field is a comma-separated list of values, ranges and steps:
//
//	0,30       two values
//	9-17       a range
//	*/5        every fifth value
//	10-40/10   every tenth value of a range
//	5/20       every twentieth value from 5 to the end
//	* or ?     all values: the field is not restricted
//
// Months and days of the week also have names: the first three letters in English. Sunday is 0 or 7. At the end of a
// range sun is 7, so sat-sun is 6-7.
//
// A day must match both day of month and day of week. If both fields are restricted, one match is enough. A step such
// as */2 restricts its field.
//
// The period of @every is a whole number of seconds, from 1 s to 366 days (8784h).
//
// # Zones
//
// A spec is read in the zone that is passed to [Parse]. A spec can begin with a zone of its own, which overrides the
// passed zone: "CRON_TZ=Europe/Berlin 30 2 * * *". TZ= means the same as CRON_TZ=. @every ignores the zone.
//
// Parse refuses a zone without a name and the zone Local, because such a zone may differ between nodes. Parse refuses
// zones more than 26 hours from UTC. Zones come from the system's database; where there is none, import time/tzdata.
//
// # Clock changes
//
// When the wall clock changes, the hour field decides what happens.
//
// With every hour (*, 0-23) the spec is a rhythm. It ticks whenever the wall clock shows a matching time. An hour that
// the clock shows twice has its ticks twice. An hour that the clock skips has no ticks. So a rhythm keeps its pace in
// elapsed time.
//
// With fewer hours the spec names times of day. Each time of day ticks once on every day, when the wall clock first
// reaches or passes the time. A time that the clock shows twice ticks the first time. All matching times in a gap tick
// together, at the first instant after the gap. A gap may last a whole day: Pacific/Apia had no 30 December 2011.
//
// In Europe/Berlin the clock goes from 02:00 to 03:00 on one day of the year, and from 03:00 back to 02:00 on another.
// An s marks summer time:
//
//	spec          hours  on the first day                on the second day
//	0 * * * *     all    01:00 03:00s 04:00s             01:00s 02:00s 02:00 03:00
//	*/30 * * * *  all    01:00 01:30 03:00s 03:30s       01:30s 02:00s 02:30s 02:00 02:30 03:00
//	30 2 * * *    named  03:00s                          02:30s
//	30 1,2 * * *  named  01:30 03:00s                    01:30s 02:30s
//	*/15 2 * * *  named  03:00s                          02:00s 02:15s 02:30s 02:45s
//	0 1-5 * * *   named  01:00 03:00s 04:00s 05:00s      01:00s 02:00s 03:00 04:00 05:00
//	0 */2 * * *   named  00:00 03:00s 04:00s 06:00s      00:00s 02:00s 04:00 06:00
//
// The minute field does not matter: whether 0,30 means two times of day or a rhythm would be a guess. In a zone that
// moves by half an hour (Australia/Lord_Howe), the step of an hourly rhythm across the change takes 30 or 90 minutes.
package spec
