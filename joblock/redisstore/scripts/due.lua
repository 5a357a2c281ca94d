-- Returns entries of the index that are due, and sets the time at which these entries are due again.
-- KEYS[1]  the index
-- ARGV     how many entries at most, us until these entries are due again
-- Returns  {the entries' new score, ms until the first other entry is due, a text with a letter for each entry: s for
--          Settled, w if not [, member ...]}

local SETTLED = 60000000 -- driver.SettledFor in us
local MAX_WAIT = 31622400000 -- driver.MaxPeriod in ms

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now_us), 'WITHSCORES', 'LIMIT', 0, ARGV[1])
local due, kinds = {}, {}
for i = 1, #found, 2 do
  due[#due + 1] = found[i]
  kinds[#kinds + 1] = found[i + 1] % 4 == 2 and now_us - found[i + 1] <= SETTLED and 's' or 'w' -- see bind in index.lua
end
local other = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'WITHSCORES', 'LIMIT', #due, 1)[2]
local wait = MAX_WAIT
other = tonumber(other or nil)
if other then wait = math.min(math.ceil(math.max(other - now_us, 0) / 1000), MAX_WAIT) end
local mark = now_us + ARGV[2]
mark = string.format('%d', mark + 1 - mark % 2) -- odd: see bind in index.lua
if due[1] then
  local scores = {}
  for i, member in ipairs(due) do scores[2 * i - 1], scores[2 * i] = mark, member end
  redis.call('ZREM', KEYS[1], '') -- before ZADD: see bind, too
  redis.call('ZADD', KEYS[1], unpack(scores))
end
return {mark, wait, table.concat(kinds), unpack(due)}
