-- Writes an entry of the index. This script is for calls whose own script does not touch the index.
-- KEYS[1]  the index
-- ARGV     job, key, us until the entry is due
-- Returns  OK

local clock = redis.call('TIME')
bind(KEYS[1], ARGV[1], ARGV[2], clock[1] * 1000000 + clock[2], ARGV[3])
return 1 -- OK
