// Package examples has runnable programs, each in a directory of its own, and in
// its tests the lines that the README and docs quote.
//
//   - quickstart: the whole life of a lock on one terminal, with nothing to install.
//   - scheduler: cron jobs on three nodes, one of which is killed.
//   - service: a web process and a worker process, to copy from.
//   - routers: adapters to gin, echo, fiber, gRPC and others, to copy from; a module of its own.
//   - script: a shell script and a Python program that take a lock with the command
//     joblock, and hand it over to a job of the service.
//   - holders: a list of who holds what.
package examples
