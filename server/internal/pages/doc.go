// Package pages is what people on call look at in a browser: locks, the lines behind them, the jobs that they belong to,
// cron jobs, and what operators have done. A Handler shows what a Desk of package ops returns, and does what a Desk does.
// Package server identifies the caller, and mounts the Handler.
//
// # Paths
//
// Every page is one segment: locks, lock?key=…, cronjob?scope=…&name=…. So every link is relative to the same place, and
// the pages work under any path, with and without http.StripPrefix, and without a configured base path. A key is in the
// query, where no proxy cleans it.
//
// # One way to render
//
// A page is made by one function and one template, with and without JavaScript. What can change while the page is open is a
// part of the page: an element with an id of its own. The stream "live" makes the same page again, each time with the same
// query, and sends the parts that have changed. The script puts them in place by their ids. A list is a part whose rows are
// parts too: a row that changes is sent alone, and the list when rows come, go or change their places.
//
// # What looking costs
//
//	what                      how it is read                                      how often
//	many locks, many jobs,    one walk for all viewers; all walks together with   again when the last one has ended
//	keys like a mistyped one  Config.Share; the first one after a while with a
//	                          quarter, for three seconds
//	the rows on the screen    their records, one call                             every tick, one for all viewers
//	one key                   its record; all of it when the record has changed   every tick; all of it every 5 s
//	cron jobs, keepers        as package ops does                                 at most with Config.Share
//	the doctor                as package ops does                                 every minute, while a page is open
//
// Nothing is read while no page is open. While the store does not answer, the page keeps what was read last, with its age.
// A page waits for some hundredths of a second for a newer read, a first walk or all that is on the first page, and then
// shows what it has: it says what is older than it should be, and what is still being read. Only for its own subject, if
// that was never read, it waits longer. TestWhatAPageAsksOfTheStore pins what each page costs.
//
// # What changes something
//
// GET changes nothing. Every action has a page that says what will happen, with the words of package ops. Its form sends
// the fence that the page has shown. If the fence has changed by then, nothing happens, and the answer shows the present
// state.
package pages
