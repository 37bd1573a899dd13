-- cancel: removes a waiting task; a task in flight ends with its claim.
-- WITH  prelude, lanes, marks, pauses
-- KEYS  1 tasks (hash)  2 changes (hash)  3 crashes (hash)  4 counts (hash)  5 pauses (hash)  6.. due (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 id  4 revision, bytes 3 to 14 of its record, "" = whichever
--       5.. lane, the name for each key from 6 on
-- REPLY { now, "cancelled", due that was handed out or "" } | { now, "in_flight", due } | { now, "mismatch" }
--       | { now, "unknown" } | { now, "elsewhere", lane } | { now, "late" }
-- KEEPS only the end of its claim changes a negative score.

local tasks, changes, crashes, counts, id = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[3]
if #KEYS - 5 ~= #ARGV - 4 then
  return redis.error_reply('BADCALL cancel: the numbers of keys and arguments do not fit')
end
local due_key_of = due_by_lane(6, 5)

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local record = redis.call('HGET', tasks, id)
if not record then
  return { micros, 'unknown' }
end
local lane = lane_of(record)
if not due_key_of[lane] then
  return { micros, 'elsewhere', lane }
end
local score = redis.call('ZSCORE', due_key_of[lane], id)
if not score then
  return { micros, 'unknown' }
elseif ARGV[4] ~= '' and ARGV[4] ~= string.sub(record, 3, 14) then
  return { micros, redis.call('HGET', changes, id) == 'cancelled' and 'unknown' or 'mismatch' }
end

local full = first_write('HDEL', counts, id)
if full then
  return full
end
redis.call('HDEL', KEYS[5], id)
if string.sub(score, 1, 1) == '-' then
  redis.call('HSET', changes, id, 'cancelled')
  return { micros, 'in_flight', string.sub(score, 2) }
end
local mark = redis.call('HGET', crashes, id)
redis.call('ZREM', due_key_of[lane], id)
redis.call('HDEL', tasks, id)
redis.call('HDEL', crashes, id)
local its_due = due_of_score(score)
return { micros, 'cancelled', was_handed_out(mark, its_due) and its_due or '' }
