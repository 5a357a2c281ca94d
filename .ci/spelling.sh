#!/usr/bin/env bash
# spelling.sh fails if a page has a word that is commonly misspelt, or spelt as in America: the pages are in British
# English.
set -euo pipefail

find . -name '*.md' -not -path './.cache/*' -print0 |
	xargs -0 go run "$MISSPELL" -error -locale UK -i "$(grep -v '^#' .ci/words | paste -s -d , -)"
