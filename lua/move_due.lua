-- move_due: gives a task that no claim holds another due: now (trigger), or the given one (skip).
-- WITH  prelude, lanes, marks, pauses
-- KEYS  1 tasks (hash)  2 changes (hash)  3 crashes (hash)  4 counts (hash)  5 pauses (hash)  6.. due (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 id  4 due ms, "" = now, "new" = now even if it missed its due
--       5 expected due, "" = whichever  6 revision, bytes 3 to 14 of its record, "" = whichever
--       7 counts, "" = as they are  8 wake channel  9.. lane, the name for each key from 6 on
-- REPLY { now, "moved", due, due that was handed out or "" } | { now, "unchanged", due } | { now, "in_flight", due }
--       | { now, "mismatch", due } | { now, "unknown" } | { now, "elsewhere", lane } | { now, "late" }
-- KEEPS the new due is later than every due of the task that was claimed, so no message takes the key of another.

local tasks, changes, crashes, counts, pauses = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id, due, expected, revision = ARGV[3], ARGV[4], ARGV[5], ARGV[6]
if #KEYS - 5 ~= #ARGV - 8 then
  return redis.error_reply('BADCALL move_due: the numbers of keys and arguments do not fit')
end
local due_key_of = due_by_lane(6, 9)

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local record = redis.call('HGET', tasks, id)
local lane = record and lane_of(record)
if lane and not due_key_of[lane] then
  return { micros, 'elsewhere', lane }
end
local score = lane and redis.call('ZSCORE', due_key_of[lane], id)
if not score or redis.call('HGET', changes, id) == 'cancelled' then
  return { micros, 'unknown' }
end
local flying = string.sub(score, 1, 1) == '-'
local current_due = flying and string.sub(score, 2) or due_of_score(score)
if flying then
  return { micros, 'in_flight', current_due }
elseif expected ~= '' and expected ~= current_due or revision ~= '' and revision ~= string.sub(record, 3, 14) then
  return { micros, 'mismatch', current_due }
end

local pause = redis.call('HGET', pauses, id)
local trigger = due == '' or due == 'new'
if trigger then
  -- Redis' clock has reached every due that was claimed, so the next millisecond is later than all of them.
  local soon = now + 1
  local keeps_due = tonumber(current_due) <= soon and (due == '' or score == current_due)
  due = keeps_due and current_due or string.format('%.0f', soon)
end
if due == current_due and (not trigger or score == current_due) then
  return { micros, 'unchanged', current_due }
end

local full = first_write('HDEL', changes, '')
if full then
  return full
end
local head = head_of(due_key_of[lane])
if pause and trigger then
  redis.call('HSET', pauses, id, due .. string.match(pause, '^%d+(.*)$'))
end
local stays = pause and not trigger
redis.call('ZADD', due_key_of[lane], 'XX', stays and paused_score(due) or due, id)
if ARGV[7] ~= '' then
  redis.call('HSET', counts, id, ARGV[7])
end
local is_out = false
if due ~= current_due then
  is_out = was_handed_out(redis.call('HGET', crashes, id), current_due)
  redis.call('HDEL', crashes, id)
end
if not stays then
  wake(ARGV[8], lane, due, head)
end
return { micros, 'moved', due, is_out and current_due or '' }
