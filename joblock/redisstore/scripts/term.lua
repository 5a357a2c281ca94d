-- Refuses a call that does not name the present term. It names it by the owner and the fence,
-- or 'any' for that, and by by_grant: the nonce of the call that began the term, or ''.
-- ARGV[1]  the beginning of the record, up to the owner

local by_fence, by = string.match(ARGV[1], '^job.([^\n]*)\n([^\n]*)')
if not exists then
  outcome = NOT_FOUND
elseif owner ~= by then
  outcome = NOT_OWNER
elseif ended ~= '' then
  outcome = RELEASED
elseif by_fence ~= 'any' and by_fence ~= fence and (by_grant == '' or by_grant ~= nonce) then
  outcome = NOT_OWNER
end
