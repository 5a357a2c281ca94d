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
-- Begins a function with the stages that read one record. The function's parameters stand for the KEYS and the ARGV of
-- these stages. Creating one function for many records takes little time.

local function look(KEYS, ARGV)
--# all
end

local all = {}
for i, name in ipairs(KEYS) do all[i] = look({name}, {ARGV[1], ARGV[i + 1]}) end
return all
