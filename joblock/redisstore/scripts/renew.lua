-- Extends a live lease, and takes back a lock that the caller's own unanswered
-- Park had parked.
-- ARGV     owner, fence, grant, ttl ms, retain ms [, memo; '' deletes it]
-- Returns  {OK, fence} | {LAPSED} | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | {NOT_FOUND} | {FOREIGN}

local no = refusal(ARGV[1], ARGV[2], ARGV[3], false)
if no then return no end
if lease <= now and not (lease == 0 and live and resent(ARGV[3])) then return {LAPSED} end

local lease_ends = deadline(tonumber(ARGV[4]))
local ends = math.max(reserved, lease_ends)
local new_memo = ARGV[6]
if new_memo == '' then
  redis.call('HDEL', key, 'memo')
  new_memo = nil
end
if new_memo then
  save(ends, tonumber(ARGV[5]), 'lease', dec(lease_ends), 'until', dec(ends), 'memo', new_memo)
else
  save(ends, tonumber(ARGV[5]), 'lease', dec(lease_ends), 'until', dec(ends))
end
return {OK, fence}
