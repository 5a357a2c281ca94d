#!/usr/bin/env bash
# Fails if a Go file is not formatted, and says which and how.
set -euo pipefail

unformatted=$(find . -name '*.go' -not -path './.cache/*' -print0 | xargs -0 gofmt -l)
if [ -n "$unformatted" ]; then
	printf 'not formatted; run gofmt -w on:\n%s\n' "$unformatted" >&2
	exit 1
fi
