#!/bin/sh
# Prepares the export of an account under the lock of the account, and hands the lock over to a job, which exports. The
# script needs the command joblock, and start, the program in the directory of that name. A worker runs the job:
#
#	REDIS_ADDR=localhost:6379 go run ./examples/service/worker
#
#	REDIS_ADDR=localhost:6379 JOBLOCK_REDIS=redis://localhost:6379 ./export.sh acct-7
#
# Exit codes: 0 if the job has the lock; 75 if another holder has it; any other code if something has failed, and the lock is free
# again, by its lease at the latest.
set -eu
account=$1
token=$(mktemp)

# Whatever happens, the lock is given back, unless the job has it.
finish() {
	if [ -s "$token" ]; then
		joblock release --reason "export.sh has failed" --token-file "$token" || :
	fi
	rm -f "$token"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Repeats a command of joblock while Redis does not answer. Nothing happens twice: the token is in the file before the
# first call.
patiently() {
	for pause in 1 2 4 0; do
		code=0
		"$@" || code=$?
		if [ $code -ne 69 ]; then
			return $code
		fi
		sleep $pause
	done
	return $code
}

patiently joblock acquire "export:$account" --ttl 1m --wait 30s --token-file "$token"

# The work of the script. Between two parts, the script makes sure that it still has the lock.
for part in customers orders; do
	echo "preparing the $part of $account"
	sleep "${PART:-1}"
	patiently joblock renew --token-file "$token"
done

id=export-$account-$(date +%s)-$$
patiently joblock park --job "default/$id" --reserve 1h --token-file "$token"
job=$(start -account "$account" -id "$id" <"$token")
: >"$token"
echo "job $job has the lock"
