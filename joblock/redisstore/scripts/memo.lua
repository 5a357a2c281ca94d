-- Comes after record.lua in the scripts that tell the memo, and reads it if it is asked
-- for. It may be large, and a script that reads what nobody wants keeps all others
-- waiting. One that is too large is somebody else's, and refused before anything is
-- written.
-- ARGV[1]  the memo is asked for: 1|0

local MAX_MEMO = 65536 -- joblock.MaxMemoBytes

local memo = false
if ARGV[1] == '1' and exists then
  memo = redis.call('HGET', key, 'memo')
  if memo and #memo > MAX_MEMO then return foreign() end
end
