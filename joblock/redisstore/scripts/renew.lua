-- Extends a live lease, and takes back a lock that the caller's own unanswered
-- Park had parked.
-- ARGV     owner, fence, grant, ttl ms, retain ms, hold ms
--          [, with a grant the job of before the Park] [, memo; '' deletes it]
-- Returns  {OK, fence} | LAPSED | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN

local no = refusal(ARGV[1], ARGV[2], ARGV[3], false)
if no then return no end
local new_memo = ARGV[7]
if ARGV[3] ~= '' then new_memo = ARGV[8] end
if lease <= now then
  if not (lease == 0 and live and ARGV[3] ~= '' and nonce == ARGV[3]) then return LAPSED end
  local holder, _, reason, since = details()
  set_details(holder, ARGV[7], reason, since)
  reserved = 0
end

lease = now + 1 + tonumber(ARGV[4])
reserved = math.max(reserved, lease + ARGV[6])
if new_memo and new_memo ~= '' then
  save(reserved, tonumber(ARGV[5]), 'memo', new_memo)
else
  save(reserved, tonumber(ARGV[5]))
  if new_memo then redis.call('HDEL', key, 'memo') end
end
return {OK, fence}
