-- Continues a parked or orphaned lock of the same owner.
-- KEYS[2]  the index, if the entry is to be written here
-- ARGV     five parts of the new record: owner; holder; job; nonce; ttl, and the least
--          reservation (the stage fast resume in record.lua shows where the parts stand);
--          least reservation + 1 + retain in ms; a fence of the ownership or 0 for any
--          [, a digit 1|0: with the memo; then the us until the entry is due, or nothing if
--          there is no entry and none is to be written
--          [, to take a Park back: the job before that Park]]
-- Returns  from the stage fast resume: the fence; of a record that is a text, then the lines first and last and how
--          the previous ownership ended, by which the Store knows the record
--          {OK, fence, memo or nil, 1 if recovered else 0}
--          {BUSY or WRONG_JOB or NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          UNLISTED: the call would recover a job's lock, and there is no entry of the index
--
-- The answer to a repeated call never says that the lock was recovered, because the record no longer shows the
-- recovery.

local memo_wanted = ARGV[8] and string.sub(ARGV[8], 1, 1) == '1'
--# decide

local for_job, call = string.sub(ARGV[3], 2, -3), ARGV[4]
local lease_ms, more_ms
if not exists then
  outcome = NOT_FOUND
elseif owner ~= string.sub(ARGV[1], 2, -2) then
  outcome = NOT_OWNER
elseif ended ~= '' then
  outcome = RELEASED
elseif job == '' and ARGV[7] ~= '0' and first + 0 > tonumber(ARGV[7]) then
  outcome = NOT_OWNER
elseif job ~= '' and job ~= for_job and job ~= ARGV[9] then
  outcome = WRONG_JOB
elseif lease_end > now_ms and nonce == call then
  resent, answer = true, {OK, fence, memo, 0}
elseif lease_end > now_ms then
  outcome = BUSY
elseif not live and job ~= '' and (not ARGV[8] or #ARGV[8] == 1) then
  outcome = UNLISTED
else
  fence, nonce, holder, changed = next_fence, call, ARGV[2], now
  local of = ARGV[9] or not live and job or ''
  if KEYS[2] and of ~= '' then bind(KEYS[2], of, string.sub(key, #KEYS[2] + 1), now_us, string.sub(ARGV[8], 2)) end
  if ARGV[9] then job, reserved_end = ARGV[9], 0 end
  lease_ms = string.sub(ARGV[5], 1, 12)
  more_ms = string.sub(ARGV[5], 13) - lease_ms
  retain = ARGV[6] - 1 - lease_ms - more_ms
  answer = {OK, fence, memo, live and 0 or 1}
end
