-- scan: reads a part of a lane, in no order. A task that stays in its lane from the first part to the last comes at least once.
-- WITH  prelude, lists, pauses
-- KEYS  1 due (zset)
-- ARGV  1 now ms, "" = Redis' time  2 cursor, 0 = from the start  3 count  4 status, "" = any: scheduled, overdue, in_flight or paused
--       5 prefix of the ids, "" = any  6 text in the ids, "" = any  7 from ms, "" = any  8 to ms, "" = any
-- REPLY { now, "scanned", cursor, 0 at the end, { id, score }... }
-- KEEPS writes nothing. A part has about `count` members, and is small: Redis does nothing else in the meantime.

local status, prefix, text = ARGV[4], ARGV[5], ARGV[6]
local from, to = tonumber(ARGV[7]) or 0, tonumber(ARGV[8]) or math.huge
if #KEYS ~= 1 or #ARGV ~= 8 then
  return redis.error_reply('BADCALL scan: the numbers of keys and arguments do not fit')
end

local part = redis.call('ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local rows, found = part[2], {}
for i = 1, #rows, 2 do
  local id, score = rows[i], rows[i + 1]
  local flying = string.byte(score) == 45
  local is = flying and 'in_flight' or #score == 16 and 'paused' or 'scheduled'
  local due = tonumber(flying and string.sub(score, 2) or due_of_score(score))
  local fits = status == '' or status == is or status == 'overdue' and is == 'scheduled' and due <= last_overdue
  if fits and due >= from and due < to and is_listed(id, prefix) and (text == '' or string.find(id, text, 1, true)) then
    found[#found + 1], found[#found + 2] = id, score
  end
end
return { micros, 'scanned', part[1], found }
