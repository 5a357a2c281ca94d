#!/usr/bin/env bash
# apidiff.sh MODULES [TAG] compares what the published modules export with what they exported at TAG, by default the last
# tag of the root module, and prints what has changed. It fails if a change breaks programs, unless the major version is 0:
# then it says so.
#
# It also builds the other modules as they were at TAG on today's root, and fails if one does not build: who upgrades the
# root alone gets just that. The other modules import packages below internal, which apidiff leaves out.
set -euo pipefail

apidiff="go run golang.org/x/exp/cmd/apidiff@$APIDIFF"
read -ra modules <<<"$1"
tag=${2:-$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null || true)}
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
for module in "${modules[@]}"; do
	if [ ! -f "$old/$module/go.mod" ]; then
		echo "api: $module is new since $tag"
		continue
	fi
	path=$(sed -n 's/^module //p' "$module/go.mod")
	(cd "$old/$module" && $apidiff -m -w "$old/export" "$path") 2> >(quiet)
	changes=$(cd "$module" && $apidiff -m "$old/export" "$path" 2> >(quiet))
	[ -n "$changes" ] || { echo "api: $path is as at $tag"; continue; }
	printf 'api: %s since %s\n%s\n' "$path" "$tag" "$changes"
	! grep -q '^Incompatible changes:' <<<"$changes" || broken=1
done

# The objects of package server/client are those of an internal package, so their fields and methods are compared here.
client=server/client/objects.go
if [ -f "$old/$client" ]; then
	names=$(sed -nE 's/^\t[A-Z][A-Za-z]* .*= ops\.([A-Za-z]+).*/\1/p' "$old/$client" | paste -sd '|')
	(cd "$old" && $apidiff -allow-internal -w "$old/objects" ./internal/ops)
	changes=$($apidiff -allow-internal "$old/objects" ./internal/ops | grep -E "^(Inc|C)ompatible|^- (\(\*)?($names)[.:)]" || true)
	# A headline without a line below it says nothing.
	changes=$(awk '/^-/ { if (head) print head; head = ""; print; next } { head = $0 }' <<<"$changes")
	if [ -n "$changes" ]; then
		printf 'api: the objects of server/client since %s\n%s\n' "$tag" "$changes"
		! grep -q '^Incompatible changes:' <<<"$changes" || broken=1
	fi
fi

# Today's root in the workspace of TAG.
sed -i "s#^\t\.\$#\t$PWD#; s# => \./\$# => $PWD#" "$old/go.work"
for module in "${modules[@]}"; do
	[ "$module" != . ] && [ -f "$old/$module/go.mod" ] || continue
	(
		cd "$old/$module" && go build ./...
	) || { echo "api: $module as at $tag does not build on this root" >&2; apart=1; }
done
[ "${apart:-0}" = 0 ] || exit 1
[ "$broken" = 0 ] && exit
case $tag in
v0.*) echo "api: programs may break; before v1 that needs a new minor version, and a line in CHANGELOG.md" ;;
*)
	echo "api: programs break; that needs a new major version" >&2
	exit 1
	;;
esac
