-- Comes between record.lua and the scripts that work on the queue of waiters.
--
-- Waiters are numbered. 'q' holds the number of the first and the one that the
-- next to come will get; 'q<n>' what is known of waiter n: until when its place is
-- kept (ms), the ttl and retain of its lease (ms), its call, owner, holder and
-- inbox; 'w<call>' its number. Joining, refreshing, leaving and granting each take
-- a constant number of commands; an empty place is skipped once.

local head, tail = 0, 0
if queue then
  head, tail = string.match(queue, '^(%d+) (%d+)$')
  head, tail = tonumber(head), tonumber(tail)
end

local function save_queue()
  if head == tail then
    redis.call('HDEL', key, 'q')
  else
    redis.call('HSET', key, 'q', string.format('%d %d', head, tail))
  end
end

-- join gives a call its place, or keeps the one it has, and returns how many
-- places are before it, empty ones included.
local function join(call, by, holder, ttl, retain, inbox, patience)
  local n = tonumber(redis.call('HGET', key, 'w' .. call) or nil)
  if not n then
    n, tail = tail, tail + 1
    redis.call('HSET', key, 'w' .. call, n)
    save_queue()
  end
  redis.call('HSET', key, 'q' .. n, string.format('%d\n%d\n%d\n', now + patience, ttl, retain)
    .. call .. '\n' .. by .. '\n' .. holder .. '\n' .. inbox)
  if redis.call('PTTL', key) < patience + retain then
    redis.call('PEXPIRE', key, string.format('%d', patience + retain))
  end
  return n - head
end

local function empty(n) return redis.call('HEXISTS', key, 'q' .. string.format('%d', n)) == 0 end

-- leave gives a place up. Empty places at either end go with it: a key that is
-- held for long, while many wait for a moment each, would otherwise show waiters
-- that have left, hide from the first in line that it is the first, and cost
-- whoever frees it a look at each of them.
local function leave(call)
  local n = redis.call('HGET', key, 'w' .. call)
  if not n then return end
  redis.call('HDEL', key, 'w' .. call, 'q' .. n)
  local from, to = head, tail
  while head < tail and empty(head) do head = head + 1 end
  while head < tail and empty(tail - 1) do tail = tail - 1 end
  if head > from or tail < to then save_queue() end
end

-- first takes the first waiter whose place is still kept out of the queue, and
-- returns what is known of it; nil if nobody waits.
local function first()
  local from, found = head, nil
  while head < tail and not found do
    local entry = redis.call('HGET', key, 'q' .. head)
    if entry then
      local ends, ttl, retain, call, by, holder, inbox = string.match(entry,
        '^(%d+)\n(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
      redis.call('HDEL', key, 'q' .. head, 'w' .. call)
      if tonumber(ends) > now then
        found = {call = call, by = by, holder = holder, inbox = inbox,
          ttl = tonumber(ttl), retain = tonumber(retain)}
      end
    end
    head = head + 1
  end
  if head > from then save_queue() end
  return found
end

-- grant makes a waiter the owner. What it would have been told had it asked is
-- pushed to its inbox, unless it is the one that is asking; returns the end of the
-- previous ownership.
local function grant(waiter, push)
  local how = ended or ''
  if exists and how == '' then how = 'lapsed' end
  fence = next_fence()
  lease = now + 1 + waiter.ttl
  reserved = lease
  ended, owner, nonce = '', waiter.by, waiter.call
  last = last or ''
  set_details(waiter.holder, '', '', string.format('%d', now))
  save(reserved, waiter.retain)
  exists, live = true, true
  if push then
    -- Where the releaser's ACL forbids it the grant stands all the same, and the
    -- waiter finds it when it asks.
    redis.pcall('PUBLISH', waiter.inbox, waiter.call .. '\n' .. string.format('%d\n%d', fence, now_us)
      .. '\n' .. how .. '\n' .. (memo or ''))
  end
  return how
end
