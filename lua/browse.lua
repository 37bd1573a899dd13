-- browse: lists dead occurrences in the order of their deaths, from the end of the last call on.
-- WITH  prelude, places
-- KEYS  1 dead (zset)  2 dead:records (hash)
-- ARGV  1 now ms, "" = Redis' time  2 after ms, "" = from the first  3 after_key  4 from ms, "" = the first  5 to ms, "" = the last
--       6 lane, "" = any  7 reason, "" = any  8 max  9 max_bytes  10 whole, "" or 1  11 prefix of the ids, "" = any
-- REPLY { now, "browsed", last ms or "", last key or "", { key, died, value or "" }... }
-- KEEPS writes nothing and reads at most 128 entries; if it stopped before the end, it returns the position.

local dead, dead_records = KEYS[1], KEYS[2]
local after, after_key, from, to = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lane, reason, max, max_bytes, whole = ARGV[6], ARGV[7], tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10] ~= ''
local prefix = ARGV[11]
if #KEYS ~= 2 or #ARGV ~= 11 then
  return redis.error_reply('BADCALL browse: the numbers of keys and arguments do not fit')
end

local first = from ~= '' and redis.call('ZCOUNT', dead, '-inf', '(' .. from) or 0
if after ~= '' then
  first = math.max(first, rank_after(dead, after, after_key))
end
local beyond = to ~= '' and redis.call('ZCOUNT', dead, '-inf', '(' .. to) or redis.call('ZCARD', dead)
local last = math.min(first + 128, beyond) - 1
local rows = last >= first and redis.call('ZRANGE', dead, first, last, 'WITHSCORES') or {}

-- A damaged entry matches no lane and no reason.
local function matches(value)
  if lane == '' and reason == '' then
    return true
  end
  local ends = #value >= 4 and 4 + struct.unpack('>I4', value)
  if not ends or #value < ends then
    return false
  end
  if lane ~= '' and string.sub(value, 36, 35 + (string.byte(value, 35) or 0)) ~= lane then
    return false
  end
  return reason == '' or string.sub(value, ends + 1, ends + 1 + #reason) == reason .. '\n'
end

local reads, all = whole or lane ~= '' or reason ~= '', lane == '' and reason == ''
local keys, place_of, bytes, looked = {}, {}, 0, 0
for place = 1, #rows / 2 do
  local key = rows[2 * place - 1]
  -- The prefix is compared with the id: the key without the due at its end.
  if prefix == '' or string.sub(string.match(key, '^(.*):') or '', 1, #prefix) == prefix then
    -- All bytes that are read count, because they block Redis.
    bytes = bytes + (reads and redis.call('HSTRLEN', dead_records, key) or 0)
    if (all and #keys >= max) or (bytes > max_bytes and #keys > 0) then
      break
    end
    keys[#keys + 1], place_of[#keys + 1] = key, place
  end
  looked = place
end
local values = reads and #keys > 0 and redis.call('HMGET', dead_records, unpack(keys)) or {}
local found = {}
for i = 1, #keys do
  if #found / 3 >= max then
    looked = place_of[i] - 1
    break
  end
  local value = values[i]
  if not reads or (value and matches(value)) then
    found[#found + 1], found[#found + 2], found[#found + 3] = keys[i], rows[2 * place_of[i]], whole and value or ''
  end
end
local more = first + looked < beyond
return { micros, 'browsed', more and rows[2 * looked] or '', more and rows[2 * looked - 1] or '', found }
