-- Ends an ownership; the record stays behind, or goes to the first waiter. The
-- memo is not touched. A grant also names a place in the queue, which is given up.
-- ARGV     owner, fence, grant, nonce, retain ms, brief ms, reason,
--          force: 0, or the channel to tell the holder on, idle only 1|0
--          [, job, the job is done 1|0]
-- Returns  OK | LAPSED | {BUSY or NOT_OWNER or WRONG_JOB, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          {MORE, OK or LAPSED}, if it is not known yet who is next

local by, grant_call, call = ARGV[1], ARGV[3], ARGV[4]
local force = ARGV[8] ~= '0'

if queue and grant_call ~= '' then leave(grant_call) end

-- This very call has ended an ownership before; the next may have begun since.
if exists and call ~= '' and last == call then
  -- 'until' is cleared only where the reservation still stood: what is left of it
  -- tells the re-send that the first answer was LAPSED.
  local answer = ended ~= '' and reserved > 0 and LAPSED or OK
  if ended == '' or not queue then return answer end
  local waiter, more = first()
  if more then return {MORE, answer} end
  if waiter then grant(waiter, true) end
  return answer
end

if force then
  if not live then return NOT_FOUND end
  if ARGV[2] ~= '0' and tonumber(ARGV[2]) ~= fence then return obstacle(NOT_OWNER) end
else
  local no = refusal(by, ARGV[2], grant_call, true)
  if no then return no end
end
if ARGV[10] then
  local _, bound = details()
  if bound ~= ARGV[10] then return obstacle(WRONG_JOB) end
end
if ARGV[9] == '1' and lease > now then return obstacle(BUSY) end

if force and lease > now then
  redis.pcall('PUBLISH', ARGV[8], string.format('%d\n', fence) .. key)
end

local in_time, left = live, reserved - now
local holder, job, _, since = details()
ended = force and 'forced' or ARGV[11] == '1' and 'done' or 'released'
nonce, last, lease = call, call, 0
if in_time then reserved = 0 end
set_details(holder, job, ARGV[7], since)
live = false

local waiter, more
if queue then waiter, more = first() end
if waiter then grant(waiter, true) else save(now, life(left)) end
local answer = in_time and OK or LAPSED
if more then return {MORE, answer} end
return answer
