-- Writes the index of the locks of jobs. The index is a sorted set at the bare prefix. No lock has that name, because
-- keys are not empty. A member is 'job\nkey'. The member's score is the time in us at which the entry is due.

local KEEP = 86400000000 -- driver.JobKeep in us
--# bind

-- bind writes the entry for the lock with this name and for job, due in grace us. Scores from bind and from settle.lua are
-- even, and scores from due.lua are odd. So settle.lua sees by the score whether an entry was written or settled after
-- due.lua has returned the entry.
--
-- bind also drops up to two entries that have been due for KEEP, and adds only one entry. So without a keeper the index
-- does not grow beyond the locks that are parked within KEEP. ZREM comes before ZADD because a full server refuses ZADD
-- to a script that has not written yet.
local function bind(index, job, name, now_us, grace)
  local member = job .. '\n' .. name
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%d', now_us - KEEP), 'LIMIT', 0, 2)
  redis.call('ZREM', index, member, unpack(old))
  local due = now_us + grace
  redis.call('ZADD', index, string.format('%d', due + due % 2), member)
end
