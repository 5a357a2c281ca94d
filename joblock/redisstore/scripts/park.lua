-- Ends the live term and leaves the key reserved for its owner.
-- KEYS[2]  the index, if the entry is to be written here
-- ARGV     the beginning of the record, up to the owner; grant, nonce, reserve ms, retain ms,
--          job, us until the entry is due
-- Returns  {OK, fence} | LAPSED | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN

local by_grant = ARGV[2]
--# decide

-- The local again: an earlier run of this call has parked the lock. again is false if a Renew has taken that Park back
-- since: then there is a lease, and this call is a new Park. If the earlier run was for another job, its caller got no
-- answer, and now parks the lock for this job.
local again = live and owner == by and nonce == ARGV[3] and ttl == NO_TIME
if again and job == ARGV[6] then
  resent, answer = true, {OK, fence}
elseif not again and not outcome and lease_end <= now_ms then
  outcome = LAPSED
elseif again or not outcome then
  if KEYS[2] then bind(KEYS[2], ARGV[6], string.sub(key, #KEYS[2] + 1), now_us, ARGV[7]) end
  fence, nonce, job, changed = next_fence, ARGV[3], ARGV[6], now
  at, ttl, reserve = now, NO_TIME, ARGV[4]
  lease_end, reserved_end = 0, now_ms + 1 + reserve
  retain = ARGV[5]
  answer = {OK, fence}
end
