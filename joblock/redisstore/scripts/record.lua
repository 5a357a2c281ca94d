-- Reads and writes the record. Only this file knows its format; the queue's is in queue.lua.
--
-- A script about a lock is a row of stages that share the locals of this file. script.go
-- lists the stages of each script. The record is read first. Then the stage of the call
-- decides: it sets the fields of the record and the answer, or the outcome that refuses
-- the call. Its branches are the rows of the transition table in package driver, in the
-- same order. After that the queue of waiters is served, the record written, and the
-- answer given.
--
-- There are stages rather than functions because a script runs from its top at every
-- call. Creating its functions each time would take longer than most calls do.
--
-- KEYS[1]  the record. In a cluster no script touches another key, so scripts also run
--          while a slot migrates.
--
-- A value that is no record is answered with FOREIGN and never written to. Whatever a
-- stranger writes into a record may cause a refusal, but never two holders or an endless
-- loop.
--
-- A record is a hash:
--
--   s        the state: a line for each of the fields read below
--   memo     what the owner left for the next one
--   q        head, tail and length of the queue of waiters; for the rest see queue.lua
--   q<n>     the entry of waiter n
--   g<n>     the other end of a gap in the queue
--   w<call>  the n of the waiter that came with this call
--
-- The state is one field of 14 lines rather than 14 fields: every call reads and writes
-- most of it, and a field costs several times as much as a line.

local OK, HELD, BUSY, NOT_FOUND, NOT_OWNER, RELEASED, LAPSED, WRONG_JOB, FOREIGN = 1, 2, 3, 4, 5, 6, 7, 8, 9
local UNLISTED, MORE = 10, 11 -- only between the scripts and this package
local MAX_FENCE = 9007199254740991 -- 2^53-1: the last integer that doubles count to
local MAX_PLACE = 99999999999999 -- the last integer that Lua's own conversion writes in full

local key = KEYS[1]

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = (now_us - now_us % 1000) / 1000 -- in ms, as the times of a record are

local row = redis.pcall('HMGET', key, 's', 'q')
if row.err and not string.find(row.err, 'WRONGTYPE', 1, true) then return row end
local lines, queue = row[1], row[2]

local foreign
local fence, lease, reserved, first, since, changed, ended, owner, nonce, last, prior, holder, job, reason
if lines then
  fence, lease, reserved, first, since, changed, ended, owner, nonce, last, prior, holder, job, reason = string.match(lines,
    '^(%d+)\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n(%d+)\n(%a*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n(%a*)\n([^\n]*)\n([^\n]*)\n([^\n]*)$')
  if fence then -- + makes a number of a text of digits, faster than tonumber
    fence, lease, reserved, first, since, changed = fence + 0, lease + 0, reserved + 0, first + 0, since + 0, changed + 0
  end
  foreign = not fence or fence >= MAX_FENCE or lease >= MAX_FENCE or reserved >= MAX_FENCE
    or first >= MAX_FENCE or since >= MAX_FENCE or changed >= MAX_FENCE
    or (ended ~= '' and ended ~= 'released' and ended ~= 'forced' and ended ~= 'done')
    or (prior ~= '' and prior ~= 'released' and prior ~= 'forced' and prior ~= 'done' and prior ~= 'lapsed')
else
  foreign = row.err or redis.call('EXISTS', key) == 1
end
local exists = fence ~= nil
local live = exists and ended == '' and reserved > now

-- The server's clock makes fences grow even where the last one was forgotten.
local next_fence = now_us
if fence and fence >= now_us then next_fence = fence + 1 end

local head, tail, waiting = 0, 0, 0
if queue then
  head, tail, waiting = string.match(queue, '^(%d+) (%d+) (%d+)$')
  head, tail, waiting = tonumber(head or nil), tonumber(tail or nil), tonumber(waiting or nil)
  foreign = foreign or not head or head > tail or tail > MAX_PLACE or waiting > tail - head
end

-- What the next stages decide:
local answer -- what the script returns
local outcome -- if there is no answer: answer.lua returns it, with who has the key
local extra, extra2 -- the last fields that answer.lua returns
local ends, retain -- if set: write the record, and remember it until retain ms after ends
local brief, left -- of a release; see write
local resent -- an earlier run of this call took effect: the record stays as it is
local new_memo -- the memo to write; '' deletes it
local vacant -- the key is free: it goes to the first waiter, if there is one
local heir_call, heir_owner, heir_holder, heir_ttl, heir_retain -- who gets the free key
local push -- the channel of the heir, if it has waited
local asker -- whom queue.lua is to serve: call, owner, holder, ttl, retain [, inbox, patience]
local leaving -- the call whose place in the queue is given up
local queue_changed
local memo = false -- as it was read; nil would end an answer

--# memo
-- Reads the memo, but only if it is asked for: it may be large, and the server does nothing
-- else meanwhile. A memo that is too large is not ours: the call is refused before anything
-- is written.
-- ARGV[1]  the memo is asked for: 1|0

local MAX_MEMO = 65536 -- driver.MaxMemoBytes

if ARGV[1] == '1' and exists and not foreign then
  memo = redis.call('HGET', key, 'memo')
  foreign = memo and #memo > MAX_MEMO
end

--# foreign
-- Answers for a value that is no record. The type is for people; it is '' if the ACL
-- forbids TYPE.

if foreign then
  local kind = redis.pcall('TYPE', key)
  return {FOREIGN, kind.ok or '', key}
end

--# state
-- Finds the state of the key, and how many ms are left of it.

local STATE_FREE, STATE_HELD, STATE_PARKED, STATE_ORPHANED = 0, 1, 2, 3
local state, remaining = STATE_FREE, 0
if live and lease > now then
  state, remaining = STATE_HELD, lease - now
elseif live then
  state, remaining = lease > 0 and STATE_ORPHANED or STATE_PARKED, reserved - now
end

--# write
-- Writes what was decided, and returns the answer if there is one by now.
--
-- A release sets brief and left. If brief is not 0, the record is remembered for brief ms
-- instead of retain, with two exceptions. If the clock has not reached the fence, it is
-- retain: otherwise the next fence might be smaller. A record with a memo keeps its time to
-- live, less the left ms of the reservation that was given up, if that is more than retain.
--
-- The order of the writes is for a server that is out of memory. It refuses HSET, but
-- not PEXPIRE, and refuses nothing to a script that has already written. So locks that
-- exist can still be renewed, parked and released, while no new ones are made.
-- '#!lua flags=allow-oom' would say so openly, but Redis 6.2 takes a shebang for a
-- syntax error.
--
-- Numbers are written with %d, which is twice as fast as %.0f and needs a server with
-- 64-bit longs. Lua's own conversion would write 1.8e+15.

if ends then
  local life = math.max(ends, now) - now + retain
  if brief and redis.call('HEXISTS', key, 'memo') == 1 then
    life = math.max(life, redis.call('PTTL', key) - left)
  elseif brief and brief ~= '0' and fence <= now_us then
    life = brief
  end
  if head < tail then life = math.max(life, redis.call('PTTL', key)) end -- it has the queue
  life = string.format('%d', life)
  local lines = string.format('%d\n%d\n%d\n%d\n%d\n%d\n', fence, lease, reserved, first, since, changed)
    .. ended .. '\n' .. owner .. '\n' .. nonce .. '\n' .. last .. '\n' .. prior .. '\n'
    .. holder .. '\n' .. job .. '\n' .. reason
  if exists then redis.call('PEXPIRE', key, life) end
  if new_memo and new_memo ~= '' then
    redis.call('HSET', key, 's', lines, 'memo', new_memo)
  else
    redis.call('HSET', key, 's', lines)
    if new_memo then redis.call('HDEL', key, 'memo') end
  end
  if not exists then redis.call('PEXPIRE', key, life) end
elseif resent then
  -- From Redis 7.2 on WAIT waits only for the writes of its own connection. So this makes a
  -- write that changes nothing.
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), 1))
end
if queue_changed then
  if head == tail then
    redis.call('HDEL', key, 'q')
  else
    redis.call('HSET', key, 'q', string.format('%d %d %d', head, tail, waiting))
  end
end
if push then
  -- If the caller's ACL forbids it the grant stands all the same, and the waiter finds it
  -- by asking.
  redis.pcall('PUBLISH', push, heir_call)
end
if answer then return answer end
