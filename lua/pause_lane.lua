-- pause_lane: pauses a lane, so that no claim takes anything of it, or resumes it.
-- WITH  prelude, lists, paused_lanes
-- KEYS  1 due (zset)  2 pauses:lanes (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 lane  4 action, pause or resume  5 until ms, 0 = without end  6 about: "<by>\n<note>"
-- REPLY { now, "paused", in flight } | { now, "resumed", in flight } | { now, "unchanged", in flight } | { now, "late" }
-- KEEPS after the answer to a pause nothing of the lane is claimed but what is in flight already.

local due, pauses, lane, action = KEYS[1], KEYS[2], ARGV[3], ARGV[4]
if #KEYS ~= 2 or #ARGV ~= 6 or action ~= 'pause' and action ~= 'resume' then
  return redis.error_reply('BADCALL pause_lane: the numbers of keys and arguments do not fit')
end

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local _, _, flying = counts_of(due)
local paused = pause_of_lane(pauses, lane)
local full = first_write('HDEL', pauses, action == 'resume' and lane or '')
if full then
  return full
elseif action == 'resume' then
  return { micros, paused and 'resumed' or 'unchanged', flying }
end
redis.call('HSET', pauses, lane, ARGV[5] .. ' ' .. string.format('%.0f', now) .. ' ' .. ARGV[6])
return { micros, 'paused', flying }
