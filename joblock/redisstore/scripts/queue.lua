-- Serves the queue of waiters of a key. This stage does four things, in this order. First, the place of the call that
-- the local leaving names is dropped. Second, the place of the call that the local seat names is looked up, and kept for
-- longer if reserve.lua asks for that. Third, the first waiter becomes the heir if the key is vacant. Fourth, the asker
-- gets a place if the asker did not get the key.
--
-- Places are numbered. These fields of the record keep the places:
--
--   q        head, the number of the first place; tail, the number of the next new place;
--            how many wait
--   q<n>     a line each: until when place n is kept (ms since 1970); ttl + 1 + retain (ms);
--            ttl (ms, 12 bytes); owner; holder; job; an empty line; call; channel of the
--            waiter; when the place was taken (us since 1970). A waiting job has a job, and its
--            ttl is the length of the reservation. Later versions may add lines: these are
--            not read, and a script that renews the place may drop them or keep them unchanged
--   w<call>  the number of the place of a call
--   g<n>     the number at the other end of a gap that begins or ends at n
--
-- A waiter that leaves from between other waiters leaves a gap of places. Gaps that touch are merged, and no gap is at
-- either end of the queue. So joining, asking again, leaving and granting each take a constant number of commands,
-- however many wait or have left.
--
-- The place of a dead waiter is dropped when that place is the first. A call drops no more than STEPS places. If more
-- places of dead waiters may follow, the key stays free, and the answer is MORE: the caller sends the call again. A job
-- that asks for a place gets its place before that: the next Take of the same batch may find the end of the dead
-- waiters, and must not come first.

if queue or asker then
  local STEPS = 100 -- some 1.5 ms of the server's time
--# place
  -- place returns the place of call, nil if call has no place. A place has these fields: n, its number; till, until when
  -- the place is kept in ms; rest, the text of q<n> that follows; owner; holder; job, '' for an Acquire; since in us.
  local function place(call)
    local n = tonumber(redis.call('HGET', key, 'w' .. call) or nil)
    if not n or n < head or n >= tail then return nil end
    local till, rest = string.match(redis.call('HGET', key, 'q' .. n) or '', '^(%d+)(\n.*)$')
    if not till or #till > 15 then return nil end
    local owner, holder, job, of, since = string.match(rest .. '\n', '^\n%d+\n[%d ]+\n([^\n]*)\n([^\n]*)\n([^\n]*)\n\n([^\n]*)\n[^\n]*\n([%d ]+)\n')
    if of ~= call or #since ~= 16 or not tonumber(since) then return nil end
    return {n = n, till = tonumber(till), rest = rest, owner = owner, holder = holder, job = job, since = since}
  end

--# serve
  -- remember makes the record last for life ms at least. The reservation counts if the record has no time to live: a
  -- stranger may have removed that time.
  local function remember(life)
    life = math.max(life, reserved_end - now_ms)
    if redis.call('PTTL', key) < life then redis.call('PEXPIRE', key, string.format('%d', life)) end
  end

  -- join gives the asker a place, or prolongs the place at, which the asker has. The result is how many places are
  -- before the asker's place, places in gaps included, and when the place was taken.
  local function join(at)
    local index = not at and asker.index
    if index then redis.call('ZADD', index, 'XX', 0, '') end -- see take.lua
    if not hash then
      local life = math.max(redis.call('PTTL', key), reserved_end - now_ms)
      redis.call('DEL', key)
      redis.call('HSET', key, 's', record)
      redis.call('PEXPIRE', key, life)
      hash = true
    end
    local n, since = tail, now
    if at then n, since = at.n, at.since end
    local entry = string.format('%d\n', now_ms + asker.patience) .. asker.place .. asker.call .. '\n' .. asker.inbox .. '\n' .. since
    -- Only another program can have written this field. A full server refuses HSET to a script that has not written yet;
    -- HDEL counts as a write, so a waiter keeps its place on a full server.
    redis.call('HDEL', key, 'g' .. n)
    if at then
      redis.call('HSET', key, 'w' .. asker.call, n, 'q' .. n, entry)
    else
      tail, waiting, queue_changed = tail + 1, waiting + 1, nil
      redis.call('HSET', key, 'w' .. asker.call, n, 'q' .. n, entry, 'q', string.format('%d %d %d', head, tail, waiting))
    end
    remember(asker.patience + asker.retain)
    return n - head, since
  end

  -- other_end reads the text of a field g<n> and returns the other end of the gap. The result is nil if there is no
  -- gap, or if the other end is not from lo to hi.
  local function other_end(text, lo, hi)
    local n = tonumber(text or nil)
    if n and n >= lo and n <= hi and n % 1 == 0 then return n end
    return nil
  end

  -- The function leave gives up the place of call, but no place of another owner than by, unless by is nil.
  local function leave(call, by)
    local at = place(call)
    if not at or by and at.owner ~= by then return end
    left = at.job
    local n = at.n
    local gaps = redis.call('HMGET', key, 'g' .. n - 1, 'g' .. n + 1)
    local from = other_end(gaps[1], head + 1, n - 1) or n
    local to = other_end(gaps[2], n + 1, tail - 2) or n
    redis.call('HDEL', key, 'w' .. call, 'q' .. n, 'g' .. from, 'g' .. n - 1, 'g' .. n + 1, 'g' .. to)
    waiting, queue_changed = waiting - 1, true
    if n == head then
      head = to + 1
    elseif n == tail - 1 then
      tail = from
    else
      redis.call('HSET', key, 'g' .. from, to, 'g' .. to, from)
    end
  end

  -- in_line reads the text of a field q<n>, and returns the waiter and the waiter's call. The waiter is nil if the
  -- place has ended, or if the field is not valid.
  local function in_line(entry)
    local till, life, ttl, owner, holder, job, call, inbox = string.match(entry .. '\n',
      '^(%d+)\n(%d+)\n([%d ]+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n\n([^\n]*)\n([^\n]*)\n[%d ]+\n')
    till, life = tonumber(till or nil), tonumber(life or nil)
    local keep = life and #ttl == 12 and tonumber(ttl) and life - 1 - ttl
    if not till or not keep or keep < 0 or life > 999999999999 then return nil, '' end -- not 12 digits
    if till <= now_ms then return nil, call end
    return {call = call, owner = owner, holder = holder, job = job ~= '' and job, ttl = ttl, retain = keep, inbox = inbox,
      till = till}, call
  end

  -- next_waiter removes the first place, and repeats that as long as the removed place has ended. The result is the
  -- waiter of the last removed place, or nil if that place has ended too. The second result is true if STEPS places
  -- have ended and further places follow.
  local function next_waiter()
    local found
    queue_changed = true
    for _ = 1, STEPS do
      if head == tail then break end
      local at = redis.call('HMGET', key, 'q' .. head, 'g' .. head + 1)
      if not at[1] then
        -- This package never writes a queue without its first place, so a stranger has written this queue. The length
        -- of such a queue cannot be trusted. So the queue is dropped as a whole, not place by place. The waiters join
        -- it again when they next ask.
        head, waiting = tail, 0
        break
      end
      local call
      found, call = in_line(at[1])
      local to = other_end(at[2], head + 1, tail - 2)
      if to then
        redis.call('HDEL', key, 'q' .. head, 'w' .. call, 'g' .. head + 1, 'g' .. to)
      else
        redis.call('HDEL', key, 'q' .. head, 'w' .. call)
      end
      head, waiting = (to or head) + 1, waiting - 1
      if found then break end
    end
    return found, not found and head < tail
  end

--# give
  if leaving then leave(leaving, leaver) end
  if seat then
    seat = hash and place(seat) or nil
    if keep_ms and seat and seat.job == ARGV[1] then
      redis.call('HDEL', key, 'g' .. seat.n) -- removes nothing: a full server refuses HSET to a script that has not written
      seat.till = math.max(seat.till, now_ms + keep_ms)
      redis.call('HSET', key, 'q' .. seat.n, string.format('%d', seat.till) .. seat.rest)
      remember(keep_ms + ARGV[3])
    elseif keep_ms then
      seat, vacant = nil, nil
    elseif seat and asker and seat.owner ~= asker.owner then
      outcome, vacant, heir_call, asker = NOT_OWNER, nil, nil, {}
    end
  end
  if vacant and queue then
    local waiter, more = next_waiter()
    if more then
      heir_call, answer = nil, {MORE, answer}
      if asker and asker.place and asker.owner then
        join(seat and seat.n >= head and seat or nil)
        joined = true
      end
    elseif waiter and not (asker and waiter.call == asker.call) then
      heir_owner, heir_call, heir_ttl, heir_retain, heir_holder = waiter.owner, waiter.call, waiter.ttl, waiter.retain, waiter.holder
      heir_job, push, heir_till = waiter.job, waiter.inbox, waiter.till
      if asker then outcome = HELD end
    end
  end
  if outcome == HELD and asker and asker.inbox then
    local at
    if not asker.owner then at = hash and place(asker.call) elseif seat and seat.n >= head then at = seat end
    if not at and asker.most and waiting >= asker.most then
      outcome, extra = FULL, waiting
    else
      extra, extra3 = join(at)
      extra2 = now
      if not asker.owner then extra3 = nil end
    end
  end
end
