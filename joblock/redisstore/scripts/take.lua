-- Takes a free key for a job, and parks the key at once. If the key is not free, the job may get a place in the queue.
-- KEYS[2]  the index, if the entry is to be written here
-- ARGV     owner, nonce, reserve ms, retain ms, holder, job, us until the entry is due
--          [, h in a cluster, else nothing [, patience ms, most places or 0, channel of the places of jobs]]
-- Returns  from the stage fast take: a text of a letter for how the previous ownership ended, and the fence
--          {OK, fence, how the previous ownership ended}
--          {HELD, state, ms left, holder, job, fence [, places ahead, now in us, since in us]}
--          {FULL, state, ms left, holder, job, places} | {NOT_OWNER, state, ms left, holder, job} | FOREIGN
--          {MORE}: the first waiter is not found yet, see queue.lua

if live and owner == ARGV[1] and nonce == ARGV[2] and ttl == NO_TIME and job == ARGV[6] then
  resent = true
elseif live then
  outcome = HELD
else
  vacant, hash_only = true, ARGV[8] == 'h'
  heir_owner, heir_call, heir_ttl, heir_retain, heir_holder, heir_job = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
end
if ARGV[9] and (queue or outcome) and not resent then
  asker = {call = ARGV[2], owner = ARGV[1], retain = tonumber(ARGV[4]), index = KEYS[2]}
  if not live or job ~= ARGV[6] then
    asker.place = string.format('%d\n', ARGV[3] + 1 + ARGV[4]) .. ARGV[3] .. '\n' .. ARGV[1] .. '\n' .. ARGV[5] .. '\n' .. ARGV[6] .. '\n\n'
    asker.inbox, asker.patience, asker.most = ARGV[11], tonumber(ARGV[9]), live and ARGV[10] ~= '0' and tonumber(ARGV[10])
  end
  seat = ARGV[2]
elseif queue and not resent then
  asker = {call = ARGV[2]}
end

--# bind
-- Writes the entry of the index if the job has got the key or a place.

if KEYS[2] and (vacant and heir_call and not outcome or outcome == HELD and extra or joined) then
  -- A full server must refuse a new lock and a new place. The ZREM and ZADD of bind are not refused: see index.lua. But
  -- this ZADD is refused, and so is the ZADD of queue.lua. On a server that is not full, this ZADD adds nothing, because
  -- of XX.
  if not exists then redis.call('ZADD', KEYS[2], 'XX', 0, '') end
  bind(KEYS[2], ARGV[6], string.sub(key, #KEYS[2] + 1), now_us, ARGV[7])
end

--# answer
-- Answers if the call got the key.

if not outcome then return {OK, fence, prior} end
