#!/usr/bin/env bash
# Prints what CHANGELOG.md says of a version, as the notes of its release: notes.sh v0.1.0
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1#v}
notes=$(awk -v head="## [$version]" '
	index($0, "## [") == 1 { inside = index($0, head) == 1; next }
	inside { print }
' CHANGELOG.md)
if [ -z "${notes//[[:space:]]/}" ]; then
	echo "notes.sh: CHANGELOG.md has no section \"## [$version]\", or an empty one" >&2
	exit 1
fi
# The page of a release does not know the files of the repository.
at="https://github.com/joblock/toolkit/blob/v$version"
printf '%s\n' "$notes" | sed -e '/./,$!d' -e "s|](\([A-Za-z][A-Za-z0-9_/.-]*\.md\)|]($at/\1|g"
