-- Removes each entry from the index if the entry still has the given score.
-- KEYS[1]  the index
-- ARGV     score, member [, score, member ...]
-- Returns  1

for i = 1, #ARGV, 2 do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i + 1])
  if score and tonumber(score) == tonumber(ARGV[i]) then redis.call('ZREM', KEYS[1], ARGV[i + 1]) end
end
return 1
