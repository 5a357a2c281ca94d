-- Ends an ownership, and grants the key to the first waiter. The memo stays. If the argument grant is the nonce of a
-- waiting Acquire, that Acquire loses its place in the queue.
-- ARGV     the beginning of the record up to the owner, with the fence or 'any'; nonce,
--          brief ms, retain ms
--          [, a line each: the inbox of the caller's Store; the key for proofs; 1 if the caller
--          starts a job that gets the key
--          [, reason; how the ownership ends: R, or D if the job is done. If the record must
--          be bound to a job, that job follows: between a line break and two line breaks
--          [, grant, force, idle only 1|0]]]
--          force is 0, or for a forced release the channel on which to notify the holder
-- Returns  OK | LAPSED | {BUSY or NOT_OWNER or WRONG_JOB, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          {MORE, OK or LAPSED}: the first waiter is not found yet, see queue.lua
--          {OK or LAPSED, call, fence and how the previous ownership ended, a line each}:
--          granted to a waiter of the caller's Store
--          {OK or LAPSED, 1}: granted to a waiter, and pushed without a proof
--          {OK or LAPSED, job}: granted to a waiting job; of a slot that was free: {NOT_FOUND, job}

local by_grant = ARGV[8] or ''
--# decide

local call, force, why, how = ARGV[2], ARGV[9] and ARGV[9] ~= '0', ARGV[6] or '', ARGV[7] or 'R'

if by_grant ~= '' then leaving, leaver = by_grant, not force and by or nil end
if ARGV[5] and ARGV[5] ~= '' then
  own_inbox, proof_key, starts = string.match(ARGV[5], '^([^\n]*)\n([^\n]*)(\n?)')
  starts = starts == '\n'
end

if exists and call ~= '' and last == call then
  -- An earlier run of this call has ended an ownership, and the next ownership may have begun. If the reservation had
  -- run out before, that run has set nonce to 'late'.
  answer = ended ~= '' and nonce ~= '' and LAPSED or OK
  vacant = ended ~= ''
elseif outcome and not force then -- refused by term.lua
elseif force and not live then
  outcome = NOT_FOUND
elseif force and by_fence ~= 'any' and by_fence ~= fence then
  outcome = NOT_OWNER
elseif #how > 1 and job ~= string.sub(how, 3, -3) then
  outcome = WRONG_JOB
elseif ARGV[10] == '1' and lease_end > now_ms then
  outcome = BUSY
else
  if force and lease_end > now_ms then
    redis.pcall('PUBLISH', ARGV[9], string.format('%d\n', fence) .. key)
  end
  given_up = math.max(reserved_end - now_ms, 0)
  ended = force and 'F' or string.sub(how, 1, 1)
  answer = live and OK or LAPSED
  nonce, last, reason, changed, prior = live and '' or 'late', call, why, now, '-'
  lease_end, reserved_end = 0, 0
  live, vacant = false, true
  brief, retain = ARGV[3], ARGV[4]
end

--# left
-- The row "left" of the table.

if outcome and force and ARGV[10] == '1' and left and left ~= '' and not (live and job == string.sub(how, 3, -3)) then
  outcome, answer = nil, OK
end
