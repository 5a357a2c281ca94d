// Package fencing has the code of docs/fencing.md: three resources that refuse a fence smaller than the largest one
// that they have seen. The tests show the race that a lock alone cannot prevent, on SQLite and, where it is installed,
// on PostgreSQL.
//
// The package is a module of its own, because of the drivers of the databases.
package fencing
