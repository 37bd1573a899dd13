-- show: reads one dead occurrence.
-- WITH  prelude
-- KEYS  1 dead (zset)  2 dead:records (hash)
-- ARGV  1 now ms, "" = Redis' time  2 key
-- REPLY { now, "shown", died, value } | { now, "unknown" }
-- KEEPS writes nothing.

local dead, dead_records, key = KEYS[1], KEYS[2], ARGV[2]
if #KEYS ~= 2 or #ARGV ~= 2 then
  return redis.error_reply('BADCALL show: the numbers of keys and arguments do not fit')
end

local died, value = redis.call('ZSCORE', dead, key), redis.call('HGET', dead_records, key)
if not died or not value then
  return { micros, 'unknown' }
end
return { micros, 'shown', died, value }
