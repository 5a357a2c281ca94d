// Joblock is the command line of the toolkit: locks in Redis for shell scripts, for programs in other languages, and
// for operators. Install it with
//
//	go install github.com/joblock/toolkit/cmd/joblock@latest
//	joblock help           lists the commands
//
// # Commands
//
//	run KEY -- COMMAND     runs a command while it has the lock; ends the command before the lock can be lost
//	ls [PREFIX]            lists locks
//	get KEY                shows everything about one key
//	explain KEY            says in sentences who has a key, why, what frees it, and what an operator may do
//	waiters KEY            lists who waits for a key, in order
//	permits KEY            lists who has the permits of a limit
//	watch [KEY...]         shows what happens to locks, as it happens
//	events [KEY]           lists what has happened, from the journal that programs keep, or follows it
//	history KEY            lists what is known about the past of a key
//	top [PREFIX]           shows the locks that need attention, live
//	acquire KEY            takes a lock, and writes its token
//	renew                  makes the lock of a token last for another lease
//	release                gives the lock of a token back
//	park                   reserves the lock of a token for a job, or for the caller that resumes the token
//	resume                 takes a parked lock over by its token
//	force-release KEY      frees a key that is held, after showing what will happen
//	audit [KEY]            lists what operators have done, by whom and why
//	ping                   measures how long taking and releasing a lock takes
//	serve                  serves locks over HTTP, for programs in every language
//	token new              makes a bearer token for callers of "serve"
//	demo                   runs a Redis with locks, waiters and jobs, to try commands on
//	cron COMMAND           lists and controls cron jobs: ls, get, next, history, nodes, scopes; pause, resume,
//	                       trigger, forget, backfill
//	jobs COMMAND           shows the locks of asynq's tasks with the state of the tasks, and controls them: ls, get,
//	                       sequences, pauses; run, cancel, drop, archive, skip, annotate, pause, resume
//	limits [COMMAND]       lists and sets the limits that programs name: set, clear
//	outbox                 lists how far behind the relays of outboxes are, and their errors
//	doctor                 reports problems of servers, keepers, clocks, databases and cron nodes, and what to do
//	export FILE            prints the Grafana dashboard, or the alerts for Prometheus
//	version                prints the version
//	completion SHELL       prints a completion script for bash, zsh, fish or PowerShell
//
// "joblock help COMMAND" explains the flags. RUN.md, next to this file, has a row for each situation in which a command
// under "joblock run" can find itself.
//
// # Where the locks are
//
//	--redis URL            or the variable JOBLOCK_REDIS; default redis://localhost:6379
//	--redis-password-file  or the variable JOBLOCK_REDIS_PASSWORD_FILE: a file with the password and nothing else
//	--sentinel-user, --sentinel-password-file, or the variable JOBLOCK_SENTINEL_PASSWORD_FILE
//	--tls-ca, --tls-cert, --tls-key
//	--asynq URL            of asynq's database, or the variable JOBLOCK_ASYNQ; default: where the locks are
//	--server               a lock server in place of Redis, or the variable JOBLOCK_SERVER; see below
//	--prefix               default "joblock:", as in package redisstore
//	--timeout              gives up when Redis has not responded for this long; default 3s
//
// The URL is one of:
//
//	redis://[user@]host[:port][/database]             one server; rediss:// with TLS
//	redis-sentinel://[user@]host[:port],.../master[/database]   through Sentinels; rediss-sentinel:// with TLS
//	redis-cluster://[user@]host[:port],...             a cluster; rediss-cluster:// with TLS
//	unix:///path/of/socket[?db=database]
//
// The parameters ?sentinel_user=user and sentinel_password=password, which a redis-sentinel:// URL may have, are for
// the Sentinels. The user and the password in front of the hosts are for the servers.
//
// Every user of the machine can see the flags, so a password in --redis is refused. The URL in JOBLOCK_REDIS may have
// passwords; a command under "joblock run" gets the variable without them. Each file may be a pipe, such as the shell's
// <(command): joblock reads each file once.
//
// # A lock server in place of Redis
//
// With --server URL the commands use a lock server ("joblock serve") instead of Redis. Several URLs, separated by commas,
// are replicas. The bearer token comes from the file in --server-token-file, or in JOBLOCK_SERVER_TOKEN_FILE. --tls-ca,
// --tls-cert and --tls-key then apply to the server. Flags about Redis, such as --prefix and --asynq, are refused: the
// server's prefix applies.
//
//	the same         run, acquire, renew, release, park, resume, ping; ls, get, explain, waiters, permits, watch, top,
//	                 events, history, force-release, audit, doctor, outbox; all commands of jobs, limits and cron
//	with Redis only  the flag --payload; a --share other than 0.25
//	different        the audit names the account of the caller, and says how a cron trigger has ended even without --wait;
//	                 history shows the actions of operators only to callers with the scope admin; the server's --max-ttl
//	                 bounds --ttl. An acquire that may wait for longer than a minute, or that takes a permit, is not found
//	                 again if its answer is lost: that lock ends with its lease
//
// # Tokens
//
// The commands acquire, renew, release, park and resume are for scripts; docs/scripts.md has more about them. The token
// of a lock is a line of letters, digits, - and _. A caller that has the token has the lock, so a token is never an
// argument or a variable: it is passed by --token-file, by --token-fd, or by the standard input and output.
//
// The first line of a token file is the token. While the outcome of a call is unknown, the file has a second line.
//
// # Output
//
// Data goes to the standard output, and everything else to the standard error. No output contains a password, and only
// the commands that make tokens print tokens.
//
// Commands that show something have the flag --output:
//
//	table, wide  for people; columns may change. wide has more columns
//	json         one document, with the format's version: {"v":1,"items":[...]}, or {"v":1,...} for one object
//	jsonl        one object on a line, as soon as it is known; a single object has "v", too
//	name         the first column alone, one on a line
//
// The directory schema has a JSON schema for each document and each object: ls.json for "joblock ls", and so on. An
// object of "v" 1 may get more fields, but none is removed or changes its meaning. If Redis stops responding, the
// document of json is left incomplete, and the exit code is 69. In tables invisible characters of keys, labels and
// reasons are written as in Go strings, in JSON as escapes: no text from Redis can control a terminal.
//
// # Exit codes
//
//	0         yes, done
//	1         Redis has answered, and the answer is no
//	64        wrong usage: an unknown flag, a bad key, a value out of bounds
//	69        Redis did not answer; whether the call took effect is unknown, and joblock has tried to clean up
//	70        a fault of joblock itself
//	75        another caller has the lock; the same call may succeed later; -E chooses another code
//	77        Redis refused the login of this user, or the user lacks a permission
//	79        the lock was lost: the lease had ended; with "run", before the command had ended
//	126, 127  run: the command cannot be executed; there is no such command
//	128+n     the signal n ended the command, or ended the wait for the lock
//
// After 0, 126, 127 and 128+n from the command, "run" has released the lock; if Redis does not answer, the lock ends
// with its lease. Every other code from 0 to 255 may also be the exit code of the command itself. Use "run --report
// FILE" to tell them apart: FILE says whether the command ran.
package main
