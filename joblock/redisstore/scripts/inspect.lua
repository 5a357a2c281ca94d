-- Reads a record, writes nothing.
-- ARGV     memo 1|0
-- Returns  {OK, state, owner, fence, first, lease ms left, reservation ms left, since ms,
--          changed ms, holder, job, ended, reason, memo or nil, waiters, now us} | NOT_FOUND | FOREIGN

if not exists then return NOT_FOUND end

local lease_left, reserved_left = 0, 0
if live then
  lease_left, reserved_left = math.max(lease - now, 0), reserved - now
elseif ended == '' then
  ended = 'lapsed'
end
return {OK, state, owner, fence, first, lease_left, reserved_left, since, changed, holder, job,
  ended, reason, memo, waiting, string.format('%d', now_us)}
