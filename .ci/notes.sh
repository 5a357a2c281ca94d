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
printf '%s\n' "$notes" | sed '/./,$!d'
