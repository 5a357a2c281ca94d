-- Comes before every script of this package: reads the record and the clock.
--
-- KEYS[1]  the record; no script touches any other key, so that they run in a
--          cluster, also in the middle of a slot migration
--
-- Leaves behind as locals: now (ms), exists, live, the fields owner, nonce,
-- fence, lease, reserved (the field 'until'), ended, holder, job, reason and
-- memo, and the functions below. Answers {FOREIGN} itself when the value at the
-- key is no lock record; such a value is never written to.

local OK, HELD, BUSY, NOT_FOUND, NOT_OWNER = 1, 2, 3, 4, 5
local RELEASED, LAPSED, WRONG_JOB, FOREIGN = 6, 7, 8, 9
local STATE_FREE, STATE_HELD, STATE_PARKED, STATE_ORPHANED = 0, 1, 2, 3
local MAX_FENCE = 9007199254740991 -- 2^53-1: the last integer that doubles count to

local key = KEYS[1]
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now = math.floor(now_us / 1000)

local row = redis.pcall('HMGET', key, 'owner', 'nonce', 'fence', 'lease', 'until',
  'ended', 'holder', 'job', 'reason', 'memo')
if row.err then
  if string.find(row.err, 'WRONGTYPE', 1, true) then return {FOREIGN} end
  return row
end

-- tonumber alone would let 'nan', '1e300' and '0x10' through.
local function int(text)
  if text and #text <= 16 and string.find(text, '^%d+$') then return tonumber(text) end
end

-- Lua's own conversion would write large integers as 1.8e+15.
local function dec(n) return string.format('%.0f', n) end

local owner, nonce, ended = row[1] or '', row[2] or '', row[6] or ''
local fence, lease, reserved = int(row[3]), int(row[4]) or 0, int(row[5]) or 0
local holder, job, reason, memo = row[7] or '', row[8] or '', row[9] or '', row[10]

if fence == nil or fence >= MAX_FENCE then
  if row[3] or redis.call('EXISTS', key) == 1 then return {FOREIGN} end
  fence = nil
end
local exists = fence ~= nil
local live = exists and ended == '' and reserved > now

-- The server's clock makes fences grow even where the last one was forgotten.
local function next_fence() return math.max((fence or 0) + 1, now_us) end

-- The extra millisecond: now is rounded down, and that must not shorten a lease.
local function deadline(ms) return now + 1 + ms end

-- resent tells whether this very call was the last to change the record.
local function resent(call) return call ~= '' and call == nonce end

-- save writes fields and lets Redis forget the record, retain after its end.
--
-- The order is for a server that is out of memory: it refuses HSET, but not
-- PEXPIRE, and refuses nothing to a script that has already written. So locks
-- that exist can still be renewed, parked and released, while no new ones are
-- made. '#!lua flags=allow-oom' would say so openly, but Redis 6.2 takes a
-- shebang for a syntax error.
local function save(ends, retain, ...)
  local life = dec(math.max(ends, now) - now + retain)
  if exists then redis.call('PEXPIRE', key, life) end
  redis.call('HSET', key, ...)
  if not exists then redis.call('PEXPIRE', key, life) end
end

-- obstacle answers with who is in the way, and for how long. Where the time has
-- run out nobody is, and only the job that the record is bound to is left to tell.
local function obstacle(outcome)
  if not live then return {outcome, STATE_FREE, 0, '', job} end
  if lease > now then return {outcome, STATE_HELD, lease - now, holder, job} end
  return {outcome, lease > 0 and STATE_ORPHANED or STATE_PARKED, reserved - now, holder, job}
end

local function not_owner()
  if live then return obstacle(NOT_OWNER) end
  return {NOT_OWNER, STATE_FREE, 0, '', ''}
end

-- refusal answers a call of a term that is not the record's; nil means it is.
-- With whatever, a term without fence and grant is any term of the owner.
local function refusal(by, term_fence, grant, whatever)
  if not exists then return {NOT_FOUND} end
  if owner ~= by then return not_owner() end
  if ended ~= '' then return {RELEASED, ended, reason} end
  if term_fence ~= '0' and term_fence == dec(fence) then return nil end
  if resent(grant) then return nil end
  if whatever and term_fence == '0' and grant == '' then return nil end
  return not_owner()
end
