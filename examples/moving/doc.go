// Package moving has the code of docs/moving.md: what people have, and what takes its place. The tests run both.
//
// The package is a module of its own, because of the other libraries.
package moving
