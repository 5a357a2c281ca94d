#!/usr/bin/env bash
# matrix.sh PACKAGE... runs the tests of the packages on $SERVERS, which servers.sh
# brings. In CI it fails if there is one that it cannot bring; elsewhere it says so and
# goes on, for not every machine can run Debian's programs or has a network. The race
# detector has seen the same tests on redis-server 7.0 before; here they would take three
# times as long with it.
set -euo pipefail

for name in $SERVERS; do
	if ! .ci/servers.sh "$name"; then
		echo "THE TESTS DO NOT RUN ON $name, which this machine does not have." >&2
		[ "${CI:-false}" = false ] || exit 1
		continue
	fi
	JOBLOCK_SERVER=$PWD/.cache/servers/$name go test -count=1 -timeout "${TIMEOUT:-45m}" "$@"
done
