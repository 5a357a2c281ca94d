// Package layering has no code, only tests: which package may import which, which
// modules end up in a user's binary and go.mod, that no file names a path of one machine,
// that tests without the build tag servers wait only in virtual time and start no server.
// They run with all other tests, so a broken rule is seen without a linter.
package layering
