-- count: counts the tasks of a lane that wait, are overdue, in flight or paused, and those that wait between borders.
-- WITH  prelude, lists
-- KEYS  1 due (zset)
-- ARGV  1 now ms, "" = Redis' time  2.. border: ms, each later than the one before
-- REPLY { now, "counted", waiting, overdue, in flight, paused, { waiting from one border to before the next, one for each pair... } }
-- KEEPS writes nothing. Requeued occurrences count, too.

local due = KEYS[1]
if #KEYS ~= 1 or #ARGV < 1 then
  return redis.error_reply('BADCALL count: the numbers of keys and arguments do not fit')
end

local windows = {}
for i = 2, #ARGV - 1 do
  windows[i - 1] = redis.call('ZCOUNT', due, ARGV[i], '(' .. ARGV[i + 1])
end
local waiting, overdue, flying, paused = counts_of(due)
return { micros, 'counted', waiting, overdue, flying, paused, windows }
