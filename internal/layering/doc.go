// Package layering has no code, only tests: which package may import which, which
// modules end up in a user's binary and go.mod, that no file names a path of one machine.
// They run with all other tests, so nobody needs a linter to hear that a rule is broken.
package layering
