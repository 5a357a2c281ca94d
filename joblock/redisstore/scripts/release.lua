-- Ends an ownership, and grants the key to the first waiter. The memo stays. If the argument grant is the nonce of a
-- waiting Acquire, that Acquire loses its place in the queue.
-- ARGV     the beginning of the record up to the owner, with the fence or 'any'; nonce,
--          brief ms, retain ms
--          [, the inbox of the caller's Store and the key for proofs, a line each
--          [, grant, reason, force, idle only 1|0 [, job, the job is done 1|0]]]
--          force is 0, or for a forced release the channel on which to tell the holder
-- Returns  OK | LAPSED | {BUSY or NOT_OWNER or WRONG_JOB, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          {MORE, OK or LAPSED}: the first waiter is not found yet, see queue.lua
--          {OK or LAPSED, call, fence and how the previous ownership ended, a line each}:
--          granted to a waiter of the caller's Store
--          {OK or LAPSED, 1}: granted to a waiter, and pushed without a proof

local by_grant = ARGV[6] or ''
--# decide

local call, force, why = ARGV[2], ARGV[8] and ARGV[8] ~= '0', ARGV[7] or ''

if by_grant ~= '' then leaving = by_grant end
if ARGV[5] and ARGV[5] ~= '' then
  own_inbox, proof_key = string.match(ARGV[5], '^([^\n]*)\n(.*)$')
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
elseif ARGV[10] and job ~= ARGV[10] then
  outcome = WRONG_JOB
elseif ARGV[9] == '1' and lease_end > now_ms then
  outcome = BUSY
else
  if force and lease_end > now_ms then
    redis.pcall('PUBLISH', ARGV[8], string.format('%d\n', fence) .. key)
  end
  left = math.max(reserved_end - now_ms, 0)
  ended = force and 'F' or ARGV[11] == '1' and 'D' or 'R'
  answer = live and OK or LAPSED
  nonce, last, reason, changed, prior = live and '' or 'late', call, why, now, '-'
  lease_end, reserved_end = 0, 0
  live, vacant = false, true
  brief, retain = ARGV[3], ARGV[4]
end
