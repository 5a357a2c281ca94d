-- Keeps a key reserved for the job that its record is bound to.
-- ARGV     job, hold ms, retain ms
-- Returns  {OK, state, ms left, holder, job, 1 if recovered else 0}
--          {WRONG_JOB, state, ms left, holder, job} | {RELEASED, ended, reason}
--          NOT_FOUND | FOREIGN

if not exists then return NOT_FOUND end
local _, job = details()
if job ~= ARGV[1] then return obstacle(WRONG_JOB) end
if ended ~= '' then return released() end

local recovered = live and 0 or 1
reserved = math.max(reserved, now + 1 + ARGV[2])
live = true -- which is what obstacle is to tell
save(reserved, tonumber(ARGV[3]))
local answer = obstacle(OK)
answer[6] = recovered
return answer
