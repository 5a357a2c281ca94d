-- Comes between record.lua and functions.lua in front of release.lua, and does what
-- it does where that is simplest: the holder gives back what it holds, and nobody
-- waits.

if live and not queue and owner == ARGV[1] and tonumber(ARGV[2]) == fence
  and ARGV[7] == '0' and ARGV[8] == '0' and last ~= ARGV[4]
  and (not ARGV[9] or string.match(rest, '^[^\n]*\n([^\n]*)') == ARGV[9]) then
  if ARGV[6] ~= '' then
    local who, since = string.match(rest, '^([^\n]*\n[^\n]*\n)[^\n]*(\n%d+)$')
    rest = who .. ARGV[6] .. since
  end
  redis.call('PEXPIRE', key, ARGV[5])
  redis.call('HSET', key, 's', string.format('%d\n0\n0\n%s\n%s\n%s\n%s\n%s\n%s',
    fence, ARGV[10] == '1' and 'done' or 'released', owner, ARGV[4], ARGV[4], prior, rest))
  return OK
end
