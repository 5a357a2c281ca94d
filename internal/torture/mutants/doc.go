// Command mutants tests the torture: it breaks one rule of the locks after the other
// and expects package torture to find each of them out, by a complaint of the right
// kind. The rule is broken in a copy of the file, which go test's -overlay puts in
// place of the true one, so there is no switch for it in what users compile.
//
//	make mutants
//	go run ./internal/torture/mutants [-time 20s] [-tries 3] [name ...]
//
// Mutants of the keeper are not tortured: tests of package worker are to find them out.
//
// A mutant is given several tries, each with another seed, as what gives it away may
// not happen in so short a run. It is a command and not a test because it takes
// minutes; that every mutant still applies to the sources is tested.
package main
