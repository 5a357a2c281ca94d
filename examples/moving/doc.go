// Package moving has the code of docs/moving.md: existing code, and what replaces it. The tests run both.
//
// The package is a module of its own, because of the other libraries.
package moving
