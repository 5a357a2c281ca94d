-- Comes before the scripts that write the index of the locks of jobs: a sorted set
-- at the bare prefix, the one name under it that no lock has, as a key is not empty.
-- A member is 'job\nkey', its score the time in us at which it is to be looked at.

local KEEP = 86400000000 -- joblock.JobKeep in us

-- bind notes that the lock of that name is to be the job's, and looked at in grace
-- us. The score is even, that of a look odd, so that neither is taken for the other.
--
-- Two entries that nobody looks at may go, more than the one that comes: where no
-- keeper runs the index is as large as what is parked within KEEP. ZREM is the first
-- write also because a full server refuses a script's ZADD, unless it has written.
local function bind(index, job, name, now_us, grace)
  local member = job .. '\n' .. name
  local left = redis.call('ZRANGEBYSCORE', index, '-inf', string.format('%d', now_us - KEEP), 'LIMIT', 0, 2)
  redis.call('ZREM', index, member, unpack(left))
  local due = now_us + grace
  redis.call('ZADD', index, string.format('%d', due + due % 2), member)
end
