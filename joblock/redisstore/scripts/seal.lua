-- Returns the keys that seal what tasks carry. The keys are in a sorted set. A member is a key in hexadecimal. The
-- member's score is the time in us at which that key was made. Other members are of a later version: they are neither
-- returned nor counted, and stay.
-- KEYS[1]  the set
-- ARGV     how many keys to keep at most, a key to add if there is none
--          [, time, key ...]: the keys that the caller knows; a missing key is added
-- Returns  {key, time [, key, time ...]}, the oldest first

local set = KEYS[1]
local function add(time, key)
  -- A full server refuses ZADD to a script that has not written yet.
  redis.call('ZREM', set, key)
  redis.call('ZADD', set, time, key)
end
for i = 3, #ARGV, 2 do
  if not redis.call('ZSCORE', set, ARGV[i + 1]) then add(ARGV[i], ARGV[i + 1]) end
end
local function all()
  local found, keys = redis.call('ZRANGEBYSCORE', set, '-inf', '+inf', 'WITHSCORES'), {}
  for i = 1, #found, 2 do
    local time = tonumber(found[i + 1]) or 0
    if #found[i] == #ARGV[2] and not string.find(found[i], '[^0-9a-f]') and time > 0 and time < 9007199254740992 then
      keys[#keys + 1], keys[#keys + 2] = found[i], found[i + 1]
    end
  end
  return keys
end
local keys = all()
if not keys[1] then
  local clock = redis.call('TIME')
  add(string.format('%d', clock[1] * 1000000 + clock[2]), ARGV[2])
  keys = all()
end
local many = #keys / 2 - ARGV[1]
for i = 1, many do redis.call('ZREM', set, keys[2 * i - 1]) end
if many > 0 then keys = all() end
return keys
