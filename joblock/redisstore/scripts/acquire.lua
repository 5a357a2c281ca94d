-- Takes a free key, or joins the queue of its waiters. A free key goes to the first waiter
-- if there is one, whoever asks.
-- ARGV     memo 1|0, owner, nonce, ttl ms, retain ms, holder [, inbox, patience ms]
-- Returns  {OK, fence, how the last ownership ended, lease ms left [, memo or nil, now in us]}
--          {HELD, state, ms left, holder, job [, places ahead, now in us]} | FOREIGN
--          {MORE}, if it is not known yet who is first in line

if live and owner == ARGV[2] and nonce == ARGV[3] and lease > now then
  resent = true -- or the key was granted while this call waited
elseif live then
  outcome = HELD
else
  vacant = true
  heir_owner, heir_call, heir_ttl, heir_retain, heir_holder = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
end
if (queue or outcome and ARGV[7]) and not resent then
  asker = {owner = ARGV[2], call = ARGV[3], ttl = tonumber(ARGV[4]), retain = tonumber(ARGV[5]), holder = ARGV[6],
    inbox = ARGV[7], patience = tonumber(ARGV[8])}
end

--# answer
-- Answers if the call got the key.

if not outcome then
  if ARGV[1] == '1' then return {OK, fence, prior, lease - now, memo, string.format('%d', now_us)} end
  return {OK, fence, prior, lease - now}
end
