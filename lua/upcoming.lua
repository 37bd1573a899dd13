-- upcoming: lists the tasks of a lane that wait, by due and then by the bytes of their ids, from a position on.
-- WITH  prelude, places, lists
-- KEYS  1 due (zset)
-- ARGV  1 now ms, "" = Redis' time  2 after ms  3 after_member, "" = from the first one of that due  4 max
--       5 prefix of the ids, "" = any
-- REPLY { now, "upcoming", last ms or "", last member or "", { id, due }... }
-- KEEPS writes nothing and reads at most 257 members; if it stopped before the end, it returns the position.

local due, max, prefix = KEYS[1], tonumber(ARGV[4]), ARGV[5]
if #KEYS ~= 1 or #ARGV ~= 5 then
  return redis.error_reply('BADCALL upcoming: the numbers of keys and arguments do not fit')
end

local first = rank_after(due, ARGV[2], ARGV[3])
local rows = redis.call('ZRANGE', due, first, first + 256, 'WITHSCORES')
local found, read = {}, 0
while read < 256 and #found < 2 * max and unless_paused(rows[2 * read + 2]) do
  read = read + 1
  local id = rows[2 * read - 1]
  if is_listed(id, prefix) then
    found[#found + 1], found[#found + 2] = id, rows[2 * read]
  end
end
local more = unless_paused(rows[2 * read + 2])
return { micros, 'upcoming', more and rows[2 * read] or '', more and rows[2 * read - 1] or '', found }
