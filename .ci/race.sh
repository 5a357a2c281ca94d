#!/usr/bin/env bash
# race.sh [FLAG...] PACKAGE... runs go test -race. On a busy machine the race detector itself fails now and then in a
# package that runs for minutes: it prints "ThreadSanitizer: CHECK failed", and the process ends in the middle of a
# test. That says nothing about the tests, so such a package is tested again, twice at most, and counted in the last
# line. A package with a failed test or a race has failed.
set -uo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT

flags=()
while [[ ${1:-} == -* ]]; do # -tags servers and the like: each flag has its value in a word of its own
	flags+=("$1" "$2")
	shift 2
done
test() { go test -race -vet=off -count=1 -timeout "${TIMEOUT:-25m}" "${flags[@]}" "$@" 2>&1 | tee "$log"; }

failed_itself() {
	awk -F '\t' '
		/^ThreadSanitizer: CHECK failed/ { broken = 1 }
		/^ *--- FAIL|DATA RACE|^panic:/  { failed = 1 }
		/^FAIL\t/                        { if (broken && !failed) print $2; else bad = 1 }
		/^(ok|FAIL|\?)[ \t]/             { broken = failed = 0 }
		END                              { exit bad }
	' "$log"
}

repeated=0
for _ in 1 2 3; do
	if test "$@"; then
		[ $repeated = 0 ] || echo "THE RACE DETECTOR ITSELF HAS FAILED: $repeated times a package was tested again"
		exit 0
	fi
	again=$(failed_itself) && [ -n "$again" ] || exit 1
	echo "THE RACE DETECTOR ITSELF HAS FAILED; again:" $again
	set -- $again
	repeated=$((repeated + $#))
done
exit 1
