// Package pages is the operator's view in a browser: locks, the lines of waiters, the jobs that locks belong to, cron
// jobs, and operators' actions. A Handler shows what a Desk of package ops returns, and performs actions through it.
// Package server identifies the caller, and mounts the Handler.
//
// # Paths
//
// The path of every page is one segment: locks, lock?key=…, cronjob?scope=…&name=…. So all links are relative to the same
// directory, and the pages work under any path, with and without http.StripPrefix, without a configured base path. A key
// is in the query, where no proxy cleans it.
//
// # One way to render
//
// One function and one template make a page, with and without JavaScript. What can change while the page is open is a
// part of the page: an element with an id of its own. The stream "live" renders the same page with the same query again
// and again, and sends the parts that have changed. The script replaces the elements with these ids. A list is a part
// whose rows are parts too: a row that changes is sent alone, and the list is sent when rows appear, disappear or move.
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
// Nothing is read while no page is open. While the store does not answer, the page keeps the last values, with their age.
// A page waits some hundredths of a second for a newer value or for a first walk; so does the first page for everything
// on it. Then it shows what it has, and says what is older than it should be and what is still being read. Only for its
// own subject, if that was never read, does a page wait longer. TestWhatAPageAsksOfTheStore pins what each page costs.
//
// # What changes something
//
// GET changes nothing. Every action has a page that says, in the words of package ops, what will happen. Its form sends
// the fence that the page has shown. If the key has another fence by then, nothing happens, and the answer shows the
// present state.
package pages
