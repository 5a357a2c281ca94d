#!/usr/bin/env bash
# Runs every fuzz target of the module for $FUZZTIME, one after the other, as go test
# fuzzes one at a time.
set -euo pipefail

packages=$(.ci/having.sh Fuzz)
if [ -z "$packages" ]; then
	echo "no fuzz targets found" >&2
	exit 1
fi
for package in $packages; do
	listing=$(go test -list '^Fuzz' "$package")
	for target in $(grep '^Fuzz' <<<"$listing"); do
		echo "== $package $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-1m}" -fuzzminimizetime 10x "$package"
	done
done
