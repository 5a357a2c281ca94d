#!/usr/bin/env bash
# matrix.sh PACKAGE... runs the tests of the packages on $SERVERS, which servers.sh
# brings, on all of them at the same time: most of these tests wait for servers. In CI it
# fails if there is one that it cannot bring; elsewhere it says so and goes on, for not
# every machine can run Debian's programs or has a network. The race detector has seen
# the same tests on redis-server 7.0 before; here they would take three times as long
# with it. Tests on miniredis are left out: they would do the same again. Four of a package
# run at a time where the package allows that, as they use little of the processor.
set -euo pipefail

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
started=() failed=0
for name in $SERVERS; do
	if ! .ci/servers.sh "$name"; then
		echo "THE TESTS DO NOT RUN ON $name, which this machine does not have." >&2
		[ "${CI:-false}" = false ] || failed=1
		continue
	fi
	JOBLOCK_REAL_ONLY=true JOBLOCK_SERVER=$PWD/.cache/servers/$name .ci/shared.sh go test -tags servers -vet=off -count=1 -parallel 4 -timeout "${TIMEOUT:-25m}" "$@" >"$logs/$name" 2>&1 &
	started+=("$name" "$!")
done
set -- "${started[@]}"
while [ $# -gt 0 ]; do
	wait "$2" || failed=1
	echo "== tests on $1"
	cat "$logs/$1"
	shift 2
done
exit $failed
