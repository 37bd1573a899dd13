-- pause: pauses or resumes a task.
-- WITH  prelude, lanes, marks, pauses
-- KEYS  1 tasks (hash)  2 changes (hash)  3 crashes (hash)  4 pauses (hash)  5.. due (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 id  4 action, pause or resume  5 about: "<by>\n<note>"  6 wake channel
--       7.. lane, the name for each key from 5 on
-- REPLY { now, "paused", due, due in flight or that was handed out or "" } | { now, "resumed", due, due in flight or "" }
--       | { now, "unchanged", due } | { now, "unknown" } | { now, "elsewhere", lane } | { now, "late" }
-- KEEPS after the answer to a pause the task is not claimed; only the end of its claim changes a negative score.

local tasks, changes, crashes, pauses, id, resume = KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[3], ARGV[4] == 'resume'
if #KEYS - 4 ~= #ARGV - 6 or not resume and ARGV[4] ~= 'pause' then
  return redis.error_reply('BADCALL pause: the numbers of keys and arguments do not fit')
end
local due_key_of = due_by_lane(5, 7)

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local record = redis.call('HGET', tasks, id)
local lane = record and lane_of(record)
if lane and not due_key_of[lane] then
  return { micros, 'elsewhere', lane }
end
local score = lane and redis.call('ZSCORE', due_key_of[lane], id)
local change = score and redis.call('HGET', changes, id)
if not score or change == 'cancelled' then
  return { micros, 'unknown' }
end
local flying = string.sub(score, 1, 1) == '-'
local current_due = flying and string.sub(score, 2) or due_of_score(score)
local pause = redis.call('HGET', pauses, id)
if resume and not pause or not resume and is_kept_back(pause, current_due) then
  return { micros, 'unchanged', change or current_due }
end

local full = first_write('HDEL', pauses, id)
if full then
  return full
end
local head = head_of(due_key_of[lane])
if not flying then
  redis.call('ZADD', due_key_of[lane], 'XX', resume and current_due or paused_score(current_due), id)
end
if resume then
  if not flying then
    wake(ARGV[6], lane, current_due, head)
  end
  return { micros, 'resumed', change or current_due, flying and current_due or '' }
end
redis.call('HSET', pauses, id, '0 ' .. string.format('%.0f', now) .. ' ' .. ARGV[5])
local is_out = flying or was_handed_out(redis.call('HGET', crashes, id), current_due)
return { micros, 'paused', change or current_due, is_out and current_due or '' }
