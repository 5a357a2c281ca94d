-- Reads a record, and writes nothing.
-- KEYS     the Redis key of the record; for inspect#many the keys of several records
-- ARGV     memo 1|0 [, for each record: a call that may have a place in the queue, or nothing]
-- Returns  {OK, state, owner, fence, first, lease ms left, reservation ms left, since us,
--          changed us, renewed us, ttl ms, ended us, holder, job, ended, reason, memo or nil, waiters,
--          now us [, of the place: places ahead, holder, job, since us, until ms]} | NOT_FOUND | FOREIGN;
--          for inspect#many a list of these. A time of 0 or less is no time

local memo_wanted = ARGV[1] == '1'
local wanted = ARGV[2] or ''
--# place

if queue and wanted ~= '' then
--# answer
  seat = place(wanted)
end

if not exists then return NOT_FOUND end

local renewed, length, ended_at = '0', 0, '0'
if ended == '' and ttl ~= NO_TIME then renewed, length = string.format('%d', at + 0), math.max(ttl + 0, 0) end
local lease_left, reserved_left = 0, 0
if live then
  lease_left, reserved_left = math.max(lease_end - now_ms, 0), reserved_end - now_ms
elseif ended == '' then
  ended, ended_at = 'L', string.format('%d', reserved_end * 1000)
else
  ended_at = changed
end
if seat then
  return {OK, state, owner, fence, first, lease_left, reserved_left, since, changed, renewed, length, ended_at, holder, job,
    ended, reason, memo, waiting, now, seat.n - head, seat.holder, seat.job, seat.since, string.format('%d', seat.till)}
end
return {OK, state, owner, fence, first, lease_left, reserved_left, since, changed, renewed, length, ended_at, holder, job,
  ended, reason, memo, waiting, now}
--# many
-- Answers at once if there is no record, as with most keys that a tool asks for, such as the permits of a limit.
-- Otherwise begins a function with the stages that read one record. The function's parameters stand for the ARGV of these
-- stages and for the locals of the stage record#read. Creating one function for many records takes little time.

local ABSENT = 4
local all = {}
if redis.call('EXISTS', unpack(KEYS)) == 0 then
  for i = 1, #KEYS do all[i] = ABSENT end
  return all
end
local texts = redis.call('MGET', unpack(KEYS))

local function look(key, record, ARGV)
local row
--# all
end

-- In a cluster records are hashes, not texts. Of eight keys without a text, one command shows whether all are absent.
local GROUP = 8
for from = 1, #KEYS, GROUP do
  local to, others = math.min(from + GROUP - 1, #KEYS), {}
  for i = from, to do
    if not texts[i] then others[#others + 1] = KEYS[i] end
  end
  local none = others[1] and redis.call('EXISTS', unpack(others)) == 0
  for i = from, to do
    if none and not texts[i] then
      all[i] = ABSENT
    else
      all[i] = look(KEYS[i], texts[i], {ARGV[1], ARGV[i + 1]})
    end
  end
end
return all
