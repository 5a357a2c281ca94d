-- Takes a free key for a job, and parks it at once. A key that is not free refuses the call,
-- which gets no place in the queue.
-- KEYS[2]  the index, if the entry is to be written here
-- ARGV     owner, nonce, reserve ms, retain ms, holder, job, us until its entry is due, in a cluster h
-- Returns  a letter, fence: how the last ownership ended; from the stage usual take
--          {OK, fence, how the last ownership ended} | {HELD, state, ms left, holder, job, fence} | FOREIGN
--          {MORE}, if it is not known yet who is first in line

if live and owner == ARGV[1] and nonce == ARGV[2] and ttl == NO_TIME and job == ARGV[6] then
  resent = true
elseif live then
  outcome = HELD
else
  vacant, hash_only = true, ARGV[8] == 'h'
  heir_owner, heir_call, heir_ttl, heir_retain, heir_holder = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
end
if queue and not resent then asker = {call = ARGV[2]} end

--# park
-- Parks the key if the caller is the heir: the reservation is as long as grant.lua has made
-- the lease, and there is no lease.

if vacant and heir_call and not outcome then
  if KEYS[2] then
    -- A full server must refuse a new lock, but does not refuse bind: see index.lua. It
    -- refuses ZADD. With XX this ZADD adds nothing.
    if not exists then redis.call('ZADD', KEYS[2], 'XX', 0, '') end
    bind(KEYS[2], ARGV[6], string.sub(key, #KEYS[2] + 1), now_us, ARGV[7])
  end
  lease_end, ttl, job = 0, NO_TIME, ARGV[6]
end

--# answer
-- Answers if the call got the key.

if not outcome then return {OK, fence, prior} end
