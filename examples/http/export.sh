#!/bin/sh
# Enqueues the export of an account together with its lock, with curl alone. Usage: export.sh ACCOUNT
# Exit codes: 0 if the job has the lock; 75 if an export of the account is under way; 69 if no server answers.
set -eu
account=$1
server=${JOBLOCK_SERVER:-http://localhost:7420}
name=$(cat /proc/sys/kernel/random/uuid) # of this call: a repetition with the same name does nothing twice

# The token goes to curl by its standard input, because everybody on the machine can read arguments.
token() {
	[ -z "${JOBLOCK_SERVER_TOKEN_FILE:-}" ] || printf 'header = "Authorization: Bearer %s"\n' "$(cat "$JOBLOCK_SERVER_TOKEN_FILE")"
}

status=$(token | curl -sS -K - -o /dev/null -w '%{http_code}' --max-time 5 --retry 5 --retry-connrefused --retry-max-time 20 \
	-H 'Content-Type: application/json' -H "Idempotency-Key: $name" \
	-d "{\"key\":\"export:$account\",\"type\":\"export\",\"payload\":{\"account\":\"$account\"}}" \
	"$server/v1/enqueue") || :
case $status in
*200 | *201) echo "the job of $account has the lock" ;;
*409) echo "an export of $account is under way" >&2; exit 75 ;;
*) echo "no job: $status" >&2; exit 69 ;;
esac
