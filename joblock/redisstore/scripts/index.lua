-- Writes the index of the locks of jobs. It is a sorted set at the bare prefix, a name
-- that no lock has, because keys are not empty. A member is 'job\nkey', its score the time
-- in us at which it is due.

local KEEP = 86400000000 -- driver.JobKeep in us
--# bind

-- bind writes that the lock name is bound to job, and due in grace us. Its score is even;
-- those of due.lua are odd, so that forget.lua can tell them apart.
--
-- It also drops two entries that have been due for KEEP. That is more than it adds, so
-- without a keeper the index does not grow beyond what is parked within KEEP. ZREM comes
-- first because a full server refuses ZADD to a script that has not written yet.
local function bind(index, job, name, now_us, grace)
  local member = job .. '\n' .. name
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%d', now_us - KEEP), 'LIMIT', 0, 2)
  redis.call('ZREM', index, member, unpack(old))
  local due = now_us + grace
  redis.call('ZADD', index, string.format('%d', due + due % 2), member)
end
