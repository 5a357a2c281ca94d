-- Takes a free key, or joins the queue of those who wait for it. A key that is
-- free while somebody waits is the first waiter's, whoever asks.
-- ARGV     memo 1|0, owner, nonce, ttl ms, retain ms, holder [, inbox, patience ms]
-- Returns  {OK, fence, how the last ownership ended, lease ms left [, memo or nil]}
--          {HELD, state, ms left, holder, job [, waiters ahead, now in us]} | FOREIGN
--          MORE, if it is not known yet whose the free key is

local by, call, ttl, retain, inbox = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[7]

if live and owner == by and nonce == call and lease > now then
  touch()
  return {OK, fence, ENDS[prior] or NO_END, lease - now, memo} -- a re-send, or granted while it waited
end
if not live then
  local asking = {call = call, by = by, holder = ARGV[6], ttl = ttl, retain = retain}
  local waiter, more
  if queue then waiter, more = first() end
  if more then return MORE end
  if not waiter or waiter.call == call then
    grant(asking, false)
    return {OK, fence, ENDS[prior], ttl + 1, memo}
  end
  grant(waiter, true)
end
local answer = obstacle(HELD)
if inbox then
  answer[6] = join(call, by, ARGV[6], ttl, retain, inbox, tonumber(ARGV[8]))
  answer[7] = string.format('%d', now_us)
end
return answer
