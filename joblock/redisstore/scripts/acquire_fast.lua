-- Comes between memo.lua and functions.lua in front of acquire.lua, and does what
-- it does where that is simplest: the key is free and nobody waits.

local NO_END = 0
local ENDS = {[''] = NO_END, released = 1, forced = 2, lapsed = 3, done = 4}

if not live and not queue then
  prior = ended or ''
  if exists and prior == '' then prior = 'lapsed' end
  fence = math.max((fence or 0) + 1, now_us)
  local ttl = tonumber(ARGV[4])
  local ends = now + 1 + ttl
  local life = string.format('%d', ends - now + ARGV[5])
  local state = string.format('%d\n%d\n%d\n\n%s\n%s\n%s\n%s\n%s\n\n\n%d',
    fence, ends, ends, ARGV[2], ARGV[3], last or '', prior, ARGV[6], now)
  if exists then redis.call('PEXPIRE', key, life) end
  redis.call('HSET', key, 's', state)
  if not exists then redis.call('PEXPIRE', key, life) end
  if memo then return {OK, fence, ENDS[prior], ttl + 1, memo} end
  return {OK, fence, ENDS[prior], ttl + 1}
end
