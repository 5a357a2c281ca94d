-- Reads places in the queue of a key, and writes nothing.
-- ARGV     the number of the first place, how many numbers to look at
-- Returns  {OK, the number after the last, or 0 if there is none [, for each place: places
--          ahead, holder, job, since in us, until in ms]} | NOT_FOUND | FOREIGN

--# answer

if not exists then return NOT_FOUND end
local from = math.max(head, tonumber(ARGV[1]))
local to = math.min(tail, from + ARGV[2])
local answer, names = {OK, to < tail and to or 0}, {}
for n = from, to - 1 do names[#names + 1] = 'q' .. n end
if names[1] then
  for i, entry in ipairs(redis.call('HMGET', key, unpack(names))) do
    local till, holder, job, since = string.match((entry or '') .. '\n',
      '^(%d+)\n%d+\n[%d ]+\n[^\n]*\n([^\n]*)\n([^\n]*)\n\n[^\n]*\n[^\n]*\n([%d ]+)\n')
    if till and #till < 16 and till + 0 > now_ms then
      local n = #answer
      answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = from - head + i - 1, holder, job, since, till
    end
  end
end
return answer
