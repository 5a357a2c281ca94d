-- Has a release of a slot other than the first serve the queue of the slots' key. From here on, the locals key, hash,
-- queue, head, tail and waiting are those of that key. The stage back makes these locals those of the slot again.
-- KEYS[2]   the Redis key of the record that has the queue
-- KEYS[3]   the index
-- ARGV[11]  us until the entry of a job that gets the slot is due; ARGV[12]  h in a cluster, else nothing

local slot, slot_hash = key, hash
key, hash, hash_only = KEYS[2], true, ARGV[12] == 'h'
queue, head, tail, waiting = nil, 0, 0, 0
if not redis.call('MGET', key)[1] then -- a string has no queue, and HGET of a string is an error
  local row = redis.pcall('HMGET', key, 'q', 's')
  queue = row[1]
  -- If the record cannot be read, neither can its queue: the slot is not passed on.
  if queue and row[2] and not string.find(row[2], RECORD) then queue = nil end
end
if queue then
  head, tail, waiting = string.match(queue, '^(%d+) (%d+) (%d+)$')
  head, tail, waiting = tonumber(head or nil), tonumber(tail or nil), tonumber(waiting or nil)
  if not head or head > tail or tail > MAX_PLACE or waiting > tail - head then
    queue, head, tail, waiting = nil, 0, 0, 0
  end
end
--# decide
-- The row "passed on" of the table. Without waiters, the answer is that of the row "free".

if force and outcome == NOT_FOUND then
  outcome, answer, vacant = nil, NOT_FOUND, true
end
--# serve
  -- A job that leaves is the row "left", which comes before "passed on".
  if vacant and answer == NOT_FOUND and leaving then
    leave(leaving, leaver)
    leaving = nil
    if ARGV[10] == '1' and left and left ~= '' then vacant, answer = nil, OK end
  end

  -- The first waiter is the first job whose place has not ended. The places of Acquires stay. A call passes over no more
  -- than ten times STEPS places.
  next_waiter = function()
    local n, ended, left_before = head, 0, left
    for _ = 1, 10 * STEPS do
      if n >= tail or ended == STEPS then break end
      local at = redis.call('HMGET', key, 'q' .. n, 'g' .. n)
      local found, call
      if at[1] then found, call = in_line(at[1]) end
      if not at[1] then
        n = (other_end(at[2], n, tail - 2) or n) + 1
      elseif found and not found.job then
        n = n + 1
      else
        leave(call)
        left = left_before
        if found then return found, false end
        n, ended = math.max(n + 1, head), ended + 1
      end
    end
    return nil, ended == STEPS and n < tail
  end

--# back

if queue_changed then
  if head == tail then
    redis.call('HDEL', key, 'q')
  else
    redis.call('HSET', key, 'q', string.format('%d %d %d', head, tail, waiting))
  end
end
key, hash, queue, head, tail, waiting, queue_changed = slot, slot_hash, nil, 0, 0, 0, nil
if heir_job then
  bind(KEYS[3], heir_job, string.sub(key, #KEYS[3] + 1), now_us, math.min(ARGV[11], heir_ttl * 500))
end
