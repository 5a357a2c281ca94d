#!/usr/bin/env bash
# backends.sh FILE prints which back ends the tests ran on, as recorded by
# redistest.Ran, and fails if one of those that must run did not.
set -euo pipefail

file=$1
required=(memstore miniredis redis-server)

touch "$file"
echo "back ends that ran: $(cut -f 1 "$file" | sort -u | paste -s -d , - | sed 's/,/, /g')"

missing=()
for name in "${required[@]}"; do
	if grep -q -E "^$name( [^	]*)?	" "$file"; then
		echo "  $name: $(grep -c -E "^$name( [^	]*)?	" "$file") tests"
	else
		missing+=("$name")
	fi
done
if [ "${#missing[@]}" -gt 0 ]; then
	echo "no test passed on: ${missing[*]}" >&2
	exit 1
fi
