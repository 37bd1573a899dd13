-- get: reads one task.
-- WITH  prelude, lanes, suspects, pauses
-- KEYS  1 tasks (hash)  2 changes (hash)  3 counts (hash)  4 crashes (hash)  5 pauses (hash)  6.. due (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 id  3.. lane, the name for each key from 6 on
-- REPLY { now, "found", record, score, change or "", counts or "", unreadable 0 or 1, pause or "" } | { now, "unknown" }
--       | { now, "elsewhere", lane }
-- KEEPS writes nothing.

local tasks, changes, counts, crashes, id = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[2]
if #KEYS - 5 ~= #ARGV - 2 then
  return redis.error_reply('BADCALL get: the numbers of keys and arguments do not fit')
end
local due_key_of = due_by_lane(6, 3)

local record = redis.call('HGET', tasks, id)
if not record then
  return { micros, 'unknown' }
end
local lane = lane_of(record)
if not due_key_of[lane] then
  return { micros, 'elsewhere', lane }
end
local score = redis.call('ZSCORE', due_key_of[lane], id)
local change = redis.call('HGET', changes, id) or ''
if not score or change == 'cancelled' then
  return { micros, 'unknown' }
end
local unreadable = left_out(redis.call('HGET', crashes, id), due_of_score(score)) == 'unreadable' and 1 or 0
local pause = redis.call('HGET', KEYS[5], id) or ''
return { micros, 'found', record, score, change, redis.call('HGET', counts, id) or '', unreadable, pause }
