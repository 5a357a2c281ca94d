-- Keeps a key reserved for the job that its record is bound to.
-- ARGV     job, reserve ms, retain ms
-- Returns  {OK, state, ms left, holder, job, 1 if recovered else 0}
--          {WRONG_JOB, state, ms left, holder, job} | {RELEASED, ended, reason}
--          NOT_FOUND | FOREIGN

if not exists then
  outcome = NOT_FOUND
elseif job ~= ARGV[1] then
  outcome = WRONG_JOB
elseif ended ~= '' then
  outcome = RELEASED
else
  outcome, extra = OK, live and 0 or 1
  live = true
  reserved_end = math.max(reserved_end, now_ms + 1 + ARGV[2])
  reserve = string.format('%12d', reserved_end - begun)
  retain = ARGV[3]
end
