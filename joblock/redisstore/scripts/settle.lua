-- Removes entries from the index, or sets the time at which entries are due, if the entries still have the given score.
-- KEYS[1]  the index
-- ARGV     score, us until the entries are due or 0 to remove the entries, 2 for Settled or 0, how many entries,
--          member [, member ...] [, the same again for other entries ...]
-- Returns  1
--
-- The entries that are to go are removed last: see bind in index.lua.

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local gone = {''}
local i = 1
while i <= #ARGV do
  local mark, wait, first, last = tonumber(ARGV[i]), ARGV[i + 1], i + 4, i + 3 + ARGV[i + 3]
  local due = now_us + wait
  due = string.format('%d', due - due % 4 + 4 + ARGV[i + 2]) -- even, and a multiple of 4 unless Settled: see bind, too
  local put = {}
  for n, score in ipairs(redis.call('ZMSCORE', KEYS[1], unpack(ARGV, first, last))) do
    if score and tonumber(score) == mark then
      if wait == '0' then
        gone[#gone + 1] = ARGV[first + n - 1]
      else
        put[#put + 1] = due
        put[#put + 1] = ARGV[first + n - 1]
      end
    end
  end
  if put[1] then
    redis.call('ZREM', KEYS[1], '') -- before ZADD: see bind, too
    redis.call('ZADD', KEYS[1], unpack(put))
  end
  i = last + 1
end
redis.call('ZREM', KEYS[1], unpack(gone))
return 1
