-- Comes between record.lua and functions.lua in front of release.lua, and does what
-- it does where that is simplest: the holder gives back what it holds, and nobody
-- waits.

-- life is for how long the record is remembered from now on, of whose ownership so many
-- ms are left. A memo is not forgotten sooner for its end, by whomever: who ends it need
-- not know how long it is to be kept. Of the others nobody may need to know more than that
-- they have ended; but not of one whose fence the server's clock has not reached: were it
-- forgotten, the next fence might be a smaller one.
local function life(left)
  if redis.call('HEXISTS', key, 'memo') == 1 then
    return math.max(tonumber(ARGV[5]), redis.call('PTTL', key) - math.max(left, 0))
  end
  if ARGV[6] == '0' or fence > now_us then return tonumber(ARGV[5]) end
  return tonumber(ARGV[6])
end

if live and not queue and owner == ARGV[1] and tonumber(ARGV[2]) == fence
  and ARGV[8] == '0' and ARGV[9] == '0' and last ~= ARGV[4]
  and (not ARGV[10] or string.match(rest, '^[^\n]*\n([^\n]*)') == ARGV[10]) then
  if ARGV[7] ~= '' then
    local who, since = string.match(rest, '^([^\n]*\n[^\n]*\n)[^\n]*(\n%d+)$')
    rest = who .. ARGV[7] .. since
  end
  redis.call('PEXPIRE', key, string.format('%d', life(reserved - now)))
  redis.call('HSET', key, 's', string.format('%d\n0\n0\n%s\n%s\n%s\n%s\n%s\n%s',
    fence, ARGV[11] == '1' and 'done' or 'released', owner, ARGV[4], ARGV[4], prior, rest))
  return OK
end
