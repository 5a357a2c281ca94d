-- Refuses a call that does not name the present term.
-- ARGV     owner, fence or 'any', grant: the nonce of the call that began the term, or ''

if not exists then
  outcome = NOT_FOUND
elseif owner ~= ARGV[1] then
  outcome = NOT_OWNER
elseif ended ~= '' then
  outcome = RELEASED
elseif ARGV[2] ~= 'any' and tonumber(ARGV[2]) ~= fence and (ARGV[3] == '' or ARGV[3] ~= nonce) then
  outcome = NOT_OWNER
end
