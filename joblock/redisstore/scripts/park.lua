-- Ends the live term and leaves the key reserved for its owner.
-- KEYS[2]  the index, if the entry is to be written here
-- ARGV     owner, fence, grant, nonce, reserve ms, retain ms, job, us until its entry is due
-- Returns  {OK, fence} | LAPSED | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN

-- again: an earlier run of this call has parked the lock. If a Renew has taken that back
-- since, the lease is not 0, and this is a new Park. With another job, the caller got no
-- answer then, and now parks for this job.
local again = live and owner == ARGV[1] and nonce == ARGV[4] and lease == 0
if again and job == ARGV[7] then
  resent, answer = true, {OK, fence}
elseif not again and not outcome and lease <= now then
  outcome = LAPSED
elseif again or not outcome then
  if KEYS[2] then bind(KEYS[2], ARGV[7], string.sub(key, #KEYS[2] + 1), now_us, ARGV[8]) end
  fence, nonce, lease, reserved, job = next_fence, ARGV[4], 0, now + 1 + ARGV[5], ARGV[7]
  changed, ends, retain = now, reserved, ARGV[6]
  answer = {OK, fence}
end
