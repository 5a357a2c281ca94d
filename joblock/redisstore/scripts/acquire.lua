-- Takes a free key, or joins the queue of its waiters. A free key goes to the first waiter
-- if there is one, whoever asks.
-- ARGV     ttl + 1 + retain in ms; the parts of the record that this call begins, see the stage
--          usual grant: owner and holder, nonce, ttl
--          [, memo 1|0 and, in a cluster, h [, inbox, patience ms]]
-- Returns  a letter, fence: how the last ownership ended; from the stage usual grant
--          {OK, fence, how the last ownership ended, lease ms left [, memo or nil, now in us]}
--          {HELD, state, ms left, holder, job, fence [, places ahead, now in us]} | FOREIGN
--          {MORE}, if it is not known yet who is first in line

local memo_wanted = ARGV[5] and string.sub(ARGV[5], 1, 1) == '1'
--# decide

local by, label = string.match(ARGV[2], '^\n([^\n]*)\n([^\n]*)')
local call, lease_ms = string.match(ARGV[3], '[^\n]*', 3), string.sub(ARGV[4], 1, 12)
local retain_ms = ARGV[1] - 1 - lease_ms
if live and owner == by and nonce == call and lease_end > now_ms then
  resent = true -- or the key was granted while this call waited
elseif live then
  outcome = HELD
else
  vacant, hash_only = true, ARGV[5] and #ARGV[5] == 2
  heir_owner, heir_call, heir_ttl, heir_retain, heir_holder = by, call, lease_ms, retain_ms, label
end
if (queue or outcome and ARGV[6]) and not resent then
  asker = {owner = by, call = call, ttl = lease_ms + 0, retain = retain_ms, holder = label,
    inbox = ARGV[6], patience = tonumber(ARGV[7])}
end

--# answer
-- Answers if the call got the key.

if not outcome then
  local lease_left = lease_end - now_ms
  if memo_wanted then return {OK, fence, prior, lease_left, memo, now} end
  return {OK, fence, prior, lease_left}
end
