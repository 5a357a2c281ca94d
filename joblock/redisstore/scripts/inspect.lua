-- Reads a record, and writes nothing.
-- ARGV     memo 1|0
-- Returns  {OK, state, owner, fence, first, lease ms left, reservation ms left, since us,
--          changed us, holder, job, ended, reason, memo or nil, waiters, now us} | NOT_FOUND | FOREIGN

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
