-- Refuses a call that does not name the present term. The beginning of the record in ARGV[1] has the owner and the
-- fence; 'any' in the place of the fence names any term of the owner. Instead of the fence, the local by_grant may name
-- the term: by the nonce of the call that began the term. Without a nonce by_grant is ''.
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
