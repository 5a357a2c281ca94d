-- Ends an ownership. The record stays behind, or goes to the first waiter. The memo is
-- not touched. A grant also names a place in the queue, which is given up.
-- ARGV     owner, fence or 'any', grant, nonce, retain ms, brief ms, reason,
--          force: 0, or the channel to tell the holder on, idle only 1|0
--          [, job, the job is done 1|0]
-- Returns  OK | LAPSED | {BUSY or NOT_OWNER or WRONG_JOB, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          {MORE, OK or LAPSED}, if it is not known yet who is next

local call, force = ARGV[4], ARGV[8] ~= '0'

if ARGV[3] ~= '' then leaving = ARGV[3] end

if exists and call ~= '' and last == call then
  -- This very call has ended an ownership before; the next may have begun since.
  -- 'until' is cleared only where the reservation still stood: what is left of it
  -- tells the re-send that the first answer was LAPSED.
  answer = ended ~= '' and reserved > 0 and LAPSED or OK
  vacant = ended ~= ''
elseif outcome and not force then -- term.lua has refused it
elseif force and not live then
  outcome = NOT_FOUND
elseif force and ARGV[2] ~= 'any' and tonumber(ARGV[2]) ~= fence then
  outcome = NOT_OWNER
elseif ARGV[10] and job ~= ARGV[10] then
  outcome = WRONG_JOB
elseif ARGV[9] == '1' and lease > now then
  outcome = BUSY
else
  if force and lease > now then
    redis.pcall('PUBLISH', ARGV[8], string.format('%d\n', fence) .. key)
  end
  left = math.max(reserved - now, 0)
  ended = force and 'forced' or ARGV[11] == '1' and 'done' or 'released'
  answer = live and OK or LAPSED
  if live then reserved = 0 end
  nonce, last, lease, reason, changed = call, call, 0, ARGV[7], now
  live, vacant = false, true
  ends, retain, brief = now, ARGV[5], ARGV[6]
end
