#!/usr/bin/env bash
# race.sh ARG... runs go test -race. On a busy machine the race detector itself fails now and
# then in a package that runs for minutes: it prints "ThreadSanitizer: CHECK failed", and the
# process ends in the middle of a test. That says nothing about the tests, so such a package
# is tested again, twice at most, and said so. A package with a failed test or a race has
# failed.
set -uo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
test() { go test -race -count=1 -timeout "${TIMEOUT:-25m}" "$@" 2>&1 | tee "$log"; }

failed_itself() {
	awk -F '\t' '
		/^ThreadSanitizer: CHECK failed/ { broken = 1 }
		/^ *--- FAIL|DATA RACE|^panic:/  { failed = 1 }
		/^FAIL\t/                        { if (broken && !failed) print $2; else bad = 1 }
		/^(ok|FAIL|\?)[ \t]/             { broken = failed = 0 }
		END                              { exit bad }
	' "$log"
}

for _ in 1 2; do
	test "$@" && exit 0
	again=$(failed_itself) && [ -n "$again" ] || exit 1
	echo "THE RACE DETECTOR ITSELF HAS FAILED; again:" $again
	set -- $again
done
test "$@"
