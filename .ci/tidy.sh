#!/usr/bin/env bash
# tidy.sh [-w] MODULE... checks that go.mod and go.sum of the modules in the directories MODULE are tidy, each module by
# itself on the others as they are in this checkout. With -w it makes them tidy.
#
# go mod tidy takes no notice of go.work. It would look for the others at the version that their next release will have.
set -euo pipefail

write=false
[ "${1:-}" != -w ] || { write=true && shift; }
temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
export GOWORK=off
failed=0
for module; do
	cp "$module/go.mod" "$module/go.sum" "$temp/"
	ours=()
	while read -r path dir; do ours+=("$path" "$dir"); done < <(
		for dir in . joblock/otelobserver joblock/promobserver outbox server server/compat; do
			[ "$dir" = "$module" ] || echo "$(sed -n 's/^module //p' "$dir/go.mod") $PWD/$dir"
		done
	)
	for ((i = 0; i < ${#ours[@]}; i += 2)); do go mod edit -replace="${ours[i]}=${ours[i + 1]}" "$temp/go.mod"; done
	(cd "$module" && go mod tidy -modfile="$temp/go.mod")
	for ((i = 0; i < ${#ours[@]}; i += 2)); do go mod edit -dropreplace="${ours[i]}" "$temp/go.mod"; done
	for file in go.mod go.sum; do
		if $write; then
			cp "$temp/$file" "$module/$file"
		else
			diff -u --label "$module/$file" --label "$module/$file, tidy" "$module/$file" "$temp/$file" || failed=1
		fi
	done
done
exit $failed
