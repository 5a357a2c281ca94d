// Package outbox has the code of docs/outbox.md: an order and its job in one transaction of PostgreSQL. The tests run it
// where PostgreSQL is installed.
//
// The package is a module of its own, because of the driver of the database.
package outbox
