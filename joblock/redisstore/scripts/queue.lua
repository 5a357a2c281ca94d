-- Comes between record.lua and the scripts that work on the queue of waiters.
--
-- Waiters are numbered. 'q' holds the number of the first and the one that the
-- next to come will get; 'q<n>' what is known of waiter n: until when its place is
-- kept (ms), the ttl and retain of its lease (ms), its call, owner, holder and
-- inbox; 'w<call>' its number. Joining, refreshing, leaving and granting each take
-- a constant number of commands; an empty place is skipped once, and very many of
-- them in one step.

local STEPS = 1000 -- how many places are looked at one by one

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
  if not n or n < head or n >= tail then
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

local function empty(n) return redis.call('HEXISTS', key, 'q' .. n) == 0 end

-- places lists the places that are not empty, from the last to the one numbered from.
local function places(from)
  local list = {}
  for _, field in ipairs(redis.call('HKEYS', key)) do
    local n = tonumber(string.match(field, '^q(%d+)$') or nil)
    if n and n >= from and n < tail then list[#list + 1] = n end
  end
  table.sort(list, function(a, b) return a > b end)
  return list
end

-- leave gives a place up. Empty places at either end go with it: a key that is
-- held for long, while many wait for a moment each, would otherwise show waiters
-- that have left, and hide from the first in line that it is the first.
local function leave(call)
  local n = redis.call('HGET', key, 'w' .. call)
  if not n then return end
  redis.call('HDEL', key, 'w' .. call, 'q' .. n)
  local from, to, steps = head, tail, 0
  while head < tail and steps < STEPS and empty(head) do head, steps = head + 1, steps + 1 end
  while head < tail and steps < STEPS and empty(tail - 1) do tail, steps = tail - 1, steps + 1 end
  if steps == STEPS then
    local list = places(head)
    if list[1] then head, tail = list[#list], list[1] + 1 else head = tail end
  end
  if head > from or tail < to then save_queue() end
end

-- in_line takes an entry apart. It returns what is known of the waiter, nil if its
-- place is not kept any more or the entry is none, and its call.
local function in_line(entry)
  local ends, ttl, retain, call, by, holder, inbox = string.match(entry,
    '^(%d+)\n(%d+)\n(%d+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
  ends, ttl, retain = tonumber(ends or nil), tonumber(ttl or nil), tonumber(retain or nil)
  if not ends or now + ttl + retain >= MAX_FENCE then return nil, '' end
  if ends <= now then return nil, call end
  return {call = call, by = by, holder = holder, inbox = inbox, ttl = ttl, retain = retain}, call
end

-- first takes the first waiter whose place is still kept out of the queue, and
-- returns what is known of it; nil if nobody waits.
local function first()
  local from, found, list = head, nil, nil
  while head < tail and not found do
    local entry = redis.call('HGET', key, 'q' .. head)
    if entry then
      local call
      found, call = in_line(entry)
      redis.call('HDEL', key, 'q' .. head, 'w' .. call)
    end
    if list then
      list[#list] = nil -- that was head
    elseif head - from == STEPS then
      list = places(head + 1)
    end
    if list then head = list[#list] or tail else head = head + 1 end
  end
  if head > from then save_queue() end
  return found
end

-- grant makes a waiter the owner. Its call is pushed to its inbox, unless it is the one
-- that is asking: anybody may publish, so it has to ask for the grant itself.
local function grant(waiter, push)
  prior = ended or ''
  if exists and prior == '' then prior = 'lapsed' end
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
    redis.pcall('PUBLISH', waiter.inbox, waiter.call)
  end
end
