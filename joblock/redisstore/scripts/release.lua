-- Ends an ownership; the record stays behind. The memo is not touched.
-- ARGV     owner, fence, grant, nonce, retain ms, reason, force 1|0, idle only 1|0
-- Returns  {OK, fence} | {LAPSED} | {BUSY or NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | {NOT_FOUND} | {FOREIGN}

local by, call = ARGV[1], ARGV[4]
local force, idle_only = ARGV[7] == '1', ARGV[8] == '1'
local how = force and 'forced' or 'released'

-- 'until' is cleared only where the reservation still stood: what is left of it
-- tells the re-send that the first answer was LAPSED.
if exists and ended == how and resent(call) and (force or owner == by) then
  if reserved > 0 then return {LAPSED} end
  return {OK, fence}
end

if force then
  if not live then return {NOT_FOUND} end
else
  local no = refusal(by, ARGV[2], ARGV[3], true)
  if no then return no end
end
if idle_only and lease > now then return obstacle(BUSY) end

save(now, tonumber(ARGV[5]),
  'nonce', call, 'lease', '0', 'until', live and '0' or dec(reserved), 'ended', how, 'reason', ARGV[6])
if live then return {OK, fence} end
return {LAPSED}
