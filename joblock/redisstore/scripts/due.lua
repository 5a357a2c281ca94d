-- Returns entries of the index that are due, and sets the time at which these entries are due again.
-- KEYS[1]  the index
-- ARGV     how many entries at most, us until these entries are due again
-- Returns  {the entries' new score [, member ...]}

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%d', now_us), 'LIMIT', 0, ARGV[1])
local mark = now_us + ARGV[2]
mark = string.format('%d', mark + 1 - mark % 2) -- odd: see bind in index.lua
if due[1] then redis.call('ZREM', KEYS[1], due[1]) end -- before ZADD: see bind, too
for _, member in ipairs(due) do redis.call('ZADD', KEYS[1], mark, member) end
return {mark, unpack(due)}
