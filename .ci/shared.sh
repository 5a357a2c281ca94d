#!/usr/bin/env bash
# shared.sh COMMAND... runs a command with the redis-server that the tests of all packages share, see redistest.Shared.
# $JOBLOCK_SERVER is the program, by default redis-server. Without one the command runs all the same, and the tests
# that need it are left out; in CI they fail.
set -euo pipefail

program=${JOBLOCK_SERVER:-redis-server}
if ! command -v "$program" >/dev/null; then
	"$@"
	echo "NOT RUN: the tests that need a $program, which this machine does not have."
	exit
fi

dir=$(mktemp -d)
pid=''
trap '[ -z "$pid" ] || { kill -9 "$pid"; wait "$pid"; } 2>/dev/null || true; rm -rf "$dir"' EXIT

# answers reports whether the server on the port is ours and answers.
answers() {
	local reply
	exec 3<>"/dev/tcp/127.0.0.1/$1" || return
	printf 'INFO server\r\n' >&3
	while read -r -t 5 reply <&3; do
		case $reply in
		"process_id:$pid"$'\r') exec 3>&-; return ;;
		'') break ;;
		esac
	done
	exec 3>&-
	return 1
} 2>/dev/null

for _ in 1 2 3 4 5; do # another process may take the port first
	port=$((15000 + RANDOM % 17000))
	"$program" --port $port --bind 127.0.0.1 --save '' --appendonly no --databases 1024 --dir "$dir" >"$dir/log" &
	pid=$!
	while kill -0 $pid 2>/dev/null; do
		if answers $port; then
			JOBLOCK_REDIS=127.0.0.1:$port "$@" && exit 0 || exit $?
		fi
		sleep 0.02
	done
done
echo "shared.sh: $program does not start:" >&2
cat "$dir/log" >&2
exit 1
