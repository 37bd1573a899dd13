-- requeue: returns a dead occurrence to its lane, due now, under its old key.
-- WITH  prelude, lanes, records, dead, pauses
-- KEYS  1 dead (zset)  2 dead:records (hash)  3 tasks (hash)  4 changes (hash)  5 crashes (hash)  6 lanes (set)
--       7 largest (string)  8 dead:order (zset)  9 dead:bytes (hash)  10.. due (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 parent, the id in the key  4 due in the key  5 died ms, "" = whenever
--       6 wake channel  7.. lane, the name for each key from 10 on
-- REPLY { now, "requeued" } | { now, "in_flight" } | { now, "unknown" } | { now, "unreadable" } | { now, "elsewhere", lane } |
--       { now, "late" }
-- KEEPS a key is requeued only if no waiting or claimed occurrence has it; another death under the same key stays.

local dead, dead_records, tasks, changes, crashes, lanes, largest = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local parent, its_due, died = ARGV[3], ARGV[4], ARGV[5]
local key = parent .. ':' .. its_due
local member = '!' .. key
if #KEYS ~= #ARGV + 3 then
  return redis.error_reply('BADCALL requeue: the numbers of keys and arguments do not fit')
end
local due_key_of = due_by_lane(10, 7)

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local since = redis.call('ZSCORE', dead, key)
if died ~= '' and since ~= died then
  return { micros, 'unknown' }
end
if redis.call('HEXISTS', tasks, member) == 1 then
  return { micros, 'in_flight' }
end
if redis.call('HEXISTS', tasks, parent) == 1 then
  local stands = false
  for i = 10, #KEYS do
    local score = redis.call('ZSCORE', KEYS[i], parent)
    if score and (due_of_score(score) == its_due or score == '-' .. its_due or redis.call('HGET', changes, parent) == its_due) then
      return { micros, 'in_flight' }
    end
    stands = stands or score
  end
  -- The lane of the task is in its record. That may be large, so it is read only if no given lane contains the task.
  local lane = not stands and lane_of(redis.call('HGET', tasks, parent))
  if lane and not due_key_of[lane] then
    return { micros, 'elsewhere', lane }
  end
end
local value = redis.call('HGET', dead_records, key)
if not value then
  return { micros, 'unknown' }
end
-- A damaged record has no lane to wait in.
local ends = #value > 34 and 4 + struct.unpack('>I4', value) or 0
local record = string.sub(value, 5, ends)
local whole = ends <= #value and #record > 31 and #record >= 31 + string.byte(record, 31)
local lane = whole and lane_of(record) or ''
if #lane > 32 or not string.match(lane, '^[a-z0-9-]+$') then
  return { micros, 'unreadable' }
end
if not due_key_of[lane] then
  return { micros, 'elsewhere', lane }
end

local full = first_write('HDEL', dead_records, key)
if full then
  return full
end
local due = string.format('%.0f', now)
redis.call('ZREM', dead, key)
if since then
  leave_order(KEYS[8], KEYS[9], value, since, key)
end
-- As in put: if an older version wrote the other records, their maximum size is unknown.
if #record > largest_of(tasks, largest) then
  redis.call('SET', largest, string.format('%.0f', #record))
end
redis.call('HSET', tasks, member, record)
redis.call('ZADD', due_key_of[lane], due, member)
-- The occurrence was handed out before. The mark also tells puts that its key is taken.
redis.call('HSET', crashes, member, due .. ':0')
redis.call('SADD', lanes, lane)
-- It is due now, whatever the head was.
wake(ARGV[6], lane, due, nil)
return { micros, 'requeued' }
