-- Serves the queue of waiters of a key. This stage does three things, in this order. First, the place of the call that
-- the local leaving names is dropped. Second, the first waiter becomes the heir if the key is vacant. Third, the asker
-- gets a place if the asker did not get the key.
--
-- Places are numbered. These fields of the record keep the places:
--
--   q        head, the number of the first place; tail, the number of the next new place;
--            how many wait
--   q<n>     a line each: until when place n is kept (ms since 1970); ttl + 1 + retain (ms);
--            ttl (ms, 12 bytes); owner; holder; two empty lines; call; channel of the waiter
--   w<call>  the number of the place of a call
--   g<n>     the number at the other end of a gap that begins or ends at n
--
-- A waiter that leaves from between other waiters leaves a gap of places. Gaps that touch are merged, and no gap is at
-- either end of the queue. So joining, asking again, leaving and granting each take a constant number of commands,
-- however many wait or have left.
--
-- The place of a dead waiter is dropped when that place is the first. A call drops no more than STEPS places. If more
-- places of dead waiters may follow, the key stays free, and the answer is MORE: the caller sends the call again.

if queue or asker then
  local STEPS = 100 -- some 1.5 ms of the server's time

  -- place returns the number of the place of call, nil if call has no place.
  local function place(call)
    local n = tonumber(redis.call('HGET', key, 'w' .. call) or nil)
    if not n or n < head or n >= tail then return nil end
    local entry = redis.call('HGET', key, 'q' .. n)
    if entry and string.match(entry, '^%d+\n%d+\n[%d ]+\n[^\n]*\n[^\n]*\n\n\n([^\n]*)\n') == call then return n end
    return nil
  end

  -- join gives the asker a place, or prolongs the place that the asker has. The result is how many places are before
  -- the asker's place, places in gaps included.
  local function join()
    if not hash then
      local life = math.max(redis.call('PTTL', key), reserved_end - now_ms)
      redis.call('DEL', key)
      redis.call('HSET', key, 's', record)
      redis.call('PEXPIRE', key, life)
      hash = true
    end
    local n = place(asker.call)
    if not n then
      n, tail, waiting, queue_changed = tail, tail + 1, waiting + 1, true
      redis.call('HDEL', key, 'g' .. n) -- only a stranger can have written this field
    end
    redis.call('HSET', key, 'w' .. asker.call, n, 'q' .. n,
      string.format('%d\n', now_ms + asker.patience) .. asker.place .. asker.call .. '\n' .. asker.inbox)
    -- The reservation counts if the record has no time to live: a stranger may have removed that time.
    local life = math.max(asker.patience + asker.retain, reserved_end - now_ms)
    if redis.call('PTTL', key) < life then redis.call('PEXPIRE', key, string.format('%d', life)) end
    return n - head
  end

  -- other_end reads the text of a field g<n> and returns the other end of the gap. The result is nil if there is no
  -- gap, or if the other end is not from lo to hi.
  local function other_end(text, lo, hi)
    local n = tonumber(text or nil)
    if n and n >= lo and n <= hi and n % 1 == 0 then return n end
    return nil
  end

  -- The function leave gives up the place of call.
  local function leave(call)
    local n = place(call)
    if not n then return end
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
    local till, life, ttl, owner, holder, call, inbox = string.match(entry,
      '^(%d+)\n(%d+)\n([%d ]+)\n([^\n]*)\n([^\n]*)\n\n\n([^\n]*)\n([^\n]*)$')
    till, life = tonumber(till or nil), tonumber(life or nil)
    local keep = life and #ttl == 12 and tonumber(ttl) and life - 1 - ttl
    if not till or not keep or keep < 0 or life > 999999999999 then return nil, '' end -- not 12 digits
    if till <= now_ms then return nil, call end
    return {call = call, owner = owner, holder = holder, ttl = ttl, retain = keep, inbox = inbox}, call
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
        -- anew when they ask again.
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

  if leaving then leave(leaving) end
  if vacant and queue then
    local waiter, more = next_waiter()
    if more then
      heir_call, answer = nil, {MORE, answer}
    elseif waiter and not (asker and waiter.call == asker.call) then
      heir_owner, heir_call, heir_ttl, heir_retain, heir_holder = waiter.owner, waiter.call, waiter.ttl, waiter.retain, waiter.holder
      push = waiter.inbox
      if asker then outcome = HELD end
    end
  end
  if outcome == HELD and asker.inbox then
    extra, extra2 = join(), now
  end
end
