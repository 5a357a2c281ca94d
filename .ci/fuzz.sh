#!/usr/bin/env bash
# Runs every fuzz target of the modules for $FUZZTIME, one after the other, as go test
# fuzzes one at a time. First, histories of the stores that make test does not look at.
set -euo pipefail

go test -tags servers -count=1 -timeout 60m -run 'Model' ./joblock/memstore ./joblock/redisstore \
	-rapid.seed=$RANDOM -rapid.checks="${HISTORIES:-300}"

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
