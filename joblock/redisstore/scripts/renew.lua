-- Extends a live lease, or takes back the caller's own Park that got no answer. The argument grant then names that
-- Park.
-- ARGV     the beginning of the record, up to the owner; grant, ttl ms, retain ms, reserve ms
--          [, with a grant: the job before the Park] [, memo; '' deletes the record's memo]
-- Returns  {OK, fence} | LAPSED | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN

local by_grant = ARGV[2]
--# decide

if not outcome and lease_end <= now_ms then
  if live and lease_end == 0 and by_grant ~= '' and nonce == by_grant then
    job, reserved_end, changed = ARGV[6], 0, now
  else
    outcome = LAPSED
  end
end
local lease_ms, more_ms
if not outcome then
  lease_ms, more_ms, retain = ARGV[3], ARGV[5], ARGV[4]
  new_memo = ARGV[by_grant == '' and 6 or 7]
  answer = {OK, fence}
end
