// Package bench compares locks, jobs and sequences of this toolkit with other lock libraries and with asynq alone. It
// has nothing but Go benchmarks. They start servers of their own, so they have the build tag servers:
//
//	go test -tags servers -run '^$' -bench .
//
// README.md says what the figures mean. Package bench is in a module of its own, so that the libraries it compares with
// are no dependencies of the toolkit.
package bench
