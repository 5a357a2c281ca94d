#!/usr/bin/env bash
# together.sh COMMAND... runs the commands, a text each, at the same time, and prints the
# output of each one when it and those before it have ended. It fails if one of them does.
set -euo pipefail

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
pids=() failed=0
for command; do
	bash -euo pipefail -c "$command" >"$logs/${#pids[@]}" 2>&1 &
	pids+=("$!")
done
for i in "${!pids[@]}"; do
	wait "${pids[$i]}" || failed=1
	cat "$logs/$i"
done
exit $failed
