#!/usr/bin/env bash
# servers.sh [NAME...] brings servers other than the system's own into .cache/servers,
# by default those that make servers promises, and prints for each what it is. They come
# from Debian, unpacked with all the libraries that they need, the C library included:
# the system's packages, lists and settings of apt are neither used up nor touched, and
# no rights are needed. What is there already is left as it is.
#
#	.cache/servers/NAME    runs the server, in place of redis-server
set -euo pipefail

# NAME SUITE PACKAGE PROGRAM: the package that has the program, rather than the one that
# has the service, which would bring users and init scripts along. A name with a major
# version only stands for the newest of it that Debian has, in a suite that rolls.
known='
redis-8     experimental        redis-tools   redis-check-rdb
redis-8.0   trixie              redis-tools   redis-check-rdb
valkey-8.0  bookworm-backports  valkey-tools  valkey-check-rdb
valkey-9    forky               valkey-tools  valkey-check-rdb
'
promised=(redis-8 valkey-9)

cache=$PWD/.cache/servers

# version prints what a server says of itself, and fails if it does not run or is not of
# the version that its name has: "redis-8 (8.6.3)".
version() {
	local said
	said=$("$cache/$1" --version 2>/dev/null) || return
	said=$(sed -nE 's/.*v=([0-9.]+).*/\1/p' <<<"$said")
	[[ $said == "${1#*-}".* ]] || return
	echo "$1 ($said)"
}

# apt_conf prints the settings of the system's apt without its hooks, and with
# everything that is written in a directory of our own.
apt_conf() {
	apt-config dump | grep -v -E '^(APT::Update|DPkg)::(Pre|Post)-'
	cat <<-CONF
		Dir::Etc::main "/dev/null";
		Dir::Etc::parts "/dev/null";
		Dir::Etc::sourcelist "$1/sources.list";
		Dir::Etc::sourceparts "/dev/null";
		Dir::Etc::preferences "/dev/null";
		Dir::Etc::preferencesparts "/dev/null";
		Dir::State "$1/state";
		Dir::State::status "$1/status";
		Dir::Cache "$1/cache";
		APT::Sandbox::User "root";
		Acquire::Languages "none";
		Acquire::Retries "3";
		Acquire::Check-Valid-Until "false";
	CONF
}

# mirror prints where the system's own packages come from.
mirror() {
	apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages' |
		awk -v suite="$VERSION_CODENAME" '$1 == suite && $2 == "main" { print $3; exit }'
}

# unpack DIR SUITE PACKAGE unpacks the package and the libraries that it needs. (Errors
# are returned by hand: its caller asks how it went, for which bash forgets set -e.)
unpack() (
	dir=$1 suite=$2 package=$3 below=
	uri=$(mirror)
	[ -n "$uri" ] || { echo "apt names no mirror of Debian $VERSION_CODENAME" && return 1; }
	mkdir -p "$dir"/{state/lists/partial,cache/archives/partial,debs,root}
	: >"$dir/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" >"$dir/sources.list"
	# Backports are built upon their release, and experimental upon sid.
	case $suite in
	*-backports) below=${suite%-backports} ;;
	experimental) below=sid ;;
	esac
	[ -z "$below" ] ||
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $below main" >>"$dir/sources.list"
	apt_conf "$dir" >"$dir/apt.conf"
	export APT_CONFIG=$dir/apt.conf # not before mirror, which is about the system's
	apt-get update -q --error-on=any || return
	libraries=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks \
		--no-replaces --no-enhances "$package/$suite" | grep -E '^lib' | sort -u)
	cd "$dir/debs"
	# shellcheck disable=SC2086 # one word for each library
	apt-get download -q $libraries "$package/$suite" || return
	for deb in *.deb; do dpkg -x "$deb" "$dir/root" || return; done
	rm -rf "$dir/root/usr/share"
)

# bring NAME SUITE PACKAGE PROGRAM brings a server to its place.
bring() {
	local name=$1 suite=$2 package=$3 program=$4 dir loader
	dir=$(mktemp -d "$cache/.$name.XXXXXX")
	unpack "$dir" "$suite" "$package" >"$dir/log" 2>&1 || { tail -n 5 "$dir/log" >&2; rm -rf "$dir"; return 1; }
	loader=$(cd "$dir/root" && find . -name 'ld-linux*.so.*' -type f | head -n 1)
	rm -rf "${cache:?}/files/$name"
	mkdir -p "$cache/files"
	mv "$dir/root" "$cache/files/$name"
	# Redis tells by the name under which it was called what it is to be.
	cat >"$dir/run" <<-RUN
		#!/bin/sh
		root=\${0%/*}/files/$name
		libs=\$(echo "\$root"/usr/lib/*-linux-gnu* | tr ' ' :)
		exec "\$root/${loader#./}" --argv0 redis-server --library-path "\$libs" "\$root/usr/bin/$program" "\$@"
	RUN
	chmod +x "$dir/run"
	mv "$dir/run" "$cache/$name"
	rm -rf "$dir"
}

names=("$@")
[ $# -gt 0 ] || names=("${promised[@]}")
missing=()
for name in "${names[@]}"; do
	read -r -a how <<<"$(grep -E "^$name " <<<"$known" || true)"
	[ ${#how[@]} -gt 0 ] || { echo "servers: no server is called $name" >&2; exit 2; }
	version "$name" && continue
	why=''
	ID='' VERSION_CODENAME=''
	[ ! -r /etc/os-release ] || . /etc/os-release
	mkdir -p "$cache"
	if [ "$ID" != debian ]; then
		why="this is no Debian"
	else
		echo "servers: getting $name from Debian's ${how[1]}"
		bring "${how[@]}" || why="it could not be got"
	fi
	[ -n "$why" ] || version "$name" || why="what Debian has is of another version, or does not run here"
	[ -z "$why" ] || { echo "servers: no $name: $why" >&2; missing+=("$name"); }
done
[ ${#missing[@]} -eq 0 ]
