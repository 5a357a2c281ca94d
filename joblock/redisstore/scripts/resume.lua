-- Continues a parked or orphaned lock of the same owner.
-- ARGV     memo 1|0, owner, nonce, ttl ms, retain ms, holder, job, hold ms,
--          in the index 1|0, a fence of the ownership, 0 for any [, the job of before a Park that is taken back]
-- Returns  {OK, fence, memo or nil, 1 if recovered else 0}
--          {BUSY or WRONG_JOB or NOT_OWNER, state, ms left, holder, job}
--          {RELEASED, ended, reason} | NOT_FOUND | FOREIGN
--          UNLISTED, where that must be 1 and is not: a job's lock is to be recovered
--
-- A re-send is told that it was not recovered, whatever the first answer said:
-- by then the record no longer shows it.

local by, call, ttl, retain = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

if not exists then return NOT_FOUND end
if owner ~= by then return not_owner() end
if ended ~= '' then return released() end
local _, job, reason, since = details()
if job == '' and ARGV[10] ~= '0' and since * 1000 > tonumber(ARGV[10]) then return not_owner() end
if job ~= '' and job ~= ARGV[7] and job ~= ARGV[11] then return obstacle(WRONG_JOB) end
if lease > now then
  if nonce == call then
    touch()
    return {OK, fence, memo, 0}
  end
  return obstacle(BUSY)
end
if not live and job ~= '' and ARGV[9] ~= '1' then return UNLISTED end

fence, nonce, lease = next_fence(), call, now + 1 + ttl
if ARGV[11] then job, reserved = ARGV[11], 0 end
reserved = math.max(reserved, lease + ARGV[8])
set_details(ARGV[6], job, reason, since)
save(reserved, retain)
return {OK, fence, memo, live and 0 or 1}
