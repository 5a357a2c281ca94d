-- Makes the heir the owner of the free key. Only four stages grant a key: this one, and usual grant, usual take and
-- usual pass in record.lua.

if heir_call then
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
