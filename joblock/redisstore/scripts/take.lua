-- Takes a free key for a job, and parks the key at once. If the key is not free, the call is refused and gets no place
-- in the queue.
-- KEYS[2]  the index, if the entry is to be written here
-- ARGV     owner, nonce, reserve ms, retain ms, holder, job, us until the entry is due [, in a cluster: h]
-- Returns  from the stage usual take: a text of a letter for how the previous ownership ended, and the fence
--          {OK, fence, how the previous ownership ended} | {HELD, state, ms left, holder, job, fence} | FOREIGN
--          {MORE}: the first waiter is not found yet, see queue.lua

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
-- Parks the key if the caller is the heir. The stage grant has made a lease and a reservation of one length. This stage
-- drops the lease and keeps the reservation.

if vacant and heir_call and not outcome then
  if KEYS[2] then
    -- A full server must refuse a new lock. The ZREM and ZADD of bind are not refused: see index.lua. But this ZADD is
    -- refused. On a server that is not full, this ZADD adds nothing, because of XX.
    if not exists then redis.call('ZADD', KEYS[2], 'XX', 0, '') end
    bind(KEYS[2], ARGV[6], string.sub(key, #KEYS[2] + 1), now_us, ARGV[7])
  end
  lease_end, ttl, job = 0, NO_TIME, ARGV[6]
end

--# answer
-- Answers if the call got the key.

if not outcome then return {OK, fence, prior} end
