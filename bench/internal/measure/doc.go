// Package measure makes the measurements: each takes a server and a Scale and
// returns a section of the report.
//
// All libraries are measured against the same server, within each round one after
// the other, and every round begins with another one, so that nobody always runs
// on the warmest machine. Between two of them the server is emptied.
package measure
