-- Ends the live term and leaves the key reserved for its owner.
-- ARGV     owner, fence, grant, nonce, hold ms, retain ms, job
-- Returns  {OK, fence} | {LAPSED} | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | {NOT_FOUND} | {FOREIGN}

local by, call, hold, retain = ARGV[1], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])

-- This very call has parked it before. A lease above 0 means that a Renew took
-- the lock back since: then this is the next Park. Another job means that the
-- caller never got the answer and parks for that one now.
local again = owner == by and resent(call) and lease == 0 and live
if again and job == ARGV[7] then return {OK, fence} end

if not again then
  local no = refusal(by, ARGV[2], ARGV[3], false)
  if no then return no end
  if lease <= now then return {LAPSED} end
end

local granted, ends = next_fence(), deadline(hold)
save(ends, retain,
  'nonce', call, 'fence', dec(granted), 'lease', '0', 'until', dec(ends), 'job', ARGV[7])
return {OK, granted}
