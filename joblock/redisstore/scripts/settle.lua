-- Removes an entry from the index, or sets the time at which the entry is due, if the entry still has the given score.
-- KEYS[1]  the index
-- ARGV     score, us until the entry is due or 0 to remove the entry, member [, the same three, ...]
-- Returns  1
--
-- The entries that are to go are removed last: see bind in index.lua.

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local gone = {''}
for i = 1, #ARGV, 3 do
  local member = ARGV[i + 2]
  local score = redis.call('ZSCORE', KEYS[1], member)
  if score and tonumber(score) == tonumber(ARGV[i]) then
    if ARGV[i + 1] == '0' then
      gone[#gone + 1] = member
    else
      local due = now_us + ARGV[i + 1]
      redis.call('ZREM', KEYS[1], '') -- before ZADD, and even: see bind, too
      redis.call('ZADD', KEYS[1], string.format('%d', due + due % 2), member)
    end
  end
end
redis.call('ZREM', KEYS[1], unpack(gone))
return 1
