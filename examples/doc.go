// Package examples has runnable programs, each in a directory of its own, and in
// its test the lines that the README quotes.
//
//   - quickstart: the whole story on one terminal, with nothing to install.
//   - scheduler: jobs by the clock on three nodes, one of which is killed.
//   - service: a web process and a worker process, to copy from.
//   - holders: a list of who holds what.
package examples
