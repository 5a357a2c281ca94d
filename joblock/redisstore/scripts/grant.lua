-- Makes the heir the owner of the free key. The heir is the caller, which acquire.lua names, or the first waiter, which
-- queue.lua puts in the caller's place. Only four stages grant a key: this one, and fast grant, fast take and fast
-- pass in record.lua.

if heir_call then
  -- Without a subscriber, the waiter has died or will ask soon, so the lease ends with the place. An address with a tab
  -- belongs to a cluster, where a server knows only its own subscribers. A double tab says that this server should know
  -- the waiter. If a server does not answer, the grant counts as heard.
  if push and not heir_job then
    local sure = string.find(push, '\t\t', 1, true)
    if sure then push = string.gsub(push, '\t\t', '\t') end
    if push ~= own_inbox and sure then
      ears = redis.pcall('PUBSUB', 'SHARDNUMSUB', (string.gsub(push, '\t', '')))[2]
    elseif push ~= own_inbox and not string.find(push, '\t', 1, true) then
      ears = redis.pcall('PUBSUB', 'NUMSUB', push)[2]
    end
    unheard = ears == 0
    if unheard and heir_till - now_ms < heir_ttl + 0 then heir_ttl = string.format('%12d', heir_till - now_ms) end
  end
  prior = not exists and '-' or ended == '' and 'L' or ended
  fence, ended, owner, nonce, last = next_fence, '', heir_owner, heir_call, last or ''
  holder, job, reason = heir_holder, '', ''
  first, since, changed, at = fence, now, now, now
  ttl, reserve = heir_ttl, heir_ttl
  lease_end = now_ms + 1 + ttl
  reserved_end = lease_end
  kind = kind or hash_only and 'h' or '-'
  live = true
  if heir_job then job, lease_end, ttl = heir_job, 0, NO_TIME end
  retain, brief = heir_retain, nil
end
