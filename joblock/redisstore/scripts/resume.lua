-- Continues a parked or orphaned lock of the same owner.
-- ARGV     memo 1|0, owner, nonce, ttl ms, retain ms, holder, job, reserve ms,
--          in the index 1|0, a fence of the ownership or 0 for any
--          [, to take a Park back: the job before that Park]
-- Returns  {OK, fence, memo or nil, 1 if recovered else 0}
--          {BUSY or WRONG_JOB or NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          UNLISTED: the call would recover a job's lock, and the caller has to write the
--          entry of the index first
--
-- The answer to a repeated call never says that the lock was recovered, because the record no longer shows the
-- recovery.

local memo_wanted = ARGV[1] == '1'
--# decide

local lease_ms, more_ms
if not exists then
  outcome = NOT_FOUND
elseif owner ~= ARGV[2] then
  outcome = NOT_OWNER
elseif ended ~= '' then
  outcome = RELEASED
elseif job == '' and ARGV[10] ~= '0' and first + 0 > tonumber(ARGV[10]) then
  outcome = NOT_OWNER
elseif job ~= '' and job ~= ARGV[7] and job ~= ARGV[11] then
  outcome = WRONG_JOB
elseif lease_end > now_ms and nonce == ARGV[3] then
  resent, answer = true, {OK, fence, memo, 0}
elseif lease_end > now_ms then
  outcome = BUSY
elseif not live and job ~= '' and ARGV[9] ~= '1' then
  outcome = UNLISTED
else
  fence, nonce, holder, changed = next_fence, ARGV[3], ARGV[6], now
  if ARGV[11] then job, reserved_end = ARGV[11], 0 end
  lease_ms, more_ms, retain = ARGV[4], ARGV[8], ARGV[5]
  answer = {OK, fence, memo, live and 0 or 1}
end
