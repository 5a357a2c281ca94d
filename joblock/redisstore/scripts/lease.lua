-- Begins a lease of lease_ms, and reserves the key for more_ms beyond that lease. A reservation that lasts longer
-- stays.

if lease_ms then
  at, ttl = now, lease_ms
  begun = now_ms + 1
  lease_end = begun + ttl
  reserved_end = math.max(reserved_end, lease_end + more_ms)
  reserve = string.format('%12d', reserved_end - begun)
end
