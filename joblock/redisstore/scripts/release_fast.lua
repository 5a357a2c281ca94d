-- Comes between record.lua and functions.lua in front of release.lua, and does what
-- it does where that is simplest: the holder gives back what it holds, and nobody
-- waits.

-- brief is for how long a record is remembered of which nobody needs to know more than
-- that it has ended; nil for one with a memo, and for one whose fence the server's clock
-- has not reached: were it forgotten, the next fence might be a smaller one.
local function brief()
  if ARGV[6] == '0' or fence > now_us or redis.call('HEXISTS', key, 'memo') == 1 then return nil end
  return ARGV[6]
end

if live and not queue and owner == ARGV[1] and tonumber(ARGV[2]) == fence
  and ARGV[8] == '0' and ARGV[9] == '0' and last ~= ARGV[4]
  and (not ARGV[10] or string.match(rest, '^[^\n]*\n([^\n]*)') == ARGV[10]) then
  if ARGV[7] ~= '' then
    local who, since = string.match(rest, '^([^\n]*\n[^\n]*\n)[^\n]*(\n%d+)$')
    rest = who .. ARGV[7] .. since
  end
  redis.call('PEXPIRE', key, brief() or ARGV[5])
  redis.call('HSET', key, 's', string.format('%d\n0\n0\n%s\n%s\n%s\n%s\n%s\n%s',
    fence, ARGV[11] == '1' and 'done' or 'released', owner, ARGV[4], ARGV[4], prior, rest))
  return OK
end
