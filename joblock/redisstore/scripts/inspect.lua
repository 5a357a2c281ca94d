-- Reads a record, and writes nothing.
-- KEYS     the Redis key of the record; for inspect#many the keys of several records
-- ARGV     memo 1|0
-- Returns  {OK, state, owner, fence, first, lease ms left, reservation ms left, since us,
--          changed us, holder, job, ended, reason, memo or nil, waiters, now us} | NOT_FOUND | FOREIGN;
--          for inspect#many a list of these

local memo_wanted = ARGV[1] == '1'
--# answer

if not exists then return NOT_FOUND end

local lease_left, reserved_left = 0, 0
if live then
  lease_left, reserved_left = math.max(lease_end - now_ms, 0), reserved_end - now_ms
elseif ended == '' then
  ended = 'L'
end
return {OK, state, owner, fence, first, lease_left, reserved_left, since, changed, holder, job,
  ended, reason, memo, waiting, now}
--# many
-- Begins a function with the stages that read one record. The function's parameter stands for the KEYS of these stages.
-- Creating one function for many records takes little time.

local function look(KEYS)
--# all
end

local all = {}
for i, name in ipairs(KEYS) do all[i] = look({name}) end
return all
