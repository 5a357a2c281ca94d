#!/usr/bin/env bash
# having.sh PREFIX prints the packages whose tests have a function that begins so:
# Fuzz, Benchmark.
set -euo pipefail

go list -f '{{.Dir}}	{{.ImportPath}}' ./... | while IFS=$'\t' read -r dir path; do
	if grep -q -s -E "^func $1[A-Z_][A-Za-z0-9_]*\(" "$dir"/*_test.go; then
		echo "$path"
	fi
done
