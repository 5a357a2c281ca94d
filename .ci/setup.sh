#!/usr/bin/env bash
# setup.sh [redis] installs what the tests need in addition to Go, if it is missing. For make test that is redis-server;
# for all tests also a C compiler for the race detector, promtool for the alerts, a browser for the pages of the lock
# server, curl for its documents, PostgreSQL and MariaDB for the outbox, and the sources of locales for servers in locales
# other than C. It asks nothing; without root it goes through sudo.
set -euo pipefail

have() { command -v "$1" >/dev/null 2>&1; }

have_cc() {
	local cc
	cc=$(go env CC)
	have "${cc%% *}"
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif have sudo; then
		sudo "$@"
	else
		echo "setup: not root, and no sudo to run: $*" >&2
		return 1
	fi
}

have_browser() { have chromium || have chromium-browser || have google-chrome || [ -n "${JOBLOCK_CHROMIUM:-}" ]; }

have_databases() { ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || have initdb && have mariadb-install-db; }

have_locales() { have localedef && [ -e /usr/share/i18n/locales/en_US ]; }

# with_apt redis|cc|browser, and so on: one function for each package manager. Tried in turn.
with_apt() {
	local packages=(redis-server)
	[ "$1" = cc ] && packages=(gcc libc6-dev)
	[ "$1" = browser ] && packages=(chromium)
	[ "$1" = prom ] && packages=(prometheus)
	[ "$1" = curl ] && packages=(curl)
	[ "$1" = databases ] && packages=(postgresql mariadb-server)
	[ "$1" = locales ] && packages=(locales)
	# Lists that are a little old may do, so a failed update is not the end.
	as_root apt-get -o DPkg::Lock::Timeout=120 update -q || true
	# RUNLEVEL=1 starts no service.
	as_root env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 \
		install -q -y --no-install-recommends "${packages[@]}"
}

with_dnf() {
	case $1 in
	cc) as_root dnf install -y gcc ;;
	browser) as_root dnf install -y chromium ;;
	prom) as_root dnf install -y golang-github-prometheus ;;
	curl) as_root dnf install -y curl ;;
	databases) as_root dnf install -y postgresql-server mariadb-server ;;
	locales) as_root dnf install -y glibc-common glibc-locale-source ;;
	# Newer Fedora ships Valkey, which has redis-server in a package for compatibility.
	redis) as_root dnf install -y redis || as_root dnf install -y valkey valkey-compat-redis ;;
	esac
}

with_apk() {
	local packages=(redis)
	[ "$1" = cc ] && packages=(gcc musl-dev)
	[ "$1" = browser ] && packages=(chromium)
	[ "$1" = prom ] && packages=(prometheus)
	[ "$1" = curl ] && packages=(curl)
	[ "$1" = databases ] && packages=(postgresql mariadb)
	[ "$1" = locales ] && return 1 # musl compares texts by their bytes in every locale
	as_root apk add --no-cache "${packages[@]}"
}

with_brew() {
	local package=redis
	[ "$1" = cc ] && package=gcc
	[ "$1" = browser ] && package=chromium
	[ "$1" = prom ] && package=prometheus
	[ "$1" = curl ] && package=curl
	[ "$1" = databases ] && package=(postgresql mariadb)
	[ "$1" = locales ] && return 1 # the systems of brew have others
	brew install "${package[@]}" # brew refuses to run as root
}

# ensure WHAT NAME TEST... installs WHAT unless the test says that it is there.
ensure() {
	local what=$1 name=$2 manager found=
	shift 2
	"$@" && return
	for manager in apt:apt-get dnf:dnf apk:apk brew:brew; do
		have "${manager#*:}" || continue
		found+=" ${manager#*:}"
		echo "setup: $name is missing, installing it with ${manager#*:}"
		if "with_${manager%%:*}" "$what" </dev/null; then
			hash -r
			"$@" && return
		fi
	done
	if [ -z "$found" ]; then
		echo "setup: $name is missing and none of apt-get, dnf, apk and brew is here; install $name by hand" >&2
	else
		echo "setup: $name is still missing after trying$found; install it by hand and see that it is in PATH" >&2
	fi
	exit 1
}

have go || {
	echo "setup: go is missing; see https://go.dev/doc/install" >&2
	exit 1
}
# ensure_for_some WITHOUT WHAT NAME TEST... is ensure, but without WHAT only its tests are left out, and WITHOUT says
# so. CI has everything.
ensure_for_some() {
	local without=$1
	shift
	if [ "${CI:-}" = true ]; then
		ensure "$@"
	else
		(ensure "$@") || echo "setup: $without" >&2
	fi
}
ensure_for_some "the tests on a redis-server are not run" redis redis-server have redis-server
[ "${1:-}" != redis ] || exit 0
ensure cc "a C compiler" have_cc
ensure_for_some "the alerts are not tried with promtool" prom promtool have promtool
ensure_for_some "the pages of the lock server are not tried in a browser" browser "a browser" have_browser
ensure_for_some "the commands of docs/server.md are not tried" curl curl have curl
ensure_for_some "the outbox is tried in SQLite only" databases "PostgreSQL or MariaDB" have_databases
ensure_for_some "no server is tried in a locale other than C" locales "the sources of locales" have_locales
