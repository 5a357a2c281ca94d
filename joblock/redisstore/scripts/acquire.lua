-- Takes a free key.
-- ARGV     owner, nonce, ttl ms, retain ms, holder
-- Returns  {OK, fence, memo or nil, how the last ownership ended, reason}
--          {HELD, state, ms left, holder, job} | {FOREIGN}

local by, call, ttl, retain = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

if owner == by and resent(call) and ended == '' and lease > now then
  return {OK, fence, memo, '', ''}
end
if live then return obstacle(HELD) end

local last = ended
if exists and last == '' then last, reason = 'lapsed', '' end

local granted, ends = next_fence(), deadline(ttl)
local ends_text = dec(ends)
save(ends, retain,
  'owner', by, 'nonce', call, 'fence', dec(granted), 'lease', ends_text, 'until', ends_text,
  'ended', '', 'holder', ARGV[5], 'job', '', 'reason', '', 'since', dec(now))
return {OK, granted, memo, last, reason}
