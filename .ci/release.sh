#!/usr/bin/env bash
# release.sh VERSION REMOTE MODULE... tags the modules on HEAD, tries these versions as a user would, from a module proxy of
# files, and pushes the tags to REMOTE in one step. With an empty REMOTE it prints that command and pushes nothing.
# If a check or the trial fails there are no tags: they are made last, just before the push.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=${1:-} remote=${2:-}
modules=("${@:3}")

failed=0
wrong() { echo "release: $*" >&2; failed=1; }

[[ $version =~ ^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]] || { echo "release: want a version such as v0.1.0, not \"$version\"" >&2; exit 2; }
[ -z "$(git status --porcelain)" ] || wrong "the checkout has changes that are not committed"
.ci/notes.sh "$version" >/dev/null || failed=1
[ -z "$(sed -n '/^## \[Unreleased\]/,/^## \[[0-9]/{/^##* \|^$/d;p}' CHANGELOG.md)" ] || wrong "CHANGELOG.md has lines under Unreleased"
grep -q "^## \[${version#v}\] - 20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]$" CHANGELOG.md || wrong "CHANGELOG.md has no line \"## [${version#v}] - DATE\""

# The modules require each other at this version, and the checkout replaces just this version.
while read -r mod; do
	while read -r path required; do
		[ "$required" = "$version" ] || wrong "$mod requires $path $required, want $version"
	done < <(sed -nE 's,^(require)?[[:space:]]*(github\.com/joblock/toolkit[^ ]*) (v[^ ]+).*,\2 \3,p' "$mod")
done < <(git ls-files '*go.mod' go.work)
for module in "${modules[@]}"; do
	! grep -q '^replace\|^	*[^ ]* => ' "$module/go.mod" || wrong "$module/go.mod has a replace directive: go install refuses it"
done
for field in "version: ${version#v}" "appVersion: \"${version#v}\""; do
	grep -qx "$field" deploy/helm/joblock/Chart.yaml || wrong "deploy/helm/joblock/Chart.yaml has no line '$field'"
done
image=$(sed -n 's/^  repository: //p' deploy/helm/joblock/values.yaml)
grep -q "images: \[$image\]" .goreleaser.yaml || wrong ".goreleaser.yaml makes no image $image, which the chart names"

tags=()
for module in "${modules[@]}"; do
	tag=${module#.}
	tag=${tag:+$tag/}$version
	! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || wrong "there is a tag $tag already"
	tags+=("$tag")
done
[ $failed = 0 ] || exit 1

# What go get and go install do with these versions, word for word as the pages say it.
go -C internal/published test -count=1 -tags servers .

for tag in "${tags[@]}"; do git tag -a -m "$tag" "$tag"; done
echo "release: tagged $(git rev-parse --short HEAD) as ${tags[*]}"
push=(git push --atomic "${remote:-origin}" "${tags[@]}")
if [ -z "$remote" ]; then
	echo "release: now run: ${push[*]}"
else
	"${push[@]}"
fi
