-- Counts starts against the rate of a key, and keeps the line of those who wait: what driver.Rate.Admit does.
-- KEYS[1]  a sorted set
-- ARGV     kind, starts or 0, period us, id, start to take back or 0, most, delay us, early us
-- Returns  {OK or HELD, now us, start us, wait us, ahead, waiting, claims, used, end of the delay us,
--          starts and period us of the previous rate, 1 if the ID had a claim else 0 [, called ID ...]} | FOREIGN
--
-- The bands of scores have times in us since 2020, up to a band's width: until 2077.
--   0        the member 'starts period keep': the rate that was last used, and the longest period, in us
--   CLAIM    claims, by when they begin; the member is 'i' and the ID, as in the line
--   LOG      starts; the member is 's' and the time in us since 1970
--   LINE     those who wait, by when they came
--   UNTIL    the end of a delay; the member is 'u'

local OK, HELD, FOREIGN = 1, 2, 9
local EPOCH, CLAIM, LOG, LINE, UNTIL, TOP = 1577836800000000, 1800000000000000, 3600000000000000, 5400000000000000, 7200000000000000, 9000000000000000
local GRACE, CLAIM_KEEP = 5000000, 3600000000
local key = KEYS[1]
local kind, starts, period, id, back, most, delay =
  ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), 'i' .. ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local said = redis.pcall('ZRANGEBYSCORE', key, 0, 0)
if said.err then
  if string.find(said.err, 'WRONGTYPE', 1, true) then return FOREIGN end
  return said
end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local t = now - EPOCH

local function num(n) return string.format('%.0f', n) end
local function count(from, to) return redis.call('ZCOUNT', key, from, to) end

local was_starts, was_period, keep = string.match(said[1] or '', '^(%d+) (%d+) (%d+)$')
was_starts, was_period, keep = tonumber(was_starts or '0'), tonumber(was_period or '0'), tonumber(keep or '0')
local looks = kind == 'look'
if starts == 0 then
  starts, period = was_starts, was_period
elseif not looks and (starts ~= was_starts or period ~= was_period or period > keep) then
  keep = math.max(keep, period)
  if said[1] then redis.call('ZREM', key, said[1]) end
  redis.call('ZADD', key, 0, num(starts) .. ' ' .. num(period) .. ' ' .. num(keep))
end
if not looks then
  redis.call('ZREMRANGEBYSCORE', key, num(LOG), num(LOG + t - keep))
  redis.call('ZREMRANGEBYSCORE', key, num(CLAIM), '(' .. num(CLAIM + t - CLAIM_KEEP))
  if back ~= '0' then redis.call('ZREM', key, 's' .. back) end
end
local till = tonumber(redis.call('ZSCORE', key, 'u') or '0') - UNTIL
if till <= t then till = 0 end

local recent, above = '(' .. num(LOG + t - period), '(' .. num(LINE)
local used = count(recent, above)
local free = starts - used
local function opening(n)
  local base = math.max(t, till)
  if starts == 0 then return base end
  local at, i = base, n % starts
  if i >= free then
    local from = redis.call('ZRANGEBYSCORE', key, recent, above, 'WITHSCORES', 'LIMIT', i - free, 1)
    at = math.max(base, tonumber(from[2]) - LOG + period)
  end
  return at + (n - i) / starts * period
end
local function claimed(last) return count('(' .. num(CLAIM + t - GRACE), last) end
local soon = t
if kind == 'start' or kind == 'call' then soon = t + tonumber(ARGV[8]) end
local live = claimed(num(CLAIM + soon))
local function line() return count(num(LINE), '(' .. num(UNTIL)) end
local score = tonumber(redis.call('ZSCORE', key, id) or '0')
local claim, place = score >= CLAIM and score < LOG, score >= LINE and score < UNTIL

local outcome, start, wait, ahead, called, changed = OK, 0, 0, 0, {}, not looks
local asks = kind == 'start' or kind == 'try'
if asks or looks then
  local need
  if claim then
    need, ahead = 0, claimed('(' .. num(math.min(CLAIM + t + 1, score)))
  else
    need = live + (place and count(num(LINE), '(' .. num(score)) or line())
    ahead = need
  end
  local at = opening(need)
  if at > soon then wait = opening(ahead) - t end
  if looks then
  elseif at > soon then
    outcome = HELD
    if claim then
      redis.call('ZADD', key, num(CLAIM + t + wait), id)
    elseif not place and kind == 'start' then
      local last = redis.call('ZREVRANGEBYSCORE', key, '(' .. num(UNTIL), num(LINE), 'WITHSCORES', 'LIMIT', 0, 1)
      redis.call('ZADD', key, num(math.max(LINE + t, tonumber(last[2] or '0') + 1)), id)
    end
  else
    if claim or place then redis.call('ZREM', key, id) end
    local last = redis.call('ZREVRANGEBYSCORE', key, above, num(LOG), 'WITHSCORES', 'LIMIT', 0, 1)
    local score = math.max(LOG + at, tonumber(last[2] or '0') + 1)
    start, wait, ahead, used = score - LOG + EPOCH, at - t, 0, used + 1
    redis.call('ZADD', key, num(score), 's' .. num(start))
  end
elseif kind == 'call' then
  local n = 0
  if opening(live) <= soon then
    for i, member in ipairs(redis.call('ZRANGEBYSCORE', key, num(LINE), '(' .. num(UNTIL), 'LIMIT', 0, most)) do
      local at = opening(live + n)
      if at > soon then break end
      redis.call('ZADD', key, num(CLAIM + at), member)
      n, called[i] = i, string.sub(member, 2)
    end
  end
  ahead = live + n
  wait = opening(ahead) - t
elseif kind == 'leave' then
  if claim or place then redis.call('ZREM', key, id) end
elseif kind == 'later' then
  redis.call('ZADD', key, num(CLAIM + t + delay), id)
elseif kind == 'delay' then
  till = math.max(till, t + delay)
  if delay == 0 then till = 0 end
  if till > 0 then redis.call('ZADD', key, num(UNTIL + till), 'u') end
end
if changed and till == 0 then redis.call('ZREM', key, 'u') end

local waiting, claims = line(), count(num(CLAIM), '(' .. num(LOG))
if changed then -- as driver.Rate.Expires
  local ends = math.max(t, till)
  local last = redis.call('ZREVRANGEBYSCORE', key, above, num(LOG), 'WITHSCORES', 'LIMIT', 0, 1)
  if last[2] then ends = math.max(ends, tonumber(last[2]) - LOG + keep) end
  if waiting + claims > 0 then ends = ends + CLAIM_KEEP + period * (math.floor(waiting / math.max(1, starts)) + 1) end
  redis.call('PEXPIRE', key, num(math.floor((ends - t) / 1000) + 1))
end
if till > 0 then till = till + EPOCH end
local reply = {outcome, num(now), num(start), num(wait), ahead, waiting, claims, math.min(used, starts), num(till), num(was_starts), num(was_period), claim and asks and 1 or 0}
for _, member in ipairs(called) do reply[#reply + 1] = member end
return reply
