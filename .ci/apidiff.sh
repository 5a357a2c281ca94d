#!/usr/bin/env bash
# apidiff.sh [TAG] compares what the published modules export with what they exported at TAG, by default the last tag
# of the root module, and prints what has changed. It fails if a change breaks programs, unless the major version is 0:
# then it says so.
set -euo pipefail

apidiff="go run golang.org/x/exp/cmd/apidiff@$APIDIFF"
tag=${1:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true)}
if [ -z "$tag" ]; then
	echo "api: there is no tag v* yet, and so no released API to compare with"
	exit 0
fi
old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git archive "$tag" | tar -x -C "$old"

# apidiff names each internal package that it leaves out.
quiet() { grep -v '^Ignoring internal package' >&2 || true; }

broken=0
for module in . joblock/otelobserver server; do
	if [ ! -f "$old/$module/go.mod" ]; then
		echo "api: $module is new since $tag"
		continue
	fi
	path=$(go -C "$module" list -m)
	(cd "$old/$module" && $apidiff -m -w "$old/export" "$path") 2> >(quiet)
	changes=$(cd "$module" && $apidiff -m "$old/export" "$path" 2> >(quiet))
	[ -n "$changes" ] || { echo "api: $path is as at $tag"; continue; }
	printf 'api: %s since %s\n%s\n' "$path" "$tag" "$changes"
	! grep -q '^Incompatible changes:' <<<"$changes" || broken=1
done
[ "$broken" = 0 ] && exit
case $tag in
v0.*) echo "api: programs may break; before v1 that needs a new minor version, and a line in CHANGELOG.md" ;;
*)
	echo "api: programs break; that needs a new major version" >&2
	exit 1
	;;
esac
