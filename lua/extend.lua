-- extend: renews leases and returns for each claim whether it still exists.
-- WITH  prelude
-- KEYS  1.. leases (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 lease ms  3.. claim: the number of its lane's key, token
-- REPLY { now, "extended", "1" or "0", one per claim... }
-- KEEPS a removed lease is not created again.

local lease = tonumber(ARGV[2])
if #KEYS < 1 or #ARGV % 2 ~= 0 or #ARGV > 2002 then
  return redis.error_reply('BADCALL extend: the numbers of keys and arguments do not fit')
end

local full = first_write('ZREM', KEYS[1], '')
if full then
  return full
end
local ends, reply = string.format('%.0f', now + lease), { micros, 'extended' }
for i = 3, #ARGV, 2 do
  local leases, token = KEYS[tonumber(ARGV[i])], ARGV[i + 1]
  local lives = redis.call('ZSCORE', leases, token)
  if lives then
    redis.call('ZADD', leases, 'XX', ends, token)
  end
  reply[#reply + 1] = lives and '1' or '0'
end
return reply
