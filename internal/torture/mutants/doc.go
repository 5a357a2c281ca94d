// Command mutants tests package torture: it breaks one rule of the locks after the other
// and expects package torture to detect each, with a complaint of the right kind. The rule
// is broken in a copy of the file, which go test's -overlay puts in place of the original,
// so there is no switch for it in what users compile.
//
//	make mutants
//	go run ./internal/torture/mutants [-time 20s] [-tries 3] [name ...]
//
// Mutants of the keeper are not tortured: tests of package worker must detect them.
//
// A mutant gets several tries, each with another seed, because a short run may not reach
// what the mutant breaks. It is a command and not a test because it takes minutes; a test
// checks that every mutant still applies to the sources.
package main
