-- Reads and writes the record. Only this file knows the format of the record, and only queue.lua knows the format of
-- the queue.
--
-- A script about a lock is a row of stages that share the locals of this file. script.go lists the stages of each
-- script. The first stages read the record. Then the stage of the call decides. That stage sets the fields of the
-- record and the answer, or sets the outcome that refuses the call. The branches of the deciding stage are the rows of
-- the transition table in package driver, in the same order. The next stages serve the queue of waiters and write the
-- record. The last stages answer.
--
-- There are stages rather than functions, because the server runs the whole script at every call. Creating functions at
-- every call would take longer than most calls take.
--
-- KEYS[1]  the Redis key of the record
-- KEYS[2]  the Redis key of the index of the record's part, if the script is to write the
--          entry. In a cluster both keys are in one slot. While the slot migrates, the server
--          may refuse a script with two keys (TRYAGAIN). Then the caller writes the entry
--          first, and calls this script with one key: such a script always runs.
--
-- If the value at the key is no record, the answer is FOREIGN, and no stage writes to the value. Whatever a stranger
-- writes into a record may cause a refusal, but never two holders or an endless loop. The stages with "fast" in their
-- names look at a part of the text only. If a stranger has damaged the other part, such a stage may still serve the
-- holder, or grant a key that is free.
--
-- A record is a text of lines. Numbers have a fixed width, filled with spaces at the front. Zeros at the front would
-- make the Lua of miniredis read a number as octal. A time is µs since 1970 in 16 bytes. The lines are:
--
--   'job', a letter, the fence   H or N: owned; R, F or D: released, forced or done. The letter
--                                is lower case if a nonce in the record has other than 13 bytes
--   owner
--   holder
--   job
--   reason
--   first                        the fence that the ownership began with
--   since                        when the ownership began; empty if equal to first
--   nonce                        of the call that began the term. If the ownership has ended:
--                                'late' if the END came after the reservation, else empty
--   last                         the nonce of the call that made the last END
--   changed, prior, kind         the time of the last transition; how the previous ownership
--                                ended: R, F or D as above, L for lapsed, - for none; a letter:
--                                m or M if there is a memo, else - or h
--     and if owned               when the lease and the reservation began, 16 bytes; the
--                                length of the lease in ms, 0 if parked, in 12 bytes; the
--                                length of the reservation in ms, in 12 bytes
--
-- native.go writes records without a script, so without knowing the server's clock. Such a record has the time that its
-- key had to live when it was written: it was written that long before the key expires. There are two kinds. Both are
-- texts, and become records of the other kinds as soon as a script writes them:
--
--   owned, with the letter N     in the place of when the lease began stands the time that the key
--                                had to live, in ms. The ownership began when the record was written.
--                                Its fence is that time, or the fence of the first line if that is larger
--   ended, with a nonce of       changed is the time that the key had to live, in ms. The nonce is when
--   13 digits                    the reservation would have ended, in ms
--
-- The text is the value of the key. If there are waiters, or there is a memo, or the kind is h, the value is a hash
-- instead, with these fields:
--
--   s        the text
--   memo     what an owner left for the next owner
--   q        head, tail and length of the queue of waiters; for the rest see queue.lua
--   q<n>     the waiter in place n of the queue
--   g<n>     the other end of a gap that begins or ends at place n
--   w<call>  the place of the waiter with this call
--
-- In a cluster records are hashes from the beginning, of the kinds h and M. To make a hash of a string, a script has to
-- delete the string first. While the slot migrates, the next command of such a script would fail: the server refuses
-- each command for a key that the server does not have.
--
-- The first stage reads the clock.

local clock = redis.call('TIME')
local now = clock[1] .. clock[2] -- in the format of the times of a record
if #now ~= 16 then now = string.format('%16s', clock[1] .. string.sub('00000' .. clock[2], -6)) end
local sub = string.sub -- a local is found faster than a field of a global table

--# read
-- Reads the value with MGET, which returns nil for a hash. GET would return an error, and the server's statistics would
-- count that error.

local key = KEYS[1]
local record = redis.call('MGET', key)[1]
local row -- the fields s and q of the hash, once a stage has read these fields

--# fast grant
-- Handles the case of nearly all calls of acquire.lua: the key is free and has no waiters. A quick test
-- shows this case. If the test is not certain, this stage leaves the call to the later stages. The later stages would
-- treat the call in the same way, by the row "next" of the table, but take twice the time.

if ARGV[5] == nil then
  if not record then
    if redis.call('SET', key, 'jobH' .. now .. ARGV[2] .. now .. ARGV[3] .. '-------------\n' .. now .. '--' .. now .. ARGV[4],
        'PX', ARGV[1], 'NX') then
      return '-' .. now .. '-------------'
    end
  else
    local ended = sub(record, 1, 4)
    if (ended == 'jobR' or ended == 'jobD') and string.byte(record, -19) == 10 and sub(record, 5, 20) < now then
      local prior = ended == 'jobR' and 'R' or 'D'
      redis.call('SET', key, 'jobH' .. now .. ARGV[2] .. now .. ARGV[3] .. sub(record, -32, -19) .. now .. prior .. '-' .. now .. ARGV[4],
        'PX', ARGV[1])
      return prior .. now .. sub(record, -32, -20)
    end
  end
end

--# fast take
-- Handles the case of nearly all calls of take.lua, as the stage fast grant does for acquire.lua. The row of the table
-- is "parked". This stage writes the index as bind in index.lua does, but begins with the ZADD of the entry. A full
-- server refuses that ZADD: then the call ends with an error, and the key is not taken. Once a script has written, the
-- server refuses none of its further writes.

if KEYS[2] and ARGV[8] ~= 'h' and #ARGV[2] == 13 then
  local prior, last = '-', '-------------\n'
  if record then
    local ended = sub(record, 1, 4)
    prior = (ended == 'jobR' or ended == 'jobD') and string.byte(record, -19) == 10 and sub(record, 5, 20) < now
      and (ended == 'jobR' and 'R' or 'D')
    last = sub(record, -32, -19)
  elseif redis.call('EXISTS', key) == 1 then
    prior = false
  end
  if prior then
    local due = now + ARGV[7]
    redis.call('ZADD', KEYS[2], string.format('%d', due + (4 - due % 4) % 4), ARGV[6] .. '\n' .. sub(key, #KEYS[2] + 1))
    local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', string.format('%d', now - KEEP), 'LIMIT', 0, 2)
    if old[1] then redis.call('ZREM', KEYS[2], unpack(old)) end
    redis.call('SET', key, 'jobH' .. now .. '\n' .. ARGV[1] .. '\n' .. ARGV[5] .. '\n' .. ARGV[6] .. '\n\n' .. now .. '\n\n' .. ARGV[2] .. '\n'
      .. last .. now .. prior .. '-' .. now .. '           0' .. ARGV[3], 'PX', string.format('%d', ARGV[3] + 1 + ARGV[4]))
    return prior .. now
  end
end

--# fast resume
-- Handles the case of nearly all calls of resume.lua: the lock is parked for the job of the call, and the reservation has
-- not run out and does not outlast the new one. This stage leaves all other calls to the later stages, as fast grant
-- does. The row of the table is "resumed". PEXPIRE comes before HSET: see the stage write.

local text = record
if not text and ARGV[8] == nil then
  row = redis.pcall('HMGET', key, 's', 'q')
  text = row[1]
end
if text and ARGV[8] == nil and sub(text, 21, 20 + #ARGV[1]) == ARGV[1]
    and sub(text, -104 - #ARGV[3], -105) == ARGV[3] and sub(text, -24, -13) == '           0'
    and sub(text, 1, 4) == 'jobH' and sub(text, 5, 20) < now and (not record or string.byte(text, -41) == 45) then
  local left = (tonumber(sub(text, -40, -25)) or 0) - now + (tonumber(sub(text, -12)) or 0) * 1000
  if left > 0 and left <= sub(ARGV[5], 13) * 1000 then
    text = 'jobH' .. now .. ARGV[1] .. ARGV[2] .. ARGV[3] .. sub(text, -104, -87) .. ARGV[4] .. '\n'
      .. sub(text, -72, -59) .. now .. sub(text, -42, -41) .. now .. ARGV[5]
    if not record then
      local left = row[2] and redis.call('PTTL', key) or 0
      if left < ARGV[6] + 0 then
        redis.call('PEXPIRE', key, ARGV[6])
        redis.call('HSET', key, 's', text)
      elseif redis.pcall('HSET', key, 's', text) ~= 0 then -- the server is full
        redis.call('PEXPIRE', key, left)
        redis.call('HSET', key, 's', text)
      end
      return now
    end
    if not redis.pcall('SET', key, text, 'PX', ARGV[6]).err then
      return now .. sub(text, -104, -89) .. sub(text, -72, -60) .. sub(text, -42, -42)
    end
  end
end

--# fast end
-- Handles the case of nearly all calls of release.lua: the call names the present term, the reservation ends in a later
-- second than now, and there are no waiters. If the call names a job too, the record is bound to that job. This stage leaves
-- all other calls to the later stages, as fast grant does. The row of the table is "released".

if ARGV[8] == nil and record and sub(record, 1, #ARGV[1]) == ARGV[1]
    and (tonumber(sub(record, -40, -31)) or 0) + (tonumber(sub(record, -12, -4)) or 0) > clock[1] + 0 and sub(ARGV[1], 5, 20) < now then
  local text
  if ARGV[6] == nil then
    text = 'jobR' .. sub(record, 5, -87)
  elseif sub(record, -103 - #ARGV[7], -105) == sub(ARGV[7], 2) and #ARGV[7] > 1 and string.byte(record, -41) == 45 then
    text = 'job' .. sub(ARGV[7], 1, 1) .. sub(record, 5, -106) .. ARGV[6] .. sub(record, -105, -87)
  end
  if text and not redis.pcall('SET', key, text .. '\n' .. ARGV[2] .. '\n' .. now .. '--', 'PX', ARGV[3] == '0' and ARGV[4] or ARGV[3]).err then
    return 1 -- OK
  end
end

--# fast pass
-- Handles the case of nearly all calls of release.lua for a key with waiters: the call names the present term, the
-- reservation ends in a later second than now, the queue has no gaps, and the first place has not ended. If the call
-- names a job, the record is bound to that job. This stage leaves all other calls to the later stages, as fast grant
-- does. The rows of the table are "released" and GRANT to the first in line. HDEL comes first: see the stage write.

if not record then row = redis.pcall('HMGET', key, 's', 'q') end
if row and row[2] and ARGV[8] == nil and sub(row[1] or '', 1, #ARGV[1]) == ARGV[1]
    and (#(ARGV[7] or 'R') == 1 or sub(row[1], -103 - #ARGV[7], -105) == sub(ARGV[7], 2)) then
  local text, prior, head, tail, waiting = row[1], sub(ARGV[7] or 'R', 1, 1), string.match(row[2], '^(%d+) (%d+) (%d+)$')
  local kind = string.match(sub(text, -59), '^\n[%d ]+[-RFDL]([-mhM])[%d ]+$')
  if head and kind and #tail < 14 and tail - head == waiting + 0 and sub(ARGV[1], 5, 20) < now
      and (tonumber(sub(text, -40, -31)) or 0) + (tonumber(sub(text, -12, -4)) or 0) > clock[1] + 0
      and sub(text, -73, -60) ~= '\n' .. ARGV[2] then
    local till, life, ttl, names, job, call, inbox = string.match(redis.call('HGET', key, 'q' .. head) or '',
      '^(%d+)\n(%d+)\n([%d ]+)(\n[^\n]*\n[^\n]*\n)([^\n]*)\n\n([^\n]*)\n([^\n]*)\n')
    if till and #call == 13 and #ttl == 12 and (tonumber(ttl) or life + 0) < life + 0 and #life < 13 and till * 1000 > now + 0 then
      local grant, listener = now .. '\n' .. prior, ARGV[5] or ''
      local sure = string.find(inbox, '\t\t', 1, true) -- the same steps as in grant.lua
      if sure then inbox = string.gsub(inbox, '\t\t', '\t') end
      local own, ears = sub(listener, 1, #inbox + 1) == inbox .. '\n', nil
      if job ~= '' or own then
      elseif sure then
        ears = redis.pcall('PUBSUB', 'SHARDNUMSUB', (string.gsub(inbox, '\t', '')))[2]
      elseif not string.find(inbox, '\t', 1, true) then
        ears = redis.pcall('PUBSUB', 'NUMSUB', inbox)[2]
      end
      local unheard, rest = ears == 0, till - (now - now % 1000) / 1000
      if unheard and rest < ttl + 0 then
        life = string.format('%d', life - ttl + rest)
        ttl = string.format('%12d', rest)
      end
      text = 'jobH' .. now .. names .. job .. '\n\n' .. now .. '\n\n' .. call .. '\n' .. ARGV[2] .. '\n' .. now .. prior .. kind .. now
        .. (job == '' and ttl or '           0') .. ttl
      if waiting == '1' then
        redis.call('HDEL', key, 'q' .. head, 'w' .. call, 'q')
        redis.call('PEXPIRE', key, life)
        redis.call('HSET', key, 's', text)
      else
        local left = redis.call('PTTL', key)
        redis.call('HDEL', key, 'q' .. head, 'w' .. call)
        if left < life + 0 then redis.call('PEXPIRE', key, life) end
        redis.call('HSET', key, 's', text, 'q', head + 1 .. ' ' .. tail .. ' ' .. waiting - 1)
      end
      if job ~= '' then
        if sub(listener, -2) ~= '\n1' then redis.pcall('PUBLISH', inbox, job .. '\n' .. key) end
        return {1, job}
      end
      if own then return {1, call, grant} end
      local proof_key, message = string.match(listener, '^[^\n]*\n([^\n]+)'), call
      if proof_key and not unheard then
        message = call .. '\n' .. grant
        message = message .. '\n' .. redis.sha1hex(proof_key .. redis.sha1hex(proof_key .. message))
      end
      local heard = 0 -- the same steps as at the end of the stage write
      if string.find(inbox, '\t', 1, true) then
        local shard = string.gsub(inbox, '\t', '')
        if (ears or redis.pcall('PUBSUB', 'SHARDNUMSUB', shard)[2] or 0) > 0 then heard = redis.pcall('SPUBLISH', shard, message) end
        inbox = string.gsub(inbox, '\t.*\t', '')
      end
      if (tonumber(heard) or 0) == 0 then redis.pcall('PUBLISH', inbox, message) end
      return (proof_key or unheard) and 1 or {1, 1}
    end
  end
end

--# fields
-- Reads the fields of the record into locals.

local OK, HELD, BUSY, NOT_FOUND, NOT_OWNER, RELEASED, LAPSED, WRONG_JOB, FOREIGN, FULL = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
local UNLISTED, MORE = 11, 12 -- only between the scripts and this package
local MAX_FENCE = '9007199254740991' -- 2^53-1: a double keeps each integer up to this one exactly
local MAX_PLACE = 99999999999999 -- the largest integer that tostring writes with all digits
local NO_TIME = '           0'

local now_us = now + 0
local now_ms = (now_us - now_us % 1000) / 1000

-- What a record looks like, from its fence on.
local RECORD = '^job([HNRFDhrfd])([%d ]+)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([^\n]*)\n([%d ]+)\n([%d ]*)\n([^\n]*)\n([^\n]*)\n([%d ]+)([-RFDL])([-mhM])([%d ]*)$'
local hash, queue, foreign
if not record then
  row = row or redis.pcall('HMGET', key, 's', 'q')
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
  ended, fence, owner, holder, job, reason, first, since, nonce, last, changed, prior, kind, running = string.match(record, RECORD)
  if fence and since == '' then since = first end
  foreign = not fence or #fence ~= 16 or #first ~= 16 or #since ~= 16 or #changed ~= 16
    or not (tonumber(fence) and tonumber(first) and tonumber(since) and tonumber(changed))
    or fence >= MAX_FENCE or first >= MAX_FENCE or since >= MAX_FENCE or changed >= MAX_FENCE
  if not foreign then
    local native = ended == 'N' or ended ~= 'H' and ended ~= 'h' and #nonce == 13
    ended = string.upper(ended)
    if ended == 'H' or ended == 'N' then
      ended, at, ttl, reserve = '', string.sub(running, 1, 16), string.sub(running, 17, 28), string.sub(running, 29)
      foreign = #running ~= 40 or not (tonumber(at) and tonumber(ttl) and tonumber(reserve))
    else
      foreign = running ~= ''
    end
    if native and not foreign then
      local expires, life = redis.call('PEXPIRETIME', key), tonumber(ended == '' and at or changed)
      local written = expires - life
      -- Without an expiry, or with one before the life of the key began, a stranger has changed the key.
      foreign = hash or written <= 0 or written >= 9007199254740 or not tonumber(nonce) and ended ~= ''
      if not foreign then
        written = string.format('%16d', written * 1000)
        if ended ~= '' then
          changed, nonce = written, written + 0 >= nonce * 1000 and 'late' or ''
        else
          if fence < written then fence = written end
          first, since, changed, at = fence, written, written, written
          record = 'jobH' .. fence .. '\n' .. owner .. '\n' .. holder .. '\n' .. job .. '\n' .. reason .. '\n' .. first .. '\n'
            .. (since == first and '' or since) .. '\n' .. nonce .. '\n' .. last .. '\n' .. changed .. prior .. kind .. at .. ttl .. reserve
        end
      end
    end
  end
  exists = not foreign
end
-- lease_end and reserved_end are in ms. begun is rounded up, so that no deadline is early.
local begun, lease_end, reserved_end = 0, 0, 0
if exists and ended == '' then
  begun = (at - at % 1000) / 1000 + 1
  reserved_end = begun + reserve
  if ttl ~= NO_TIME then lease_end = begun + ttl end
end
local live = reserved_end > now_ms

-- The server's clock makes fences grow even if the record of the last fence has expired.
local next_fence = now
if exists and fence >= now then next_fence = string.format('%16d', fence + 1) end

local head, tail, waiting = 0, 0, 0
if queue then
  head, tail, waiting = string.match(queue, '^(%d+) (%d+) (%d+)$')
  head, tail, waiting = tonumber(head or nil), tonumber(tail or nil), tonumber(waiting or nil)
  foreign = foreign or not head or head > tail or tail > MAX_PLACE or waiting > tail - head
end

-- The next stages decide these locals:
local answer -- what the script returns
local outcome -- if there is no answer: answer.lua returns the outcome, and who has the key
local extra, extra2, extra3, extra4 -- the last fields that answer.lua returns
local retain -- if set: write the record, which expires so many ms after the ownership
local brief, given_up -- of a release: see the stage write
local resent -- an earlier run of this call took effect: the record stays as it is
local new_memo -- the memo to write; '' deletes the record's memo
local hash_only -- a record that this call makes is of the kind h or M
local vacant -- the key is free, and goes to the first waiter, if there is one
local heir_call, heir_owner, heir_holder, heir_ttl, heir_retain -- who gets the free key
local heir_job -- if set: the heir is a job, and the key is parked for that job
local push, heir_till -- the channel of the heir, if the heir has waited; until when the heir's place was kept, in ms
local ears, unheard -- how many have subscribed to that channel, if that is known; whether none has
local starts -- the caller starts a job that gets the key: there is no push to the heir
local proof_key, own_inbox -- of the Store that calls, if that Store has met waiters: see the end of the stage write
local asker -- whom queue.lua serves: call [, place, retain, inbox, patience]; place is a part of q<n>, see queue.lua.
-- A job that asks for a place also has owner, most and index
local seat -- a call whose place queue.lua looks up. From queue.lua on, seat is that place, or nil
local keep_ms -- how long that place is kept at least, if reserve.lua has set seat
local leaving, leaver -- the call whose place in the queue is to be given up; the only owner whose place that may be
local left -- the job of the place that was given up, '' for an Acquire
local queue_changed -- head, tail or waiting has changed
local joined -- a call with the answer MORE has given a place to the job of a Take
local memo = false -- the memo that the record has; false if there is none, because nil would end an answer

--# memo
-- Reads the memo, but only if the call asks for the memo: a memo may be large, and the server does nothing else during
-- the reading. A memo that is too large is not from this package: the call is refused before anything is written.

local MAX_MEMO = 65536 -- driver.MaxMemoBytes

if memo_wanted and hash and not foreign then
  memo = redis.call('HGET', key, 'memo')
  foreign = memo and #memo > MAX_MEMO
end

--# foreign
-- Answers for a value that is no record. The answer has the type of the value, for people. The type is '' if the ACL
-- forbids TYPE.

if foreign then
  local kind = redis.pcall('TYPE', key)
  return {FOREIGN, kind.ok or '', key}
end

--# state
-- Sets the state of the key, and remaining: how many ms are left of the lease or, without a lease, of the reservation.

local STATE_FREE, STATE_HELD, STATE_PARKED, STATE_ORPHANED = 0, 1, 2, 3
local state, remaining = STATE_FREE, 0
if live and lease_end > now_ms then
  state, remaining = STATE_HELD, lease_end - now_ms
elseif live then
  state, remaining = lease_end > 0 and STATE_ORPHANED or STATE_PARKED, reserved_end - now_ms
end

--# write
-- Writes what the stages before have decided, and returns the answer if one of these stages has set the answer.
--
-- A release sets brief and given_up. If brief is not 0, the record expires after brief ms instead of retain ms, with two
-- exceptions. If the clock has not reached the fence, the time is retain: otherwise the next fence might be smaller. A
-- record with a memo ignores brief. Such a record expires after the larger of two times: retain, and its previous time
-- to live minus given_up, the rest of the reservation that the release gives up.
--
-- The order of the writes is for a server that is out of memory. Such a server refuses SET and HSET, but not PEXPIRE,
-- and nothing to a script that has already written. So locks that exist can still be renewed, parked and released,
-- while no new locks are made. '#!lua flags=allow-oom' would say so openly, but Redis 6.2 takes a shebang for a syntax
-- error.

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
    life = math.max(life, redis.call('PTTL', key) - given_up)
  elseif brief and brief ~= '0' and fence <= now then
    life = brief + 0
  end
  if head < tail then life = math.max(life, redis.call('PTTL', key)) end -- keeps the queue as long as before
  life = string.format('%d', life)
  local fast = #last == 13 and (ended ~= '' or #nonce == 13)
  local letter = ended == '' and 'H' or ended
  if since == first then since = '' end
  record = 'job' .. (fast and letter or string.lower(letter)) .. fence .. '\n' .. owner .. '\n' .. holder .. '\n' .. job .. '\n' .. reason .. '\n'
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
  -- From Redis 7.2 on, WAIT waits only for the writes of its own connection. So this branch writes the same time to
  -- live again, or one up to the end of the reservation if a stranger has removed the time to live.
  redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), reserved_end - now_ms))
end
if queue_changed then
  if head == tail then
    redis.call('HDEL', key, 'q')
  else
    redis.call('HSET', key, 'q', string.format('%d %d %d', head, tail, waiting))
  end
end
if push and heir_job then
  if answer then answer = {answer, job} end
  if not starts then redis.pcall('PUBLISH', push, job .. '\n' .. key) end
elseif push and push == own_inbox then
  answer = {answer, heir_call, fence .. '\n' .. prior}
elseif push then
  local text = heir_call
  if unheard then -- the lease is short: the waiter has to ask
  elseif proof_key and proof_key ~= '' then
    text = heir_call .. '\n' .. fence .. '\n' .. prior
    text = text .. '\n' .. redis.sha1hex(proof_key .. redis.sha1hex(proof_key .. text))
  elseif answer then
    answer = {answer, 1}
  end
  -- Tabs are around the hash tag of a shard channel. If no subscriber of the shard channel has got the text, the text
  -- goes to the other channel, which has no hash tag, and so to all nodes. That may be because the server has no shard
  -- channels, because the slot moves, or because the waiter is dead or new.
  --
  -- Without a subscriber there must be no SPUBLISH, because SPUBLISH crashes some servers: see the method able in shards.go.
  -- No waiter subscribes to a shard channel of such a server.
  --
  -- If the caller's ACL forbids PUBLISH, the grant stands all the same, and the waiter finds the grant by asking.
  local heard = 0
  if string.find(push, '\t', 1, true) then
    local shard = string.gsub(push, '\t', '')
    if (ears or redis.pcall('PUBSUB', 'SHARDNUMSUB', shard)[2] or 0) > 0 then heard = redis.pcall('SPUBLISH', shard, text) end
    push = string.gsub(push, '\t.*\t', '')
  end
  if (tonumber(heard) or 0) == 0 then redis.pcall('PUBLISH', push, text) end
end
if answer then return answer end
