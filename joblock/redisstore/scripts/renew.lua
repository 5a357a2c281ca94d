-- Extends a live lease, or takes back the caller's own Park that got no answer.
-- ARGV     owner, fence, grant, ttl ms, retain ms, reserve ms
--          [, with a grant: the job before the Park] [, memo; '' deletes it]
-- Returns  {OK, fence} | LAPSED | {NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN

if not outcome and lease <= now then
  if live and lease == 0 and ARGV[3] ~= '' and nonce == ARGV[3] then
    job, reserved, changed = ARGV[7], 0, now
  else
    outcome = LAPSED
  end
end
if not outcome then
  lease = now + 1 + ARGV[4]
  reserved = math.max(reserved, lease + ARGV[6])
  new_memo = ARGV[ARGV[3] == '' and 7 or 8]
  ends, retain = reserved, ARGV[5]
  answer = {OK, fence}
end
