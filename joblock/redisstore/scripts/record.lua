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
-- A record is a text of lines. Numbers have a fixed width: they begin with spaces, never with
-- zeros, which the Lua of miniredis would take for octal. A time is µs since 1970 in 16 bytes:
--
--   'job', a letter, the fence   H: owned; R, F or D: released, forced or done. The letter
--                                is lower case if a nonce in the record has not 13 bytes
--   owner
--   holder
--   job
--   reason
--   first                        the fence that the ownership began with
--   since                        when it began; empty if that is the same number as first
--   nonce                        of the call that began the term; of an ended ownership 'late'
--                                if its reservation had run out by then, else empty
--   last                         the nonce of the last END
--   changed, prior, kind         16 bytes; a letter as above, L for lapsed, - for none;
--                                m or M if there is a memo, else - or h
--     and if owned               when the lease began, 16 bytes; its length in ms, 0 if
--                                parked, in 12 bytes; that of the reservation, likewise
--
-- The text is the value of the key. If somebody waits, or there is a memo, or the kind is h,
-- the key is a hash instead:
--
--   s        the text
--   memo     what the owner left for the next one
--   q        head, tail and length of the queue of waiters; for the rest see queue.lua
--   q<n>     the entry of waiter n
--   g<n>     the other end of a gap in the queue
--   w<call>  the n of the waiter that came with this call
--
-- In a cluster records are hashes from the beginning, of the kinds h and M. To make a hash of a
-- string, a script has to delete it first. While the slot migrates that would be the end of the
-- script: the server refuses each command for a key that it does not have.
--
-- MGET gives nil for a hash, where GET would be an error and count as one in the server's
-- figures.

local key = KEYS[1]

local clock = redis.call('TIME')
local now = clock[1] .. clock[2] -- as the times of a record are
if #now ~= 16 then now = string.format('%16s', clock[1] .. string.sub('00000' .. clock[2], -6)) end

local record = redis.call('MGET', key)[1]

--# usual grant
-- Does what nearly all calls of acquire.lua are about: nobody has the key or waits for it.
-- If that is not certain at a glance, it leaves the call to the other stages, which do the
-- same: with the row "next" of the table. This stage takes half their time.

if ARGV[5] == nil then
  if not record then
    if redis.call('SET', key, 'jobH' .. now .. ARGV[2] .. now .. ARGV[3] .. '-------------\n' .. now .. '--' .. now .. ARGV[4],
        'PX', ARGV[1], 'NX') then
      return '-' .. now
    end
  elseif string.sub(record, 1, 4) == 'jobR' and string.byte(record, -19) == 10 and string.sub(record, 5, 20) < now then
    redis.call('SET', key, 'jobH' .. now .. ARGV[2] .. now .. ARGV[3] .. string.sub(record, -32, -19) .. now .. 'R-' .. now .. ARGV[4],
      'PX', ARGV[1])
    return 'R' .. now
  end
end

--# usual take
-- Does what nearly all calls of take.lua are about, as the stage usual grant does for
-- acquire.lua. The row is "parked". The index is written as in index.lua, but the entry comes
-- first: a full server refuses it, and the key is not taken. No other write of a script that
-- has written is refused.

if KEYS[2] and #ARGV[2] == 13 then
  local prior, last = '-', '-------------\n'
  if record then
    prior = string.sub(record, 1, 4) == 'jobR' and string.byte(record, -19) == 10 and string.sub(record, 5, 20) < now and 'R'
    last = string.sub(record, -32, -19)
  elseif redis.call('EXISTS', key) == 1 then
    prior = false
  end
  if prior then
    local due = now + ARGV[7]
    redis.call('ZADD', KEYS[2], string.format('%d', due + due % 2), ARGV[6] .. '\n' .. string.sub(key, #KEYS[2] + 1))
    local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%d', now - KEEP), 'LIMIT', 0, 2)
    if old[1] then redis.call('ZREM', KEYS[2], unpack(old)) end
    redis.call('SET', key, 'jobH' .. now .. '\n' .. ARGV[1] .. '\n' .. ARGV[5] .. '\n' .. ARGV[6] .. '\n\n' .. now .. '\n\n' .. ARGV[2] .. '\n'
      .. last .. now .. prior .. '-' .. now .. '           0' .. ARGV[3], 'PX', string.format('%d', ARGV[3] + 1 + ARGV[4]))
    return prior .. now
  end
end

--# usual end
-- Does what nearly all calls of release.lua are about: the term is the present one, its
-- reservation ends in a later second, and nobody waits. All else it leaves to the other
-- stages, as the stage before does. The row is "released".

if ARGV[6] == nil and record and string.sub(record, 1, #ARGV[1]) == ARGV[1]
    and (tonumber(string.sub(record, -40, -31)) or 0) + (tonumber(string.sub(record, -12, -4)) or 0) > clock[1] + 0 and string.sub(ARGV[1], 5, 20) < now
    and not redis.pcall('SET', key, 'jobR' .. string.sub(record, 5, -87) .. '\n' .. ARGV[2] .. '\n' .. now .. '--', 'PX', ARGV[3]).err then
  return 1 -- OK
end

--# fields
-- Takes the record apart.

local OK, HELD, BUSY, NOT_FOUND, NOT_OWNER, RELEASED, LAPSED, WRONG_JOB, FOREIGN = 1, 2, 3, 4, 5, 6, 7, 8, 9
local UNLISTED, MORE = 10, 11 -- only between the scripts and this package
local MAX_FENCE = '9007199254740991' -- 2^53-1: the last integer that doubles count to
local MAX_PLACE = 99999999999999 -- the last integer that Lua's own conversion writes in full
local NO_TIME = '           0'

local now_us = now + 0
local now_ms = (now_us - now_us % 1000) / 1000

local hash, queue, foreign
if not record then
  local row = redis.pcall('HMGET', key, 's', 'q')
  if row.err and not string.find(row.err, 'WRONGTYPE', 1, true) then return row end
  record, queue = row[1], row[2]
  hash = record and true
  foreign = row.err or not record and redis.call('EXISTS', key) == 1
end

local exists = record and not foreign
local ended, fence, owner, holder, job, reason, first, since, nonce, last, changed, prior, kind
local at, ttl, reserve -- of the lease and the reservation
if exists then
  local running
  ended, fence, owner, holder, job, reason, first, since, nonce, last, changed, prior, kind, running = string.match(record,
    '^job([HRFDhrfd])([%d ]+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([%d ]+)\n([%d ]*)\n([^\n]*)\n([^\n]*)\n([%d ]+)([-RFDL])([-mhM])([%d ]*)$')
  if fence and since == '' then since = first end
  foreign = not fence or #fence ~= 16 or #first ~= 16 or #since ~= 16 or #changed ~= 16
    or not (tonumber(fence) and tonumber(first) and tonumber(since) and tonumber(changed))
    or fence >= MAX_FENCE or first >= MAX_FENCE or since >= MAX_FENCE or changed >= MAX_FENCE
  if not foreign then
    ended = string.upper(ended)
    if ended == 'H' then
      ended, at, ttl, reserve = '', string.sub(running, 1, 16), string.sub(running, 17, 28), string.sub(running, 29)
      foreign = #running ~= 40 or not (tonumber(at) and tonumber(ttl) and tonumber(reserve))
    else
      foreign = running ~= ''
    end
  end
  exists = not foreign
end
-- Ends are in ms, rounded up: no deadline is early.
local begun, lease_end, reserved_end = 0, 0, 0
if exists and ended == '' then
  begun = (at - at % 1000) / 1000 + 1
  reserved_end = begun + reserve
  if ttl ~= NO_TIME then lease_end = begun + ttl end
end
local live = reserved_end > now_ms

-- The server's clock makes fences grow even where the last one was forgotten.
local next_fence = now
if exists and fence >= now then next_fence = string.format('%16d', fence + 1) end

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
local retain -- if set: write the record, and remember it for so many ms beyond its end
local brief, left -- of a release; see write
local resent -- an earlier run of this call took effect: the record stays as it is
local new_memo -- the memo to write; '' deletes it
local hash_only -- of a record that is made now: see the kinds h and M
local vacant -- the key is free: it goes to the first waiter, if there is one
local heir_call, heir_owner, heir_holder, heir_ttl, heir_retain -- who gets the free key
local push -- the channel of the heir, if it has waited
local proof_key, own_inbox -- of the Store that calls, if it has met waiters: see the end of write
local asker -- whom queue.lua is to serve: call, owner, holder, ttl, retain [, inbox, patience]
local leaving -- the call whose place in the queue is given up
local queue_changed
local memo = false -- as it was read; nil would end an answer

--# memo
-- Reads the memo, but only if it is asked for: it may be large, and the server does nothing
-- else meanwhile. A memo that is too large is not ours: the call is refused before anything
-- is written.

local MAX_MEMO = 65536 -- driver.MaxMemoBytes

if memo_wanted and hash and not foreign then
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
if live and lease_end > now_ms then
  state, remaining = STATE_HELD, lease_end - now_ms
elseif live then
  state, remaining = lease_end > 0 and STATE_ORPHANED or STATE_PARKED, reserved_end - now_ms
end

--# write
-- Writes what was decided, and returns the answer if there is one by now.
--
-- A release sets brief and left. If brief is not 0, the record is remembered for brief ms
-- instead of retain, with two exceptions. If the clock has not reached the fence, it is
-- retain: otherwise the next fence might be smaller. A record with a memo keeps its time to
-- live, less the left ms of the reservation that was given up, if that is more than retain.
--
-- The order of the writes is for a server that is out of memory. It refuses SET and HSET,
-- but not PEXPIRE, and refuses nothing to a script that has already written. So locks that
-- exist can still be renewed, parked and released, while no new ones are made.
-- '#!lua flags=allow-oom' would say so openly, but Redis 6.2 takes a shebang for a
-- syntax error.

if retain then
  if new_memo == '' then
    kind = (kind == 'm' or kind == '-') and '-' or 'h'
  elseif new_memo then
    kind = (kind == 'm' or kind == '-') and 'm' or 'M'
  end
  local life = retain + 0
  if ended == '' then
    life = reserved_end - now_ms + retain
  elseif brief and (kind == 'm' or kind == 'M') then
    life = math.max(life, redis.call('PTTL', key) - left)
  elseif brief and brief ~= '0' and fence <= now then
    life = brief + 0
  end
  if head < tail then life = math.max(life, redis.call('PTTL', key)) end -- it has the queue
  life = string.format('%d', life)
  local usual = #last == 13 and (ended ~= '' or #nonce == 13)
  local letter = ended == '' and 'H' or ended
  if since == first then since = '' end
  record = 'job' .. (usual and letter or string.lower(letter)) .. fence .. '\n' .. owner .. '\n' .. holder .. '\n' .. job .. '\n' .. reason .. '\n'
    .. first .. '\n' .. since .. '\n' .. nonce .. '\n' .. last .. '\n' .. changed .. prior .. kind
    .. (ended == '' and at .. ttl .. reserve or '')
  if kind == '-' and head == tail and (not hash or ended ~= '') then
    local full = exists and redis.pcall('SET', key, record, 'PX', life).err
    if full then redis.call('PEXPIRE', key, life) end
    if full or not exists then redis.call('SET', key, record, 'PX', life) end
    hash, queue_changed = nil, nil
  else
    if exists then redis.call('PEXPIRE', key, life) end
    if exists and not hash then redis.call('DEL', key) end
    if queue_changed and head < tail then
      redis.call('HSET', key, 's', record, 'q', string.format('%d %d %d', head, tail, waiting))
      queue_changed = nil
    else
      redis.call('HSET', key, 's', record)
    end
    if new_memo == '' then
      redis.call('HDEL', key, 'memo')
    elseif new_memo then
      redis.call('HSET', key, 'memo', new_memo)
    end
    if not hash then redis.call('PEXPIRE', key, life) end
  end
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
if push and push == own_inbox then
  answer = {answer, heir_call, fence .. '\n' .. prior}
elseif push then
  local text = heir_call
  if proof_key and proof_key ~= '' then
    text = heir_call .. '\n' .. fence .. '\n' .. prior
    text = text .. '\n' .. redis.sha1hex(proof_key .. redis.sha1hex(proof_key .. text))
  elseif answer then
    answer = {answer, 1}
  end
  -- If the caller's ACL forbids it the grant stands all the same, and the waiter finds it
  -- by asking.
  redis.pcall('PUBLISH', push, text)
end
if answer then return answer end
