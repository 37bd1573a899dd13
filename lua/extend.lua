-- extend: renews leases and says of each claim whether it still lives.
-- KEYS  1.. leases (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 lease ms  3.. claim: the number of its lane's key, token
-- REPLY { now, "extended", "1" or "0", one per claim... }
-- KEEPS a lease that was removed is not made again.

local lease = tonumber(ARGV[2])
if #KEYS < 1 or #ARGV % 2 ~= 0 or #ARGV > 2002 then
  return redis.error_reply('BADCALL extend: the numbers of keys and arguments do not fit')
end

local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[1] ~= '' then
  now, micros = tonumber(ARGV[1]), ARGV[1] .. '000'
end

-- The first write frees nothing but is allowed on a full Redis, and so are then those after it.
local gate = redis.pcall('ZREM', KEYS[1], '')
if type(gate) == 'table' then
  return redis.error_reply(string.match(gate.err, '%u%u%u+ .*') or gate.err)
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
