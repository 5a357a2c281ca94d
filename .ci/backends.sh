#!/usr/bin/env bash
# backends.sh FILE prints how many tests ran on which back end, as recorded by
# redistest.Ran, and fails if one of those that must run did not. In CI these are all
# that are promised; elsewhere a server that this machine cannot have is only named.
set -euo pipefail

file=$1
required=(memstore miniredis "redis-server|valkey-server")
wanted=("redis-server 7.0" "redis-server 8" "valkey-server 9")
if [ "${CI:-false}" != false ]; then
	required+=("${wanted[@]}")
	wanted=()
fi

touch "$file"
# A cluster of servers, or one behind sentinels, is still that server.
ran=$(sort -u "$file" | cut -f 1 | sed -E 's/^.* of //' | sort | uniq -c | awk '{ n = $1; $1 = ""; print substr($0, 2) ": " n " tests" }')
echo "back ends that ran:"
sed 's/^/  /' <<<"${ran:-none}"

# missing NAME... prints those of which there is no test.
missing() {
	local name
	for name; do
		grep -q -E "^($name)" <<<"$ran" || echo "$name"
	done
}
left=$(missing "${wanted[@]}")
[ -z "$left" ] || echo "NOT run here: $(paste -s -d , - <<<"$left" | sed 's/,/, /g')"
lacking=$(missing "${required[@]}")
if [ -n "$lacking" ]; then
	echo "no test passed on: $(paste -s -d , - <<<"$lacking" | sed 's/,/, /g')" >&2
	exit 1
fi
