#!/usr/bin/env bash
# faults.sh FILE runs the tests that the rows of the tables in FILE name, and prints each row's fault and the result of
# its tests. It fails unless all of them passed. The last cell of a row has one test or more: `package.Test/subtest`.
set -euo pipefail

file=$1
results=$(mktemp)
trap 'rm -f "$results"' EXIT

names=$(sed -nE 's/^\| .* \| (`[a-z0-9]+\.Test[^|]*`) \|$/\1/p' "$file" | grep -oE '`[^`]+`' | tr -d '`' | sort -u)
for pkg in $(cut -d . -f 1 <<<"$names" | sort -u); do
	dir=$(find joblock worker handoff scheduler internal cmd server outbox -type d -name "$pkg" | head -n 1)
	tests=$(sed -nE "s/^$pkg\.(Test[A-Za-z0-9_]+).*/\1/p" <<<"$names" | sort -u | paste -s -d '|' -)
	{ go -C "$dir" test -tags servers -count=1 -v -timeout 45m -run "^($tests)\$" . || true; } |
		sed -nE "s/^ *--- (PASS|FAIL|SKIP): (.*) \([0-9.]+s\)\$/$pkg.\2\t\1/p" >>"$results"
done

awk -F '\t' '
	NR == FNR { became[$1] = $2; next }
	/^## / { print "\n" substr($0, 4) }
	/^\| .*`[a-z0-9]+\.Test/ {
		n = split($0, cell, / \| /)
		fault = substr(cell[1], 3)
		tests = cell[n]
		gsub(/^`|` \|$/, "", tests)
		what = "PASS"
		for (i = split(tests, name, /`, `/); i > 0; i--) {
			gsub(/ /, "_", name[i])
			if (!(name[i] in became)) what = "MISSING"
			else if (became[name[i]] != "PASS") what = became[name[i]]
		}
		rows++
		if (what != "PASS") bad++
		printf "  %-7s  %s\n", what, fault
	}
	END {
		printf "\n%d of %d rows passed\n", rows - bad, rows
		exit bad > 0 || rows == 0
	}' "$results" "$file"
