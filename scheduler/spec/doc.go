// Package spec parses cron specs and computes when they tick. It has no clock, no state and no dependencies. Package
// scheduler uses it. Programs can use it to check a spec, to say in English what a spec means ([Spec.Words]), and to
// list the coming ticks with what clock changes do to them ([Spec.Forecast]).
//
// # Syntax
//
//	30 2 * * 1-5           minute, hour, day of month, month, day of week
//	*/10 30 2 * * 1-5      six fields: second, minute, hour, day of month, month, day of week
//	@hourly @daily (or @midnight) @weekly @monthly @yearly (or @annually)
//	@every 1m30s           the multiples of a period since 1970-01-01 00:00:00 UTC
//	@every 6h offset 10m   ten minutes after these multiples: 00:10, 06:10, 12:10 and 18:10 UTC
//
// A field is a comma-separated list of values, ranges and steps:
//
//	0,30       two values
//	9-17       a range
//	22-2       a range that wraps: 22, 23, 0, 1, 2; also fri-mon, nov-feb, 25-5
//	*/5        every fifth value
//	10-40/10   every tenth value of a range
//	5/20       every twentieth value from 5 to the end
//	* or ?     all values: the field is not restricted
//
// Months and days of the week also have names: the first three letters in English. Sunday is 0 or 7. Case does not
// matter.
//
// The two fields of days also have days that depend on the month. A weekday is one of Monday to Friday.
//
//	field         example      meaning
//	day of month  L            the last day
//	day of month  L-3          three days before the last day; from L-1 to L-30
//	day of month  15W          the weekday nearest to day 15, in the same month; no day if the month has no such day
//	day of month  LW           the last weekday
//	day of week   5L, friL     the last Friday
//	day of week   5#3, fri#3   the third Friday; from #1 to #5
//
// A day must match both day of month and day of week. If both fields are restricted, one match is enough. A step such
// as */2 restricts its field, and so does L.
//
// The period of @every is a whole number of seconds, from 1 s to 366 days (8784h). The offset is a whole number of
// seconds, at least 0 and less than the period. It is a word because plus and slash have other meanings: a duration can
// begin with +, and in a field a slash is a step.
//
// # Several rules, begin, end, and days to leave out
//
// Semicolons separate up to 32 rules. A spec with several rules ticks when any rule does. If several rules have the
// same instant, the spec ticks once. From, until and except hold for all rules, wherever they stand after the zone:
//
//	0 3 * * mon-fri; 0 12 * * sat       two rules
//	@daily; from 2026-12-01             no ticks before that day
//	@daily; until 2027-01-31T18:00      no ticks after 18:00 on that day
//	@daily; except 2026-05-14, 12-25    no ticks on 14 May 2026, and on 25 December of each year
//	@daily; except 12-24..01-02         no ticks from 24 December to 2 January
//	@hourly; except 2026-12-24T18:00..2026-12-27T06:00
//
// A date stands for the whole day, and a time (T18:00 or T18:00:30) for that second. Both ends of a range are in the
// range. All dates and times are those of the spec's zone, even for @every. They count when the clock first shows or
// passes them: if the clock goes back from 03:00 to 02:00, T02:30 is the first half past two. A time of day that the
// clock skips counts by the time at which it ticks.
//
// There is no Go function that joins specs: join their texts with "; ".
//
// # Zones
//
// A spec is read in the zone that is passed to [Parse]. A spec can begin with a zone of its own, which overrides the
// passed zone: "CRON_TZ=Europe/Berlin 30 2 * * *". TZ= means the same as CRON_TZ=. The zone holds for all rules and
// limits. The ticks of @every do not depend on the zone, only its limits do.
//
// Parse refuses a zone without a name and the zone Local, because these may differ between nodes, and zones more than
// 26 hours from UTC. Zones come from the system's database. An image made from scratch has none: there, add to the
// program
//
//	import _ "time/tzdata"
//
// # Clock changes
//
// When the wall clock changes, the hour field decides what happens.
//
// With every hour (*, 0-23) the spec is a rhythm. It ticks whenever the wall clock shows a matching time: an hour that
// the clock shows twice has its ticks twice, and one that it skips has none. So a rhythm keeps its pace in elapsed
// time.
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
//
// # Specs of other schedulers
//
// A spec of Quartz has the seconds first, as here with six fields, and the same L, W and #. But Quartz numbers the days
// of the week from 1 for Sunday to 7 for Saturday. Here, as in Unix cron, Monday is 1, and Sunday is 0 or 7. Names mean
// the same in both:
//
//	Quartz            here              day
//	0 0 12 ? * 2      0 0 12 ? * mon    each Monday
//	0 0 12 ? * 2-6    0 0 12 ? * 1-5    Monday to Friday
//	0 0 12 ? * 6#3    0 0 12 ? * fri#3  the third Friday
//	0 0 12 ? * 7L     0 0 12 ? * satL   the last Saturday
//	0 0 12 ? * L      0 0 12 ? * sat    each Saturday; Parse refuses the L
//	0 0 12 ? * * 2027 0 0 12 ? * *; from 2027-01-01; until 2027-12-31
//
// AWS numbers the days as Quartz does, and its six fields begin with the minute and end with the year. Where a "?" says
// that a spec may be one of these and means something else here, the spec has a [Spec.Warning], and package scheduler
// logs it.
//
// # Why not another parser
//
// The syntax is that of robfig/cron, which asynq uses, with Quartz's forms for days. Package spec does not use another
// parser, because the hard part is the clock changes, and no parser has the rules above. Go modules that were tried:
//
//	                                          robfig/cron 3.0.1   netresearch/go-cron 0.15.0   adhocore/gronx 1.20.4
//	L, W, #                                   no                  yes                          without L-3, LW
//	ranges that wrap                          no                  yes                          no
//	begin, end, days to leave out             no                  no                           no
//	02:30 on a day without 02:30, New York    lost                at 03:30                     lost
//	01:30 on a day with two, New York         twice               twice                        once
//	midnight on a day without it, Beirut      lost                lost                         lost
//	02:15 on a day without it, Lord Howe      lost                lost                         lost
//	29 February, asked in March 2096          none                none                         2104
//	@every                                    from the start of   from the start of            no
//	                                          each process        each process
//	",", "*-5" or "+5" as a field             accepted            accepted                     "+5" accepted
//	the error names the field                 no                  no                           by number
//
// With robfig/cron a test compares each spec that both parsers accept. Of 18,517 random specs in UTC, 18,254 had the
// ticks of netresearch/go-cron. The others have a step in a range of days that wraps over Sunday, such as fri-mon/2: in
// such a range go-cron counts eight days to the week.
package spec
