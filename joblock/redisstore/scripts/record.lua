-- Comes before every script that is about a record: reads it and the clock.
--
-- KEYS[1]  the record; in a cluster no script touches any other key, so that they
--          run there, also in the middle of a slot migration
--
-- Leaves behind as locals: now (ms), exists, live, what the field 's' holds, queue and
-- what that holds. Answers with foreign() itself when the value at the key is no
-- lock record; such a value is never written to. What somebody else has written into
-- one may cost a refusal, never a lock for two or a walk without end.
--
-- Numbers are written with %d, which is twice as fast as %.0f and needs a server
-- with 64-bit longs; Lua's own conversion would write 1.8e+15.
--
-- The state is one field of twelve lines, rather than twelve fields: every call
-- reads and writes most of it, and fields cost several times as much as lines.
--
--   s        fence, lease, until, ended, owner, nonce, last, prior, holder, job, reason, since
--   memo     as it was given; see memo.lua
--   q        head, tail and length of the queue of waiters; see queue.lua
--   q<n>     the entry of waiter n
--   g<n>     the other end of a gap among them
--   w<call>  the n of the waiter that came with this call

local OK, FOREIGN = 1, 9
local MAX_FENCE = 9007199254740991 -- 2^53-1: the last integer that doubles count to
local MAX_PLACE = 99999999999999 -- the last integer that Lua's own conversion writes in full

local key = KEYS[1]

-- foreign is the answer about a value that is no record. The type is for people, and
-- a user that may not ask for it goes without.
local function foreign()
  local kind = redis.pcall('TYPE', key)
  return {FOREIGN, kind.ok or '', key}
end

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local row = redis.pcall('HMGET', key, 's', 'q')
if row.err then
  if string.find(row.err, 'WRONGTYPE', 1, true) then return foreign() end
  return row
end
local queue = row[2]
local fence, lease, reserved, ended, owner, nonce, last, prior, rest
if row[1] then
  fence, lease, reserved, ended, owner, nonce, last, prior, rest = string.match(row[1],
    '^(%d+)\n(%d+)\n(%d+)\n(%a*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(%a*)\n([^\n]*\n[^\n]*\n[^\n]*\n%d+)$')
  if not fence or (ended ~= '' and ended ~= 'released' and ended ~= 'forced' and ended ~= 'done') then return foreign() end
  fence, lease, reserved = tonumber(fence), tonumber(lease), tonumber(reserved)
  if fence >= MAX_FENCE or lease >= MAX_FENCE or reserved >= MAX_FENCE then return foreign() end
elseif redis.call('EXISTS', key) == 1 then
  return foreign()
end
local head, tail, waiting = 0, 0, 0
if queue then
  head, tail, waiting = string.match(queue, '^(%d+) (%d+) (%d+)$')
  head, tail, waiting = tonumber(head or nil), tonumber(tail or nil), tonumber(waiting or nil)
  if not head or head > tail or tail > MAX_PLACE or waiting > tail - head then return foreign() end
end
local exists = fence ~= nil
local live = exists and ended == '' and reserved > now
