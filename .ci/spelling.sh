#!/usr/bin/env bash
# spelling.sh fails if a page has a word that is commonly misspelt, or spelt as in America: the pages are in British
# English. docs/compat.md quotes documents of others, in their spelling.
set -euo pipefail

ignored=$(grep -v '^#' .ci/words | paste -s -d , -)
find . -name '*.md' -not -path './.cache/*' -not -name compat.md -print0 |
	xargs -0 go run "$MISSPELL" -error -locale UK -i "$ignored"
go run "$MISSPELL" -error -i "$ignored" docs/compat.md
