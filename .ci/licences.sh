#!/usr/bin/env bash
# licences.sh MODULE... prints the licence of every module that comes into a program with what the modules in the
# directories MODULE offer, and fails if there is one whose licence is not known to be permissive. Packages below
# internal come along if something else needs them: those that are only for our own tests do not.
set -euo pipefail

# of DIR prints the name of the licence in DIR.
of() {
	local file text
	file=$(find "$1" -maxdepth 1 -iname 'licen[sc]e*' -o -maxdepth 1 -iname 'copying*' | sort | head -n 1)
	[ -n "$file" ] || return 0
	text=$(tr -s '[:space:]' ' ' <"$file")
	case $text in
	*"GNU AFFERO"* | *"GNU GENERAL PUBLIC"* | *"GNU LESSER"* | *"GNU LIBRARY"*) echo GPL ;;
	*"Mozilla Public License"*) echo MPL-2.0 ;;
	*"Apache License"*"Version 2.0"*) echo Apache-2.0 ;;
	*"Permission is hereby granted, free of charge"*) echo MIT ;;
	*"Permission to use, copy, modify, and"*"distribute this software"*) echo ISC ;;
	*"Redistribution and use in source and binary forms"*) echo BSD ;;
	*"free and unencumbered software released into the public domain"*) echo Unlicense ;;
	esac
}

list=$(for module; do
	(cd "$module" && go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{with .Replace}}-{{else}}{{.Dir}}{{end}}{{end}}{{end}}' $(go list ./... | grep -v -E '/(internal|examples)(/|$)'))
done | sort -u)
bad=0
while read -r path version dir; do
	[ -n "$path" ] && [ "$dir" != - ] || continue
	licence=$(of "$dir")
	case $licence in
	MIT | BSD | ISC | Apache-2.0 | Unlicense) ;;
	*)
		bad=1
		licence="${licence:-unknown} <- not allowed"
		;;
	esac
	printf '  %-12s %s %s\n' "$licence" "$path" "$version"
done <<<"$list"
[ "$bad" = 0 ] || { echo "licences: not all are known to be permissive" >&2; exit 1; }
