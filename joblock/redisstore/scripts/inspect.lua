-- Reads a record, writes nothing.
-- Returns  {OK, state, owner, fence, lease ms left, reservation ms left, since ms,
--          holder, job, ended, reason, memo or nil} | {NOT_FOUND} | {FOREIGN}

if not exists then return {NOT_FOUND} end

local lease_left, reserved_left = 0, 0
if live then
  lease_left, reserved_left = math.max(lease - now, 0), reserved - now
elseif ended == '' then
  ended = 'lapsed'
end
local since = int(redis.call('HGET', key, 'since')) or 0
return {OK, obstacle(OK)[2], owner, fence, lease_left, reserved_left, since, holder, job, ended, reason, memo}
