-- Takes a free key, or joins the queue of those who wait for it. A key that is
-- free while somebody waits is the first waiter's, whoever asks.
-- ARGV     owner, nonce, ttl ms, retain ms, holder [, inbox, patience ms]
-- Returns  {OK, fence, how the last ownership ended, lease ms left [, memo or nil]}
--          {HELD, state, ms left, holder, job [, waiters ahead, now in us]} | FOREIGN

local by, call, ttl, retain, inbox = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]

if live and owner == by and nonce == call and lease > now then
  save(reserved, retain) -- see there
  return {OK, fence, NO_END, lease - now, memo} -- a re-send, or granted while it waited
end
if not live then
  local asking = {call = call, by = by, holder = ARGV[5], ttl = ttl, retain = retain}
  local waiter = queue and first()
  if not waiter or waiter.call == call then
    local how = grant(asking, false)
    return {OK, fence, ENDS[how], ttl + 1, memo}
  end
  grant(waiter, true)
end
local answer = obstacle(HELD)
if inbox then
  answer[6] = join(call, by, ARGV[5], ttl, retain, inbox, tonumber(ARGV[7]))
  answer[7] = string.format('%d', now_us)
end
return answer
