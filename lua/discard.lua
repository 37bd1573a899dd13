-- discard: deletes a dead occurrence.
-- WITH  prelude, dead
-- KEYS  1 dead (zset)  2 dead:records (hash)  3 dead:order (zset)  4 dead:bytes (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 key  4 died ms, "" = whenever
-- REPLY { now, "discarded" } | { now, "unknown" } | { now, "late" }
-- KEEPS dead and dead:records have the same keys; another death under the same key stays.

local dead, dead_records, key, died = KEYS[1], KEYS[2], ARGV[3], ARGV[4]
if #KEYS ~= 4 or #ARGV ~= 4 then
  return redis.error_reply('BADCALL discard: the numbers of keys and arguments do not fit')
end

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local since = redis.call('ZSCORE', dead, key)
if died ~= '' and since ~= died then
  return { micros, 'unknown' }
end
local value = redis.call('HGET', dead_records, key)
local full, gone = first_write('HDEL', dead_records, key)
if full then
  return full
end
redis.call('ZREM', dead, key)
if value and since then
  leave_order(KEYS[3], KEYS[4], value, since, key)
end
return { micros, gone == 1 and 'discarded' or 'unknown' }
