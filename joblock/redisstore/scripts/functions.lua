-- Comes after record.lua, and after the fast path of a script that has one: making
-- these functions takes longer than a fast path does.

local HELD, BUSY, NOT_FOUND, NOT_OWNER, RELEASED, LAPSED, WRONG_JOB, UNLISTED = 2, 3, 4, 5, 6, 7, 8, 10
local STATE_FREE, STATE_HELD, STATE_PARKED, STATE_ORPHANED = 0, 1, 2, 3

-- The server's clock makes fences grow even where the last one was forgotten.
local function next_fence() return math.max((fence or 0) + 1, now_us) end

-- details returns holder, job, reason and since, which most calls do not need.
local function details() return string.match(rest, '^([^\n]*)\n([^\n]*)\n([^\n]*)\n(%d+)$') end

local function set_details(holder, job, reason, since)
  rest = holder .. '\n' .. job .. '\n' .. reason .. '\n' .. since
end

-- save writes the state and lets Redis forget the record, retain after ends, or
-- when nobody's place in its queue is kept any more.
--
-- The order is for a server that is out of memory: it refuses HSET, but not
-- PEXPIRE, and refuses nothing to a script that has already written. So locks
-- that exist can still be renewed, parked and released, while no new ones are
-- made. '#!lua flags=allow-oom' would say so openly, but Redis 6.2 takes a
-- shebang for a syntax error.
local function save(ends, retain, ...)
  local life = math.max(ends, now) - now + retain
  if head < tail then life = math.max(life, redis.call('PTTL', key)) end -- places are kept in it
  life = string.format('%d', life)
  local state = string.format('%d\n%d\n%d\n', fence, lease, reserved)
    .. ended .. '\n' .. owner .. '\n' .. nonce .. '\n' .. last .. '\n' .. prior .. '\n' .. rest
  if exists then redis.call('PEXPIRE', key, life) end
  redis.call('HSET', key, 's', state, ...)
  if not exists then redis.call('PEXPIRE', key, life) end
end

-- touch is for a call that finds what an earlier one has done: from Redis 7.2 on WAIT
-- waits only for what its own connection has written, so it writes something, and
-- nothing that changes the record.
local function touch()
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), 1))
end

-- obstacle answers with who is in the way, and for how long. Where the time has
-- run out nobody is, and only the job that the record is bound to is left to tell.
local function obstacle(outcome)
  local holder, job = details()
  if not live then return {outcome, STATE_FREE, 0, '', job} end
  if lease > now then return {outcome, STATE_HELD, lease - now, holder, job} end
  return {outcome, lease > 0 and STATE_ORPHANED or STATE_PARKED, reserved - now, holder, job}
end

local function not_owner()
  if live then return obstacle(NOT_OWNER) end
  return {NOT_OWNER, STATE_FREE, 0, '', ''}
end

local function released()
  local _, _, reason = details()
  return {RELEASED, ended, reason}
end

-- refusal answers a call of a term that is not the record's; nil means it is.
-- With whatever, a term without fence and grant is any term of the owner.
local function refusal(by, term_fence, grant, whatever)
  if not exists then return NOT_FOUND end
  if owner ~= by then return not_owner() end
  if ended ~= '' then return released() end
  if tonumber(term_fence) == fence then return nil end
  if grant ~= '' and grant == nonce then return nil end
  if whatever and term_fence == '0' and grant == '' then return nil end
  return not_owner()
end
