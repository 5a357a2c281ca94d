-- Writes the index of the locks of jobs: a sorted set at what stands before the keys of the part. No lock has that
-- name, because keys are not empty. A member is 'job\nkey'. The member's score is the time in us at which the entry is
-- due.

local KEEP = 86400000000 -- driver.JobKeep in us
--# bind

-- bind writes the entry for the lock with this name and for job, due in grace us. Scores from bind are multiples of 4,
-- scores from settle.lua are even, and multiples of 4 unless Settled, and odd scores are from due.lua. So settle.lua sees
-- by the score whether an entry was written or settled after due.lua has returned the entry, and due.lua sees Settled.
--
-- bind also drops up to two entries that have been due for KEEP, and adds only one entry. So without a keeper the index
-- does not grow beyond the locks that are parked within KEEP.
--
-- The first ZREM removes nothing. A full server refuses ZADD to a script that has not written yet. The index must never
-- become empty on the way: Redis would delete the index, and while the slot migrates, the server would refuse the next
-- command.
local function bind(index, job, name, now_us, grace)
  local due = now_us + grace
  redis.call('ZREM', index, '')
  redis.call('ZADD', index, string.format('%d', due + (4 - due % 4) % 4), job .. '\n' .. name)
  local old = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%d', now_us - KEEP), 'LIMIT', 0, 2)
  if old[1] then redis.call('ZREM', index, unpack(old)) end
end
