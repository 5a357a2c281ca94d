-- Comes between record.lua and functions.lua in front of resume.lua, and does what
-- it does where that is simplest: a job's next attempt finds its lock parked, or
-- left by an attempt that died, and nobody waits.

if live and not queue and not ARGV[10] and owner == ARGV[1] and lease <= now then
  local job, reason, since = string.match(rest, '^[^\n]*\n([^\n]*)\n([^\n]*)\n(%d+)$')
  if job == '' and (ARGV[9] == '0' or since * 1000 <= tonumber(ARGV[9])) or job ~= '' and job == ARGV[6] then
    fence = math.max(fence + 1, now_us)
    lease = now + 1 + ARGV[3]
    reserved = math.max(reserved, lease + ARGV[7])
    redis.call('PEXPIRE', key, string.format('%d', reserved - now + ARGV[4]))
    redis.call('HSET', key, 's', string.format('%d\n%d\n%d\n\n%s\n%s\n%s\n%s\n%s\n%s\n%s',
      fence, lease, reserved, owner, ARGV[2], last, ARGV[5], job, reason, since))
    return {OK, fence, memo, 0}
  end
end
