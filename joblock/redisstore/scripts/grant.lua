-- Makes the heir the owner of the free key. No other stage grants a key.

if heir_call then
  prior = ended or ''
  if exists and prior == '' then prior = 'lapsed' end
  fence = next_fence
  lease = now + 1 + heir_ttl
  reserved = lease
  ended, owner, nonce, last = '', heir_owner, heir_call, last or ''
  holder, job, reason = heir_holder, '', ''
  first, since, changed = fence, now, now
  live = true
  ends, retain, brief = reserved, heir_retain, nil
end
