-- Serves the queue of waiters of a key.
--
-- Waiters are numbered. 'q' holds the number of the first, the one that the next to
-- come will get, and how many there are; 'q<n>' what is known of waiter n: until when
-- its place is kept (ms), the ttl and retain of its lease (ms), its call, owner, holder
-- and inbox; 'w<call>' its number. Where places in between were left there is a gap:
-- 'g<n>' at either end of it holds the number of the other end, and gaps that touch are
-- one. So the first place and the last one are always taken, and joining, refreshing,
-- leaving and granting each take a constant number of commands, however many wait, and
-- however many have left.
--
-- Places of waiters that have died are dropped when it would be their turn; no call
-- drops more than STEPS. If that is not enough the key stays free, and the answer is
-- MORE: the same call is to be sent again, and goes on.

if queue or asker then
  local STEPS = 100 -- some 1.5 ms of the server's time

  -- place returns the number of a call's place, nil if it has none.
  local function place(call)
    local n = tonumber(redis.call('HGET', key, 'w' .. call) or nil)
    if not n or n < head or n >= tail then return nil end
    local entry = redis.call('HGET', key, 'q' .. n)
    if entry and string.match(entry, '^%d+\n%d+\n%d+\n([^\n]*)\n') == call then return n end
    return nil
  end

  -- join gives the asker its place, or keeps the one it has, and returns how many
  -- places are before it, those in gaps included.
  local function join()
    local n = place(asker.call)
    if not n then
      n, tail, waiting, queue_changed = tail, tail + 1, waiting + 1, true
      redis.call('HSET', key, 'w' .. asker.call, n)
      redis.call('HDEL', key, 'g' .. n) -- there is none, unless somebody else has written it
    end
    redis.call('HSET', key, 'q' .. n, string.format('%d\n%d\n%d\n', now + asker.patience, asker.ttl, asker.retain)
      .. asker.call .. '\n' .. asker.owner .. '\n' .. asker.holder .. '\n' .. asker.inbox)
    local life = asker.patience + asker.retain
    if redis.call('PTTL', key) < life then redis.call('PEXPIRE', key, string.format('%d', life)) end
    return n - head
  end

  -- other_end reads what is at one end of a gap: the number of the other, which must be
  -- from lo to hi; nil if there is no gap.
  local function other_end(text, lo, hi)
    local n = tonumber(text or nil)
    if n and n >= lo and n <= hi and n % 1 == 0 then return n end
    return nil
  end

  -- leave gives a place up.
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

  -- in_line takes an entry apart. It returns what is known of the waiter, nil if its
  -- place is not kept any more or the entry is none, and its call.
  local function in_line(entry)
    local till, ttl, keep, call, owner, holder, inbox = string.match(entry,
      '^(%d+)\n(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
    till, ttl, keep = tonumber(till or nil), tonumber(ttl or nil), tonumber(keep or nil)
    if not till or now + ttl + keep >= MAX_FENCE then return nil, '' end
    if till <= now then return nil, call end
    return {call = call, owner = owner, holder = holder, ttl = ttl, retain = keep, inbox = inbox}, call
  end

  -- first takes the first waiter whose place is still kept out of the queue, and
  -- returns what is known of it; nil if nobody waits, and nil and true if it has looked
  -- at STEPS places and there are more.
  local function first()
    local found
    queue_changed = true
    for _ = 1, STEPS do
      if head == tail then break end
      local at = redis.call('HMGET', key, 'q' .. head, 'g' .. head + 1)
      if not at[1] then
        -- Nobody here leaves a queue without its first place. Those who wait join anew
        -- when they ask, and nobody looks for them in a number of places that somebody
        -- else has made up.
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
    local waiter, more = first()
    if more then
      heir_call, answer = nil, {MORE, answer}
    elseif waiter and not (asker and waiter.call == asker.call) then
      heir_owner, heir_call, heir_ttl, heir_retain, heir_holder = waiter.owner, waiter.call, waiter.ttl, waiter.retain, waiter.holder
      push = waiter.inbox
      if asker then outcome = HELD end
    end
  end
  if outcome == HELD and asker.inbox then
    extra, extra2 = join(), string.format('%d', now_us)
  end
end
