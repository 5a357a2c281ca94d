-- Ends an ownership, and passes the key on to the first waiter. The memo stays. If grant is
-- the nonce of a waiting Acquire, that loses its place in the queue.
-- ARGV     owner, fence or 'any', grant, nonce, retain ms, brief ms, reason,
--          0 or, to force it, the channel to tell the holder on, idle only 1|0
--          [, job, the job is done 1|0]
-- Returns  OK | LAPSED | {BUSY or NOT_OWNER or WRONG_JOB, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          {MORE, OK or LAPSED}, if it is not known yet who is first in line

local call, force = ARGV[4], ARGV[8] ~= '0'

if ARGV[3] ~= '' then leaving = ARGV[3] end

if exists and call ~= '' and last == call then
  -- An earlier run of this call has ended an ownership, and the next may have begun. If
  -- the reservation had run out, that run did not set it to 0, and answered LAPSED.
  answer = ended ~= '' and reserved > 0 and LAPSED or OK
  vacant = ended ~= ''
elseif outcome and not force then -- refused by term.lua
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
