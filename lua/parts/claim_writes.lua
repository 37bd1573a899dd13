-- claim_writes: the writes of a claim.

-- Claims members under a lease. `claim_entry` is the entry of the claim, "<number> id due id due...". `negated` are their
-- negative scores and ids. Removes the members in `gone`, which have no record. Returns an error reply if nothing was written.
local function write_claim(due, leases, claims, crashes, token, lease, claim_entry, negated, gone)
  if #negated == 0 and #gone == 0 then
    return nil
  end
  local full = first_write('HDEL', claims, '')
  if full then
    return full
  end
  if #negated > 0 then
    if redis.call('ZADD', leases, 'NX', string.format('%.0f', now + lease), token) == 0 then
      return redis.error_reply('BADCALL: the token is in use')
    end
    redis.call('HSET', claims, token, claim_entry)
    redis.call('ZADD', due, 'XX', unpack(negated))
  end
  call_with(gone, 'ZREM', due)
  call_with(gone, 'HDEL', crashes)
  return nil
end
