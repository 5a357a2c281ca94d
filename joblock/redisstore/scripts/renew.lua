-- Extends a live lease, and takes back a lock that the caller's own unanswered
-- Park had parked.
-- ARGV     owner, fence, grant, ttl ms, retain ms, hold ms [, memo; '' deletes it]
-- Returns  {OK, fence} | LAPSED | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN

local no = refusal(ARGV[1], ARGV[2], ARGV[3], false)
if no then return no end
if lease <= now and not (lease == 0 and live and ARGV[3] ~= '' and nonce == ARGV[3]) then return LAPSED end

lease = now + 1 + tonumber(ARGV[4])
reserved = math.max(reserved, lease + ARGV[6])
if ARGV[7] and ARGV[7] ~= '' then
  save(reserved, tonumber(ARGV[5]), 'memo', ARGV[7])
else
  save(reserved, tonumber(ARGV[5]))
  if ARGV[7] then redis.call('HDEL', key, 'memo') end
end
return {OK, fence}
