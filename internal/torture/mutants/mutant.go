package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/joblock/toolkit/internal/history"
)

// mutant is one broken rule.
type mutant struct {
	name  string
	edits []edit
	found []string // complaints that give it away; one is enough
	lossy bool     // takes fail-overs to detect, or slots that move, or a cluster, where records stay hashes
	by    string   // the test of package worker that must detect it, or of the package before a dot: package torture has no keeper
}

// where returns the package of the test that must detect m.
func (m *mutant) where() string {
	switch dir, _, found := strings.Cut(m.by, "."); {
	case m.by == "":
		return "./internal/torture"
	case found:
		return "./" + dir
	}
	return "./worker"
}

// test returns the test that must detect m, and its share of JOBLOCK_TORTURE.
func (m *mutant) test() (name string, share float64) {
	if m.by != "" {
		return m.by[strings.Index(m.by, ".")+1:], 1
	}
	if m.lossy {
		return "TestTortureOn(Sentinel|Cluster)", 0.2
	}
	return "TestTorture", 0.6
}

// native reports whether m breaks a rule of the calls without Lua, which take a server that has SET with IFEQ.
func (m *mutant) native() bool { return m.edits[0].file == native }

// edit replaces a text that occurs once in a file.
type edit struct {
	file     string // from the root of the module
	old, new string
}

const (
	scripts = "joblock/redisstore/scripts/"
	native  = "joblock/redisstore/native.go"
	listing = "worker/internal/keeper/lists.go"

	leakedLock    = "leaked lock"
	leakedWaiters = "leaked waiters"
	leakedEntries = "leaked entries"
)

var mutants = []mutant{
	{"a lock is renewed by a former owner",
		[]edit{{"joblock/redisstore/script.go", `"renew", "term", "renew#decide"`, `"renew", "renew#decide"`}},
		[]string{history.RuleForced, history.RuleOverlap, history.RuleInterleaved}, false, ""},
	{"a lock is released under an older fence",
		[]edit{{scripts + "release.lua", "elseif outcome and not force then", "elseif outcome and not force and not (exists and owner == by and ended == '') then"}},
		[]string{history.RuleOverlap, history.RuleOrder}, false, ""},
	{"the trust deadline counts from the reply",
		[]edit{{"internal/core/holding.go", "h.trust = h.trusted(sent)", "h.trust = h.trusted(time.Now())"}},
		[]string{history.RuleOverlap, history.RuleOrder, history.RuleFence}, false, ""},
	{"a grant that was found counts from the question",
		[]edit{{"internal/core/acquire.go", "a.take(sent.Add(min(0, r.Lease-time.Millisecond-a.o.TTL)), r)", "a.take(sent, r)"}},
		[]string{history.RuleOverlap, history.RuleOrder, history.RuleFence}, false, ""},
	{"a lease has no end",
		[]edit{
			{scripts + "grant.lua", "ttl, reserve = heir_ttl, heir_ttl", "ttl, reserve = '     3600000', '     3600000'"},
			{scripts + "record.lua", "'--' .. now .. ARGV[4]", "'--' .. now .. '     3600000     3600000'"},
			{scripts + "record.lua", "prior .. '-' .. now .. ARGV[4]", "prior .. '-' .. now .. '     3600000     3600000'"},
			{scripts + "record.lua", "(job == '' and ttl or '           0') .. ttl", "'     3600000     3600000'"},
		},
		[]string{leakedLock}, false, ""},
	{"fences do not grow",
		[]edit{
			{scripts + "record.lua", "local next_fence = now\n", "local next_fence = fence or now\n"},
			{scripts + "record.lua", "if exists and fence >= now then next_fence = ", "if false then next_fence = "},
			{scripts + "record.lua", "    if (ended == 'jobR' or ended == 'jobD') and", "    if false and"},
			{scripts + "record.lua", "if head and kind and", "if false and"},
		},
		[]string{history.RuleFence}, false, ""},
	{"a key that is held is granted the short way",
		[]edit{{scripts + "record.lua", "    if (ended == 'jobR' or ended == 'jobD') and string.byte(record, -19) == 10 and", "    if string.sub(record, 1, 3) == 'job' and"}},
		[]string{history.RuleOverlap, history.RuleFence, history.RuleOrder}, false, ""},
	{"a live holder is pre-empted by the next attempt",
		[]edit{{scripts + "resume.lua", "elseif lease_end > now_ms then\n", "elseif false then\n"}},
		[]string{history.RuleOverlap}, false, ""},
	{"a parked lock is anybody's",
		[]edit{{scripts + "park.lua", "NO_TIME, ARGV[4]", "NO_TIME, NO_TIME"}},
		[]string{history.RuleOrder}, false, ""},
	{"who gives up leaves its place behind",
		[]edit{{scripts + "queue.lua", "redis.call('HDEL', key, 'w' .. call, 'q' .. n, ", "redis.call('HDEL', key, 'q' .. n, "}},
		[]string{leakedWaiters}, true, ""},
	{"places of the dead stay behind",
		[]edit{{scripts + "queue.lua", "      else\n        redis.call('HDEL', key, 'q' .. head, 'w' .. call)\n", "      elseif found then\n        redis.call('HDEL', key, 'q' .. head, 'w' .. call)\n"}},
		[]string{leakedWaiters}, true, ""},
	{"a gap in a queue outlives it",
		[]edit{{scripts + "queue.lua", "'g' .. head + 1, 'g' .. to)", "'g' .. head + 1)"}},
		[]string{leakedWaiters}, true, ""},
	{"loss is not signalled by the clock",
		[]edit{{"internal/core/holding.go", "return h.live() && past(now, h.lostAt(h.trust))", "return false"}},
		[]string{history.RuleLate}, false, ""},
	{"a lock answers to any job",
		[]edit{{scripts + "resume.lua", "elseif job ~= '' and job ~= for_job and job ~= ARGV[9] then", "elseif false then"}},
		[]string{history.RuleOrder}, false, ""},
	{"a keeper frees the lock of a job that runs",
		[]edit{{scripts + "release.lua", "elseif ARGV[10] == '1' and lease_end > now_ms then", "elseif false then"}},
		[]string{history.RuleOverlap, history.RuleOrder}, false, ""},
	{"a keeper frees what has changed since it looked",
		[]edit{{scripts + "release.lua", "elseif force and by_fence ~= 'any' and by_fence ~= fence then", "elseif false then"}},
		[]string{history.RuleOrder}, false, ""},
	{"what is reserved for a job is anybody's",
		[]edit{{scripts + "reserve.lua", "now_ms + 1 + ARGV[2]", "now_ms + 1"}},
		[]string{history.RuleOrder}, false, ""},
	{"a limit has a permit too many",
		[]edit{{"joblock/limit/permits.go", "numbers := jitter.Perm(p.n)", "numbers := jitter.Perm(p.n + 1)"}},
		[]string{history.RuleLimit}, false, ""},
	{"a job takes a free key past those who wait",
		[]edit{{scripts + "queue.lua", "  if vacant and queue then\n    local waiter", "  if vacant and queue and not (asker and asker.owner) then\n    local waiter"}},
		[]string{history.RuleLine}, false, ""},
	{"the last in line is served first",
		[]edit{
			{scripts + "record.lua", "redis.call('HGET', key, 'q' .. head) or ''", "redis.call('HGET', key, 'q' .. tail - 1) or ''"},
			{scripts + "record.lua", "        redis.call('HDEL', key, 'q' .. head, 'w' .. call)\n", "        redis.call('HDEL', key, 'q' .. tail - 1, 'w' .. call)\n"},
			{scripts + "record.lua", "head + 1 .. ' ' .. tail .. ' ' .. waiting - 1", "head .. ' ' .. tail - 1 .. ' ' .. waiting - 1"},
		},
		[]string{history.RuleLine}, false, ""},
	{"a job's place is anybody's",
		[]edit{{scripts + "queue.lua", "elseif seat and asker and seat.owner ~= asker.owner then", "elseif false then"}},
		[]string{history.RuleLine}, false, ""},
	{"what a job gets that has waited is not reserved",
		[]edit{{scripts + "record.lua", "(job == '' and ttl or '           0') .. ttl", "(job == '' and ttl .. ttl or '           0           1')"}},
		[]string{history.RuleOrder}, false, ""},
	{"a keeper that keeps a place gives the key away",
		[]edit{{scripts + "reserve.lua", "tonumber(ARGV[2]), not live, ", "tonumber(ARGV[2]), true, "}},
		[]string{history.RuleOverlap, history.RuleOrder}, false, ""},
	{"a keeper that gives up a place frees the key of another job",
		[]edit{{scripts + "release.lua", "elseif #how > 1 and job ~= string.sub(how, 3, -3) then", "elseif false then"}},
		[]string{history.RuleOverlap, history.RuleOrder}, false, ""},
	{"a lock that is taken back stays its job's",
		[]edit{
			{scripts + "resume.lua", "  if ARGV[9] then job, reserved_end = ARGV[9], 0 end\n", ""},
			{scripts + "renew.lua", "    job, reserved_end, changed = ARGV[6], 0, now\n", ""},
		},
		[]string{history.RuleOrder}, false, ""},
	{"a slot goes to the last job in line",
		[]edit{{scripts + "slot.lua", "local n, ended, left_before = head, 0, left", "local n, ended, left_before = math.max(head, tail - 1), 0, left"}},
		[]string{history.RuleLine}, false, ""},
	{"a slot that is in use goes to the next job",
		[]edit{{scripts + "slot.lua", "if force and outcome == NOT_FOUND then", "if force and (outcome == NOT_FOUND or outcome == WRONG_JOB) then"}},
		[]string{history.RuleOverlap, history.RuleOrder, history.RuleFence}, false, ""},
	{"a slot goes to a process that waits for the key",
		[]edit{{scripts + "slot.lua", "elseif found and not found.job then", "elseif false then"}},
		[]string{history.RuleOverlap, history.RuleOrder, history.RuleFence}, false, ""},
	{"entries of the index are never settled",
		[]edit{{scripts + "settle.lua", "score and tonumber(score) == mark", "false"}},
		[]string{leakedEntries}, false, ""},
	{"a grant counts before a replica has it",
		[]edit{{"joblock/redisstore/acknowledge.go", "err == nil && n < s.replicas", "false"}},
		[]string{history.RuleOverlap, history.RuleOrder, history.RuleFence}, true, ""},
	{"a key that is held is taken without a script",
		[]edit{{native, `c.add(ctx, 6, [7]any{"set", &c.name, &c.text, "nx", "px", &c.px})`,
			`c.add(ctx, 5, [7]any{"set", &c.name, &c.text, "px", &c.px})`}},
		[]string{history.RuleOverlap, history.RuleFence, history.RuleOrder}, false, ""},
	{"a Release without a script ends another term",
		[]edit{{native, `c.add(ctx, 7, [7]any{"set", &c.name, &c.text, "ifeq", &c.old, "px", &c.px})`,
			`c.add(ctx, 5, [7]any{"set", &c.name, &c.text, "px", &c.px})`}},
		[]string{history.RuleOverlap, history.RuleFence, history.RuleOrder}, false, ""},
	{"fences do not grow without a script",
		[]edit{
			{native, "= before.fence+1, before.last", "= before.fence, before.last"},
			{native, "max(rec.fence, start), endings", "rec.fence, endings"},
			{native, "fence = max(fence, written)", "_ = max(fence, written)"},
		},
		[]string{history.RuleFence, history.RuleOverlap, history.RuleOrder}, false, ""},
	{"a keeper takes what no list shows for gone",
		[]edit{{listing, "		return false // a new task, or one that should have been seen again\n", "		*f = finding{kind: absent, reason: reasonAbsent}\n		return true\n"}},
		[]string{"freed map["}, false, "TestTaskThatMovesWhileItsQueueIsListed"},
	{"a keeper looks up what a page has not shown when all pages are read",
		[]edit{{listing, "r != nil && seen.Before(r.passed)", "r != nil && false"}},
		[]string{"a lock was freed"}, false, "TestLocksAreFreedPageByPage"},
	{"a keeper does not know the queues when it takes over",
		[]edit{{"worker/internal/keeper/permit.go", "	go k.meetQueues(ctx)\n", ""}},
		[]string{"want it freed"}, false, "TestQueueThatWasDeletedBeforeTheKeeperWorked"},
	{"a step of a chain does not wait for the end of the step before",
		[]edit{{"worker/resume.go", "snoozed := r.awaitPrev(); snoozed != nil", "snoozed := r.awaitPrev(); false && snoozed != nil"}},
		[]string{"ran ["}, false, "TestCrashBetweenTheStepsOfAChain"},
	{"a step of a chain that was handed on waits forever",
		[]edit{{"worker/gone.go", "sts[0]); mine {", "sts[0]); mine && false {"}},
		[]string{"never happened"}, false, "TestCrashBetweenTheStepsOfAChain"},
	{"a keeper frees the lock of a step that is about to be enqueued",
		[]edit{{"worker/internal/keeper/databases.go", "if link, ok := chain.ParseID(id); ok {", "if link, ok := chain.ParseID(id); ok && false {"}},
		[]string{"a stranger's acquire of"}, false, "TestCrashBetweenTheStepsOfAChain"},
	{"a step that a handler has added is lost with its worker",
		[]edit{{"worker/chain.go", "	case link.Added:\n", "	case false:\n"}},
		[]string{"ran ["}, false, "TestCrashBetweenTheStepsOfAChain"},
	{"a reservation that comes late is in no index",
		[]edit{{"joblock/memstore/transition.go", "		a = a.binding(req.Job, req.Grace)\n", ""}},
		[]string{"want it freed"}, false, "TestReservationThatComesLate"},
	{"a keeper's claim ends at once",
		[]edit{{"worker/internal/keeper/work.go", "jobs.Due(ctx, k.cfg.Locks, jobs.DueRequest{Part: part, Limit: batch, Claim: hold})", "jobs.Due(ctx, k.cfg.Locks, jobs.DueRequest{Part: part, Limit: batch, Claim: min(hold, time.Millisecond)})"}},
		[]string{"want parked for dead"}, false, "TestKeepersTakeTurns"},
	{"a keeper that comes back late removes a new entry",
		[]edit{{"joblock/memstore/index.go", "case e == nil || e.Mark != l.Mark:", "case e == nil:"}},
		[]string{"want it freed"}, false, "TestKeeperThatComesBackLate"},
	{"a keeper that comes back late frees a new lock",
		[]edit{{"worker/internal/keeper/reconcile.go", "Fence: c.lock.Fence, Reason", "Reason"}},
		[]string{"want parked for b"}, false, "TestKeeperThatComesBackLate"},
	{"a keeper does not say when a lock is due again",
		[]edit{{"worker/internal/keeper/reconcile.go", "unsettled = jobs.Settle(ctx, k.cfg.Locks, settled...)", "unsettled = nil"}},
		[]string{"locks were read in"}, false, "TestCostOfAPeriod"},
	{"a keeper does not read what was parked again",
		[]edit{{"worker/internal/keeper/sort.go", "!ok || !e.Settled || ", "!ok || "}},
		[]string{"want parked for w7"}, false, "TestLockParkedAgainWhileItsTaskIsListed"},
	{"a keeper does not rest",
		[]edit{{"worker/internal/keeper/pace.go", "float64(busy) * (1/p.cfg.MaxLoad - 1)", "float64(busy) * 0"}},
		[]string{"of the time, want about"}, false, "TestShareOfAsynqsRedis"},
	{"a keeper too many works",
		[]edit{{"worker/internal/keeper/permit.go", "k.cfg.Locks, k.cfg.MaxKeepers", "k.cfg.Locks, k.cfg.MaxKeepers+1"}},
		[]string{"work, want"}, false, "TestAsManyKeepersWorkAsConfigured"},
	{"a keeper without answers keeps its permit",
		[]edit{{"worker/internal/keeper/outage.go", "return o.last.Sub(o.began) >= most", "return false"}},
		[]string{"still works"}, false, "TestKeeperThatGetsNoAnswersGivesItsPlaceAway"},
	{"a worker gives the key of a sequence on before asynq has the result",
		[]edit{{"worker/settle.go", "if (s.sequence != nil || s.cancel) && s.ctx.Err() == nil {", "if false {"}},
		[]string{"the key was of"}, false, "TestNextJobStartsWhenAsynqHasTheResult"},
	{"a job of any queue ends one that runs",
		[]edit{{"worker/superseded.go", "cancel && (!ownQueue || to == from)", "cancel && (to == from || true)"}},
		[]string{"the job of another queue has ended"}, false, "TestJobOfAnotherQueueIsNotSuperseded"},
	{"a job that a dead enqueue has left runs after a newer one",
		[]edit{{"worker/overtaken.go", "case !ran:", "case false && !ran:"}},
		[]string{"happened:"}, false, "TestJobLeftByADeadEnqueueDoesNotRunAfterANewerOne"},
	{"a superseded job that was delivered again runs",
		[]edit{{"worker/run.go", "errors.Is(by, ErrSuperseded) {", "false && errors.Is(by, ErrSuperseded) {"}},
		[]string{"happened:"}, false, "TestSupersededDuringAShutdown"},
	{"a worker believes that asynq has the result",
		[]edit{{"worker/fate.go", `fate := f.writtenFate(); fate.Over != ""`, `fate := f.writtenFate(); fate.Delay == 0`}},
		[]string{"ran ["}, false, "TestResultThatAsynqDoesNotGetKeepsTheOrder"},
	{"the command that ends a job of a sequence does not ask whether asynq has the result",
		[]edit{{"internal/asynqprivate/end.go", "if redis.pcall('EXISTS'", "if false and redis.pcall('EXISTS'"}},
		[]string{"ran ["}, false, "TestResultThatAsynqDoesNotGetKeepsTheOrder"},
	{"a release that has to wait leaves its lock without renewals",
		[]edit{{"internal/core/release.go", "		_ = k.l.engine.add(k)", "		_ = k"}},
		[]string{"want it renewed"}, false, "joblock.TestReleaserThatFails"},
	{"a sequence that is to halt goes on",
		[]edit{{"worker/carrier.go", "c.sequence != nil && c.sequence.Halt", "false"}},
		[]string{"ran ["}, false, "TestHaltedSequence"},
	{"a job in line runs before its time",
		[]edit{{"worker/turn.go", "time.Until(r.sequence.NotBefore) <= 0 ||", "time.Until(r.sequence.NotBefore) < driver.MaxPeriod ||"}},
		[]string{"ran ["}, false, "TestTurnBeforeTheTime"},
	{"a job that has lost its place says nothing",
		[]edit{{"worker/turn.go", `r.log().Warn("worker: a job of a sequence has neither`, `r.log().Debug("worker: a job of a sequence has neither`}},
		[]string{"warnings of a lost place"}, false, "TestJobThatHasLostItsPlace"},
	{"a claim that a turn has come is believed",
		[]edit{{"internal/jobline/starter.go", "if check && !Waits(", "if false && !Waits("}},
		[]string{"the handler ran"}, false, "TestForgedAnnouncement"},
	{"who gives a key to a job tries once to start its task",
		[]edit{{"internal/jobline/starter.go", "if try == len(pauses) {", "if try == 0 {"}},
		[]string{"b started after", "never happened: b runs"}, false, "TestTurnBeforeTheEnqueue"},
	{"a slot that is given back is not passed on",
		[]edit{{"joblock/memstore/transition.go", "	first := q.nextWaiter(now, q != r)\n", "	if q != r {\n		return a\n	}\n	first := q.nextWaiter(now, q != r)\n"}},
		[]string{"jobs ran at a time"}, false, "TestSeveralJobsOfASequenceAtATime"},
	{"the job that gets a slot is in no index",
		[]edit{{"joblock/memstore/transition.go", "		a = a.binding(first.job, min(req.Grace, first.TTL/2))\n", ""}},
		[]string{"never happened: b gone"}, false, "TestKeeperLooksAfterSlots"},
	{"a job does not look for its slot",
		[]edit{{"worker/line.go", "	if limit < 2 {\n", "	if true {\n"}, {"worker/turn.go", "case len(got) > 0:", "case len(got) > driver.MaxSlots:"}},
		[]string{"started [", "never happened: b gone"}, false, "TestJobFindsItsSlot"},
	{"a job that has a slot takes the free key as well",
		[]edit{{"worker/turn.go", "case len(got) > 0:", "case len(got) > driver.MaxSlots:"}},
		[]string{"while a runs under its slot"}, false, "TestJobWithASlotFindsTheKeyFree"},
	{"a job asks for a new place before it knows what it has",
		[]edit{{"worker/turn.go", "switch err := r.keepPlace(ctx, token); {", "switch err := error(joblock.ErrNotFound); {"}},
		[]string{"never happened: a runs"}, false, "TestJobWithASlotLinesUp"},
	{"a task that was archived while it waited runs when its turn comes",
		[]edit{{"internal/asynqprivate/move.go", `if redis.call('HGET', KEYS[1], 'state') ~= ARGV[2] or redis.call('ZREM', KEYS[2], ARGV[1]) == 0 then`, "if false then"}},
		[]string{"ran ["}, false, "TestTurnOfATaskThatHasEnded"},
	{"a job in a sequence runs up to a second before its time",
		[]edit{{"internal/enqueue/task.go", "s.at.Add(time.Second - 1).Truncate(time.Second)", "s.at"}},
		[]string{"before its time"}, false, "TestTimeWithinASecond"},
	{"a keeper leaves the places of dead jobs in line",
		[]edit{{"worker/internal/keeper/verdict.go", "	return verdict{action: free, reason: task.reason}\n", "	return verdict{action: keep}\n"}},
		[]string{"in line wait"}, false, "TestPeopleAndAJobThatWaits"},
	{"a keeper does not start the job whose turn has come",
		[]edit{{"worker/internal/keeper/verdict.go", "if task.waits && neverResumed(lock) {", "if false {"}},
		[]string{"never happened: all have run", "all had run after"}, false, "TestCrashBetweenTheStepsOfASequence"},
	{"a keeper does not hear whose turn has come",
		[]edit{{"worker/internal/keeper/work.go", "	defer k.listen(ctx)()\n", ""}},
		[]string{"all had run after"}, false, "TestCrashBetweenTheStepsOfASequence"},
	{"a keeper lets the places of jobs that wait end",
		[]edit{{"worker/internal/keeper/verdict.go", "return verdict{action: extend, reserve: envelope.Patience}", "return verdict{action: keep}"}},
		[]string{"in line wait"}, false, "TestKeeperKeepsALine"},
	{"a keeper ends the halt of a sequence",
		[]edit{{"worker/internal/keeper/verdict.go", "	if task.halts {\n", "	if false {\n"}},
		[]string{"want parked for a"}, false, "TestKeeperKeepsALine"},
	{"a keeper looks for the task of a cooldown",
		[]edit{{"worker/internal/keeper/reconcile.go", "!= driver.EndedLapsed, coolsDown(lock):", "!= driver.EndedLapsed:"}},
		[]string{"the keeper has looked for"}, false, "TestCooldown"},
	{"a failed job cools its key down",
		[]edit{{"worker/settle.go", "if reason == verdict.ReasonDone {", "if true {"}},
		[]string{"want it released because"}, false, "TestCooldown"},
	{"a job runs again in the cooldown after it",
		[]edit{{"worker/gone.go", " && !r.cooled(token, sts[0])", ""}},
		[]string{"the handler ran 1 times, want 0"}, false, "TestCrashAfterTheBeginOfACooldown"},
	{"a job is taken for the one before the cooldown",
		[]edit{{"worker/cooldown.go", "st.Job == envelope.Cooling(c.job)", "st.Job != c.job"}},
		[]string{"each up to"}, false, "TestCooldownAfterAJobThatWasToBeReplaced"},
	{"a debounce forgets its first enqueue",
		[]edit{{"internal/enqueue/debounce.go", "b.MaxWait-sts[0].Age", "b.MaxWait"}},
		[]string{"each up to"}, false, "TestDebounceAsReportedElsewhere"},
	{"a replacement of a debounced job is due at once",
		[]edit{{"internal/enqueue/replace.go", "kind: u.kind", "kind: u"}},
		[]string{"each up to"}, false, "TestDebounce"},
}

// overlay writes the mutant's files to dir, and file, which go test's -overlay reads.
func (m *mutant) overlay(root, dir string) (file string, err error) {
	replace := make(map[string]string)
	for i, e := range m.edits {
		path := filepath.Join(root, e.file)
		source := path
		if changed, ok := replace[path]; ok { // by an earlier edit
			source = changed
		}
		text, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		if n := bytes.Count(text, []byte(e.old)); n != 1 {
			return "", fmt.Errorf("%s: %q occurs %d times in %s, must be there once", m.name, e.old, n, e.file)
		}
		changed := filepath.Join(dir, fmt.Sprintf("%d%s", i, filepath.Ext(e.file)))
		if err := os.WriteFile(changed, bytes.Replace(text, []byte(e.old), []byte(e.new), 1), 0o600); err != nil {
			return "", err
		}
		replace[path] = changed
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}
