-- Comes between memo.lua and functions.lua in front of resume.lua, and does what
-- it does where that is simplest: a job's next attempt finds its lock parked, or
-- left by an attempt that died, and nobody waits.

if live and not queue and not ARGV[11] and owner == ARGV[2] and lease <= now then
  local job, reason, since = string.match(rest, '^[^\n]*\n([^\n]*)\n([^\n]*)\n(%d+)$')
  if job == '' and (ARGV[10] == '0' or since * 1000 <= tonumber(ARGV[10])) or job ~= '' and job == ARGV[7] then
    fence = math.max(fence + 1, now_us)
    lease = now + 1 + ARGV[4]
    reserved = math.max(reserved, lease + ARGV[8])
    redis.call('PEXPIRE', key, string.format('%d', reserved - now + ARGV[5]))
    redis.call('HSET', key, 's', string.format('%d\n%d\n%d\n\n%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s',
      fence, lease, reserved, owner, ARGV[3], last, prior, ARGV[6], job, reason, since))
    return {OK, fence, memo, 0}
  end
end
