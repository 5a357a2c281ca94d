-- Ends the live term and leaves the key reserved for its owner.
-- KEYS[2]  the index, if the entry is to be written here
-- ARGV     owner, fence, grant, nonce, hold ms, retain ms, job, how long until its entry is due in us
-- Returns  {OK, fence} | LAPSED | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN

local by, call, hold, retain = ARGV[1], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

-- This very call has parked it before. A lease above 0 means that a Renew took
-- the lock back since: then this is the next Park. Another job means that the
-- caller never got the answer and parks for that one now.
local again = live and owner == by and nonce == call and lease == 0
if not again then
  local no = refusal(by, ARGV[2], ARGV[3], false)
  if no then return no end
  if lease <= now then return LAPSED end
end
local holder, job, reason, since = details()
if again and job == ARGV[7] then
  touch()
  return {OK, fence}
end

if KEYS[2] then bind(KEYS[2], ARGV[7], string.sub(key, #KEYS[2] + 1), now_us, ARGV[8]) end
fence, nonce, lease, reserved = next_fence(), call, 0, now + 1 + hold
set_details(holder, ARGV[7], reason, since)
save(reserved, retain)
return {OK, fence}
