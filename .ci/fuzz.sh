#!/usr/bin/env bash
# Runs every fuzz target of the modules for $FUZZTIME, one after the other, as go test
# fuzzes one at a time.
set -euo pipefail

having=$PWD/.ci/having.sh
found=0
for module in . server server/compat; do
	pushd "$module" >/dev/null
	for package in $("$having" Fuzz); do
		listing=$(go test -tags servers -list '^Fuzz' "$package")
		for target in $(grep '^Fuzz' <<<"$listing"); do
			found=1
			echo "== $package $target"
			go test -tags servers -run '^$' -fuzz "^$target\$" -fuzztime "${FUZZTIME:-1m}" -fuzzminimizetime 10x "$package"
		done
	done
	popd >/dev/null
done
if [ $found = 0 ]; then
	echo "no fuzz targets found" >&2
	exit 1
fi
