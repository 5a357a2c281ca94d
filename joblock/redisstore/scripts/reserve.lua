-- Keeps a key reserved for the job that its record is bound to, or keeps the place of a job that waits.
-- KEYS[2]  the index; without it, the entry has been written before, or ARGV[4] is ''
-- ARGV     job, reserve ms, retain ms, us until an entry of the index is due, or '' if there may be no entry
--          [, the nonce of the Take with which the job waits, 1 if the caller starts a job that gets the key, else 0]
-- Returns  {OK, state, ms left, holder, job, 0; 1 if recovered; 2 if the waiting job has got the key}
--          {HELD, state, ms left, holder, job, fence, places ahead, now in us, since in us,
--          the waiting job that has got the key or nothing}: the job waits
--          {WRONG_JOB, state, ms left, holder, job} | {RELEASED, ended, reason}
--          NOT_FOUND | FOREIGN
--          UNLISTED: the call would recover a lock, and there may be no entry of the index
--          {MORE}: the first waiter is not found yet, see queue.lua

if queue and ARGV[5] and not (live and job == ARGV[1]) then
  seat, keep_ms, vacant, starts = ARGV[5], tonumber(ARGV[2]), not live, ARGV[6] == '1'
end
--# decide

if answer then -- MORE
elseif not exists then
  outcome = NOT_FOUND
elseif seat and heir_call == ARGV[5] then
  outcome, extra = OK, 2
elseif seat and live then
  outcome, extra, extra2, extra3, extra4 = HELD, seat.n - head, now, seat.since, heir_job or ''
elseif job ~= ARGV[1] then
  outcome = WRONG_JOB
elseif ended ~= '' then
  outcome = RELEASED
elseif not live and ARGV[4] == '' then
  outcome = UNLISTED
else
  outcome, extra = OK, live and 0 or 1
  if KEYS[2] and not live then bind(KEYS[2], job, string.sub(key, #KEYS[2] + 1), now_us, ARGV[4]) end
  live = true
  reserved_end = math.max(reserved_end, now_ms + 1 + ARGV[2])
  reserve = string.format('%12d', reserved_end - begun)
  retain = ARGV[3]
end
