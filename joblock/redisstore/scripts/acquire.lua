-- Takes a free key, or joins the queue of the key's waiters. A free key goes to the first waiter, if there is one, and
-- not to the caller: see queue.lua.
-- ARGV     ttl + 1 + retain in ms; three parts of the new record: owner and holder; nonce; ttl
--          (the stage fast grant in record.lua shows where the parts stand)
--          [, memo 1|0 and, in a cluster, h [, channel of the inbox, patience ms]]
-- Returns  from the stage fast grant: a text of a letter for how the previous ownership ended, the fence, and the
--          line last of the record
--          {OK, fence, how the previous ownership ended, lease ms left [, memo or nil, now in us]}
--          {HELD, state, ms left, holder, job, fence [, places ahead, now in us]} | FOREIGN
--          {MORE}: the first waiter is not found yet, see queue.lua

local memo_wanted = ARGV[5] and string.sub(ARGV[5], 1, 1) == '1'
--# decide

local by, label = string.match(ARGV[2], '^\n([^\n]*)\n([^\n]*)')
local call, ttl_ms = string.match(ARGV[3], '[^\n]*', 3), string.sub(ARGV[4], 1, 12)
local retain_ms = ARGV[1] - 1 - ttl_ms
local lease_ms, more_ms -- of the stage lease
if live and owner == by and nonce == call and lease_end > now_ms then
  -- An earlier run got the key, or the key was granted while this call waited.
  if at == changed and ttl + 0 < ttl_ms + 0 then -- numbers: a server orders texts by its locale
    lease_ms, more_ms, retain = ttl_ms, 0, retain_ms
  else
    resent = true
  end
elseif live then
  outcome = HELD
else
  vacant, hash_only = true, ARGV[5] and #ARGV[5] == 2
  heir_owner, heir_call, heir_ttl, heir_retain, heir_holder = by, call, ttl_ms, retain_ms, label
end
if (queue or outcome and ARGV[6]) and not resent then
  asker = {call = call, place = ARGV[1] .. '\n' .. ttl_ms .. ARGV[2], retain = retain_ms, inbox = ARGV[6],
    patience = tonumber(ARGV[7])}
end

--# answer
-- Answers if the call got the key.

if not outcome then
  local lease_left = lease_end - now_ms
  if memo_wanted then return {OK, fence, prior, lease_left, memo, now} end
  return {OK, fence, prior, lease_left}
end
